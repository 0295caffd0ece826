# SPDX-License-Identifier: Apache-2.0
"""An engine in this process: sequences, appends and attention by calls of libattnd."""
import collections
import ctypes
import dataclasses
import json
import operator
import os
import threading
import weakref
from collections.abc import Iterable, Mapping
from ctypes import byref, c_char_p, c_int32, c_int64, c_uint32, c_uint64, c_void_p

import numpy

from . import _library
from .errors import InvalidError, error_of
from .tensors import TYPE_NAMES, Argument, empty_like, rows_of, shape_of

ALL = 0xFFFFFFFF  # tokens of a fork
_TYPE_CODES = {name: kind for kind, name in TYPE_NAMES.items()}
_OPS = {'create': 0, 'fork': 1, 'truncate': 2, 'delete': 3}


class SequenceId(int):
    """A sequence's id. `cached`: tokens that were found in the prefix cache as it was created."""

    cached = 0


@dataclasses.dataclass(frozen=True)
class Description:
    """What an engine is: its geometry, limits and backend."""

    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    blocks: int
    sequence_tokens: int
    rows_per_call: int
    calls: int
    dtype: str
    kv_dtype: str
    bit_stable: bool
    threads: int
    backend: str
    isa: str
    device: str
    kernel: str
    gpu: int
    stream_rows: int


@dataclasses.dataclass(frozen=True)
class SequenceInfo:
    """A sequence as it is: `lengths` has the tokens of each layer, `length` the least of them."""

    id: int
    parent: int
    length: int
    blocks: int
    shared_blocks: int
    lengths: list


@dataclasses.dataclass(frozen=True)
class Stats:
    """What an engine holds now, and has done since it was opened."""

    blocks_free: int
    blocks_cached: int
    blocks_held: int
    blocks_fenced: int
    blocks_shared: int
    sequences: int
    tokens_logical: int
    tokens_physical: int
    forks: int
    copies_on_write: int
    steps: int
    roof_gb_per_s: float
    voided: int = 0


@dataclasses.dataclass(frozen=True)
class Lease:
    """Blocks for tables of the caller's own."""

    id: int
    blocks: list


def version():
    """The library's version and commit."""
    return _library.functions().version().decode()


def backends():
    """What is in the library and can be used here: {'cpu': 'portable avx2', 'reference': '', 'cuda': ...}."""
    lines = _library.functions().backends().decode().splitlines()
    return {name: rest.strip() for name, _, rest in (line.partition(':') for line in lines)}


_sink = None


def log(write):
    """Have `write(level, message)` called for what the library has to say (level 0: errors .. 3); None: nothing is said."""
    global _sink
    sink = _library.LOG_WRITE() if write is None else _library.LOG_WRITE(lambda level, text, _: write(level, text.decode()))
    _library.functions().log(sink, None)
    _sink = sink  # for as long as it may be called


def _fail(code):
    functions = _library.functions()
    raise error_of({'code': functions.code_name(code).decode(), 'detail': functions.error().decode()})


def _check(code):
    if code < 0:
        _fail(code)
    return code


def _invalid(detail):
    return InvalidError({'code': 'invalid', 'detail': detail})


def integer(value, name, most=2**64 - 1):
    """An argument as a number in 0..most."""
    try:
        number = operator.index(value)
    except TypeError:
        raise _invalid(f'{name}: wants an integer, has {value!r:.60}') from None
    if not 0 <= number <= most:
        raise _invalid(f'{name}: {number} is out of range: there are 0..{most}')
    return number


def id_of(sequence):
    return integer(sequence, 'sequence')


def is_single(sequences):
    """Whether it is one sequence, and no list of them."""
    return isinstance(sequences, (int, numpy.integer))


def integers_of(values, name):
    """An argument as a flat array of numbers."""
    try:
        array = numpy.ravel(numpy.asarray(values))
    except ValueError:
        array = None
    if array is None or array.size and array.dtype.kind not in 'biufO':
        raise _invalid(f'{name}: wants integers, has {values!r:.60}')
    return array


def _list_of(type_, values, name, length=None):
    """A C array of a list of integers; None stays None."""
    if values is None:
        return None
    try:
        values = [int(v) for v in integers_of(values, name)]
    except (TypeError, ValueError, OverflowError):
        raise _invalid(f'{name}: wants integers, has {values!r:.60}') from None
    if length is not None and len(values) != length:
        raise _invalid(f'{name}: wants {length} numbers, has {len(values)}')
    bits = ctypes.sizeof(type_) * 8
    low, high = (-(1 << bits - 1), 1 << bits - 1) if type_(-1).value < 0 else (0, 1 << bits)
    for i, v in enumerate(values):
        if not low <= v < high:
            raise _invalid(f'{name}: entry {i}: {v} is out of range')
    return (type_ * max(len(values), 1))(*values)


def _configuration(config):
    if config is None or isinstance(config, bytes):
        return config
    if isinstance(config, os.PathLike) or isinstance(config, str) and '{' not in config:
        raise _invalid(f'config: wants a dictionary or JSON text; a file is named by file={os.fspath(config)!r}')
    try:
        return (config if isinstance(config, str) else json.dumps(config)).encode()
    except TypeError as e:
        raise _invalid(f'config: {e}') from None


def _settings(settings):
    """Settings as "path=value" texts: of a list of those, or of a dictionary."""
    if isinstance(settings, Mapping):
        try:
            settings = [f'{path}={value if isinstance(value, str) else json.dumps(value)}' for path, value in settings.items()]
        except TypeError as e:
            raise _invalid(f'settings: {e}') from None
    if isinstance(settings, (str, bytes)) or not isinstance(settings, Iterable):
        raise _invalid(f'settings: wants a list of "path=value" or a dictionary, has {settings!r:.60}')
    texts = list(settings)
    for text in texts:
        if not isinstance(text, str) or '=' not in text:
            raise _invalid(f'settings: wants "path=value", has {text!r:.60}')
    return [text.encode() for text in texts]


def current_stream(array):
    """PyTorch's current stream, where a tensor of its on a GPU belongs; None: it is not one."""
    if not getattr(array, 'is_cuda', False):
        return None
    import torch

    number = getattr(torch._C, '_cuda_getCurrentRawStream', None)  # 2 us less than an object made of it
    return number(array.get_device()) if number else torch.cuda.current_stream(array.device).cuda_stream


def _wanted_dtype(dtype, kind):
    """DLPack's code and bits of outputs: those of a name, or else `kind`."""
    if dtype is not None and dtype not in _TYPE_CODES:
        raise _invalid(f'dtype: wants one of {", ".join(_TYPE_CODES)}')
    return _TYPE_CODES[dtype] if dtype else kind


def taken(queue):
    """What is in a deque, taken out of it; another thread may do the same."""
    while queue:
        try:
            yield queue.popleft()
        except IndexError:
            return


class Ticket:
    """Calls that are under way. result() waits for them."""

    def __init__(self, engine, number, outputs):
        self._engine, self._number, self._outputs = engine, number, outputs
        self._code = None
        self._lock = threading.Lock()

    def _finish(self, code):
        self._code = code
        if code < 0:
            try:
                _fail(code)
            except Exception as e:  # result() says it, as often as it is asked
                self._error = e
        self._engine._forget(self._number)

    def done(self):
        """Whether they are done. Without a thread of the engine's, asking makes them go on."""
        with self._lock:
            if self._code is None:
                code = self._engine._call('poll', self._number, None)
                if code != _library.PENDING:
                    self._finish(code)
            return self._code is not None

    def result(self, timeout=None):
        """Their outputs. Raises what they failed with, or TimeoutError."""
        with self._lock:
            if self._code is None:
                code = self._engine._call('await', self._number, -1.0 if timeout is None else timeout, None)
                if code == _library.PENDING:
                    raise TimeoutError(f'not done within {timeout} s')
                self._finish(code)
            if self._code < 0:
                raise self._error
            return self._outputs


class Engine:
    """A KV cache and attention over it, in this process.

    config: the daemon's keys, as a dictionary or as JSON text; file: of them, instead; settings: "path=value" strings, or a
    dictionary {path: value}, stronger than both. thread: calls with wait=False are computed by a thread of the library's; without, in done(), result() and whatever else is
    called.

    Sequences are ids; q, k, v are arrays [tokens][heads][head_dim] (NumPy, PyTorch, anything that speaks DLPack) in host memory.
    """

    def __init__(self, config=None, *, file=None, settings=(), thread=False, **unknown):
        self._a = None
        functions = _library.functions()
        if unknown:
            raise _invalid(f'{next(iter(unknown))}: Engine has no such argument; keys go into config={{{next(iter(unknown))!r}: ...}}')
        texts = _settings(settings)
        handle = c_void_p()
        options = _library.Options(
            configuration=_configuration(config),
            configuration_file=os.fsencode(file) if file is not None else None,
            settings=(c_char_p * max(len(texts), 1))(*texts),
            setting_count=len(texts),
            thread=int(thread),
        )
        self._idle, self._inside, self._process = threading.Condition(), 0, os.getpid()
        self._pending = {}  # by number of the ticket: a weak reference to it, and the memory that is in use
        self.orphans = collections.deque()  # sequences that are deleted by the next call
        self.geometry = config.get('geometry') if isinstance(config, dict) else None  # as far as it was given
        _check(functions.open(byref(options), byref(handle)))
        self._a = handle
        self._describe()

    def _describe(self):
        d = _library.Description()
        _check(self._call('describe', byref(d)))
        values = {f.name: getattr(d, f.name) for f in dataclasses.fields(Description) if hasattr(d, f.name)}
        values.update({n: values[n].decode() for n in ('backend', 'isa', 'device', 'kernel')})
        self.description = Description(
            **{**values, 'bit_stable': bool(d.bit_stable)},
            dtype=TYPE_NAMES[d.dtype_code, d.dtype_bits],
            kv_dtype=TYPE_NAMES[d.kv_dtype_code, d.kv_dtype_bits],
        )

    def _call(self, name, *arguments):
        """Call a function of the handle, which stays open meanwhile."""
        with self._idle:
            if self._a is None:
                raise _invalid('the engine is closed')
            self._inside += 1
        try:
            if self.orphans:
                for id in taken(self.orphans):
                    _library.functions().delete(self._a, id)
            return getattr(_library.functions(), name)(self._a, *arguments)
        except ctypes.ArgumentError as e:
            raise _invalid(f'{name}: {e}') from None
        finally:
            with self._idle:
                self._inside -= 1
                if self._a is None:
                    self._idle.notify_all()

    def _forget(self, number):
        self._pending.pop(number, None)

    def _sweep(self):
        """Take back what nobody waits for any more."""
        for number, (ticket, *_) in list(self._pending.items()):
            if ticket() is None and self._call('poll', number, None) != _library.PENDING:
                self._forget(number)

    def takes_gpu(self, device):
        """Whether calls take tensors on a GPU, by its number, where they are."""
        return self.description.gpu == device

    @property
    def gpu_rows(self):
        """Of a call whose tensors are there, at most."""
        return self.description.stream_rows

    @property
    def is_closed(self):
        return self._a is None

    def close(self):
        """Finish what is under way and give everything back. Again: nothing."""
        with self._idle:
            handle, self._a = self._a, None
            while handle is not None and self._inside and os.getpid() == self._process:
                self._idle.wait()
        if handle is not None:
            _library.functions().close(handle)
            self._pending.clear()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, '_a', None) is not None:
            self.close()

    def __reduce__(self):
        raise TypeError('an engine lives in its process and cannot be pickled')

    # ---- sequences

    def _creation(self, tokens, id, max_tokens, priority, salt):
        if not isinstance(salt, (str, type(None))):
            raise _invalid(f'salt: wants a text, has {salt!r:.60}')
        if not isinstance(priority, (int, numpy.integer)):
            raise _invalid(f'priority: wants an integer, has {priority!r:.60}')
        return _library.Creation(
            id=integer(id, 'id'),
            token_ids=_list_of(c_uint32, tokens, 'tokens'),
            token_count=0 if tokens is None else numpy.size(tokens),
            max_tokens=integer(max_tokens, 'max_tokens', ALL),
            priority=int(priority),
            salt=None if salt is None else salt.encode(),
        )

    @staticmethod
    def _created(creation):
        id = SequenceId(creation.id)
        id.cached = creation.length
        return id

    def create(self, tokens=None, *, id=0, max_tokens=0, priority=0, salt=None):
        """A new sequence. tokens: ids of its prompt; whole blocks of it that are cached are taken over (`.cached`)."""
        creation = self._creation(tokens, id, max_tokens, priority, salt)
        _check(self._call('create', byref(creation)))
        return self._created(creation)

    def fork(self, sequence, count=None, *, length=None, ids=None):
        """New sequences that share a sequence's first tokens (`length`, or all): a list, or, without count and ids, one."""
        n = numpy.size(ids) if ids is not None else integer(count, 'count', ALL) if count is not None else 1
        children = _list_of(c_uint64, ids if ids is not None else [0] * n, 'ids', n)
        _check(self._call('fork', id_of(sequence), ALL if length is None else integer(length, 'length', ALL), children, n))
        forks = [SequenceId(i) for i in children[:n]]
        return forks[0] if count is None and ids is None else forks

    def truncate(self, sequence, length):
        """Forget all tokens but the first `length`; nothing where there are no more."""
        _check(self._call('truncate', id_of(sequence), integer(length, 'length', ALL)))

    def delete(self, sequence):
        """The end of a sequence or a lease."""
        _check(self._call('delete', sequence.id if isinstance(sequence, Lease) else id_of(sequence)))

    def batch(self, ops):
        """All of these, in order, or none: {'op': 'create' | 'fork' | 'truncate' | 'delete', ...}, with the names of the methods.

        Returns what each of them would."""
        keeps, structs = [], []
        for i, op in enumerate(ops):
            of = dict(op)
            kind = of.pop('op', None)
            if kind not in _OPS:
                raise _invalid(f'ops[{i}]: wants an op of {", ".join(_OPS)}')
            struct = _library.Op(kind=_OPS[kind])
            if kind == 'create':
                creation = self._creation(of.pop('tokens', None), of.pop('id', 0), of.pop('max_tokens', 0), of.pop('priority', 0),
                                          of.pop('salt', None))
                struct.creation = ctypes.pointer(creation)
                keeps.append(creation)
            else:
                struct.id = integer(of.pop('id', 0), f'ops[{i}].id')
            if kind == 'fork':
                ids = of.pop('ids', None)
                n = numpy.size(ids) if ids is not None else integer(of.pop('count', 1), f'ops[{i}].count', ALL)
                children = _list_of(c_uint64, ids if ids is not None else [0] * n, f'ops[{i}].ids', n)
                struct.ids, struct.count = children, n
                struct.length = integer(of.pop('length', ALL), f'ops[{i}].length', ALL)
                keeps.append(children)
            elif kind == 'truncate':
                struct.length = integer(of.pop('length', None), f'ops[{i}].length', ALL)
            if of:
                raise _invalid(f'ops[{i}]: {kind} has no {", ".join(of)}')
            structs.append(struct)
        array = (_library.Op * max(len(structs), 1))(*structs)
        _check(self._call('batch', array, len(structs)))
        results = []
        for struct in array[: len(structs)]:
            if struct.kind == _OPS['create']:
                results.append(self._created(struct.creation.contents))
            elif struct.kind == _OPS['fork']:
                results.append([SequenceId(i) for i in struct.ids[: struct.count]])
            else:
                results.append(None)
        return results

    def look(self, sequence):
        """A sequence as it is now."""
        lengths = (c_uint32 * self.description.layers)()
        info = _library.Sequence(lengths=lengths)
        _check(self._call('look', id_of(sequence), byref(info)))
        return SequenceInfo(int(sequence), info.parent, info.length, info.blocks, info.shared_blocks, list(lengths))

    def blocks(self, sequence):
        """The block table of a sequence or lease: ids in token order."""
        n = self.description.sequence_tokens // self.description.block_size + 1
        ids, count = (c_uint32 * n)(), c_uint32(n)
        _check(self._call('blocks', sequence.id if isinstance(sequence, Lease) else id_of(sequence), 0, ids, byref(count)))
        return ids[: count.value]

    def lease(self, blocks):
        """Reserve blocks for tables of one's own."""
        blocks = integer(blocks, 'blocks', ALL)
        if blocks > self.description.blocks:
            raise _invalid(f'blocks: {blocks} are wanted, of {self.description.blocks}')
        lease, ids = c_uint64(), (c_uint32 * max(blocks, 1))()
        _check(self._call('lease', blocks, byref(lease), ids))
        return Lease(lease.value, ids[:blocks])

    # ---- calls

    def _layer(self, layer, all_layers):
        if layer is not None:
            return integer(layer, 'layer', ALL)
        if all_layers:
            return _library.ALL_LAYERS
        if self.description.layers == 1:
            return 0
        raise _invalid(f'layer: is missing: there are layers 0..{self.description.layers - 1}')

    def _outputs(self, q, shape, kind, lse, out, dtype, keeps, struct):
        """The arrays for o and lse, named in `struct`; what the caller gets."""
        o = out if out is not None else empty_like(q, shape, _wanted_dtype(dtype, kind))
        argument = Argument(o, 'out', writes=True, stream=struct.stream)
        keeps.append(argument)
        struct.o = argument.pointer
        if not lse:
            return o
        l = empty_like(q, shape[:-1], (2, 32))
        argument = Argument(l, 'lse', writes=True, stream=struct.stream)
        keeps.append(argument)
        struct.lse = argument.pointer
        return o, l

    @staticmethod
    def _inputs(struct, keeps, stream, **arrays):
        for name, array in arrays.items():
            if array is None:
                continue
            if stream is None:
                stream = current_stream(array)
            struct.stream = stream
            argument = Argument(array, name, stream=stream)
            keeps.append(argument)
            setattr(struct, name, argument.pointer)

    def _rows(self, sequences, layer, all_layers, counts, positions, tokens):
        ids = _list_of(c_uint64, sequences, 'sequences')
        n = 1 if is_single(sequences) else numpy.size(sequences)
        token_ids = _list_of(c_uint32, tokens, 'tokens')
        return _library.Rows(
            layer=self._layer(layer, all_layers),
            sequences=ids,
            sequence_count=n,
            counts=_list_of(c_uint32, counts, 'counts', n),
            positions=_list_of(c_int64, positions, 'positions', n),
            token_ids=token_ids,
            token_count=0 if tokens is None else numpy.size(tokens),
        )

    def _run(self, function, arguments, keeps, outputs, wait):
        if wait:
            on_gpu = keeps[0].tensor.device_type == _library.CUDA
            _check((self._call_with_room if on_gpu else self._call)(function, *arguments, None))
            return outputs
        self._sweep()
        number = c_uint64()
        _check(self._call(function, *arguments, byref(number)))
        ticket = Ticket(self, number.value, outputs)
        self._pending[number.value] = weakref.ref(ticket), keeps, outputs
        return ticket

    def _call_with_room(self, name, *arguments):
        """Call a function whose tensors are on the GPU, when there is room on its queue."""
        code = self._call(name, *arguments)
        while code == _library.BUSY:  # the host is two tokens ahead of the GPU
            self._call('turn')
            code = self._call(name, *arguments)
        return code

    def prepare_attend(self, rows):
        """attnd_attend() of one list of rows, with tensors on the GPU, as a function without arguments: `rows` is filled in before each
        call."""
        arguments = byref(rows), 1, None
        return lambda: _check(self._call_with_room('attend', *arguments))

    @staticmethod
    def _counts(sequences, counts, rows):
        """One sequence has all rows, unless it is said otherwise."""
        return [rows] if counts is None and is_single(sequences) else counts

    def append(self, sequences, k, v, *, layer=None, counts=None, positions=None, tokens=None, wait=True, stream=None, retry=False):
        """Write k and v at the end of sequences: [rows][kv_heads][head_dim] of a layer, or [layers][rows]... of all.

        counts: rows of each sequence (of a single one: all; else one each). positions: of the first row of each, to be sure. tokens:
        ids of the first rows, so that create() finds full blocks. wait=False: a Ticket.

        k and v on the GPU: the call is ordered on `stream` (its number; PyTorch's current one, or the default), and waits for room on
        the GPU's queue alone; with wait=False not even for that: BusyError.
        Whether they are finite shows later: see InvalidError. retry: rows at positions that stand already are compared."""
        keeps = []
        d, shape = self.description, shape_of(k, 'k')
        rows = rows_of('k', k, shape, d.kv_heads, d.head_dim, d.layers)
        struct = self._rows(sequences, layer, len(shape) == 4, self._counts(sequences, counts, rows), positions, tokens)
        struct.retry = retry
        self._inputs(struct, keeps, stream, k=k, v=v)
        keeps.append(struct)
        return self._run('append', (byref(struct), 1), keeps, None, wait)

    def attend(self, sequences, q, *, k=None, v=None, layer=None, counts=None, positions=None, tokens=None, lse=False, out=None,
               dtype=None, kernel=0, wait=True, stream=None, retry=False):
        """Attention of q [rows][query_heads][head_dim] over sequences; k and v, if given, are appended first.

        Returns o like q, of its dtype, or of `dtype` ("f32", "f16", "bf16"), or out; with lse=True (o, lse). wait=False: a Ticket.
        On the GPU, stream and retry: as in append()."""
        keeps = []
        rows = rows_of('q', q, shape_of(q, 'q'), self.description.query_heads, self.description.head_dim)
        struct = self._rows(sequences, layer, False, self._counts(sequences, counts, rows), positions, tokens)
        struct.kernel, struct.retry = kernel, retry
        self._inputs(struct, keeps, stream, q=q, k=k, v=v)
        outputs = self._outputs(q, keeps[0].shape, keeps[0].type, lse, out, dtype, keeps, struct)
        keeps.append(struct)
        return self._run('attend', (byref(struct), 1), keeps, outputs, wait)

    def paged(self, lease, q=None, block_tables=None, context_lens=None, *, indptr=None, k=None, v=None, slot_mapping=None, layer=None,
              lse=False, out=None, dtype=None, kernel=0, wait=True, stream=None):
        """Attention over block tables [sequences][columns] of one's own, in leased blocks; k and v go to slot_mapping first."""
        keeps = []
        tables = None if block_tables is None else numpy.asarray(block_tables)
        if tables is not None and tables.ndim != 2:
            raise _invalid('block_tables: wants a row for each sequence')
        n, columns = (0, 0) if tables is None else tables.shape
        struct = _library.PagedRows(
            lease=lease.id if isinstance(lease, Lease) else lease,
            layer=self._layer(layer, False),
            kernel=kernel,
            sequences=n,
            columns=columns,
            block_tables=_list_of(c_int32, tables, 'block_tables'),
            context_lens=_list_of(c_int32, context_lens, 'context_lens', n),
            indptr=_list_of(c_int32, indptr, 'indptr', n + 1),
            slot_mapping=_list_of(c_int64, slot_mapping, 'slot_mapping'),
            tokens=0 if slot_mapping is None else numpy.size(slot_mapping),
        )
        self._inputs(struct, keeps, stream, q=q, k=k, v=v)
        outputs = None
        if q is not None:
            outputs = self._outputs(q, keeps[0].shape, keeps[0].type, lse, out, dtype, keeps, struct)
        keeps.append(struct)
        return self._run('paged', (byref(struct),), keeps, outputs, wait)

    def merge(self, o, lse, *, stream=None):
        """States of the same rows over disjoint keys, o [states][rows][query_heads][head_dim] and lse [states][rows][query_heads], into
        (o, lse) over all of them. On the GPU it is ordered on the stream, as attend() is."""
        struct, keeps = _library.States(), []
        self._inputs(struct, keeps, stream, o=o, lse=lse)
        merged = empty_like(o, keeps[0].shape[1:], keeps[0].type), empty_like(o, keeps[1].shape[1:], (2, 32))
        for name, array in zip(('merged_o', 'merged_lse'), merged):
            keeps.append(Argument(array, name, writes=True, stream=struct.stream))
            setattr(struct, name, keeps[-1].pointer)
        on_gpu = keeps[0].tensor.device_type == _library.CUDA
        _check((self._call_with_room if on_gpu else self._call)('merge', byref(struct)))
        return merged

    def turn(self):
        """Do what there is to do now for calls with wait=False; whether there was anything."""
        return bool(_check(self._call('turn')))

    # ---- looking

    def stats(self):
        """What it holds now, and has done."""
        s = _library.Stats()
        _check(self._call('stats', byref(s)))
        return Stats(**{f.name: getattr(s, f.name) for f in dataclasses.fields(Stats)})

    def audit(self):
        """Recount every block and check every invariant. Raises InternalError if one does not hold."""
        _check(self._call('audit'))
