# SPDX-License-Identifier: Apache-2.0
"""An engine in this process: sequences, appends and attention by calls of libattnd."""
from __future__ import annotations

import collections
import ctypes
import dataclasses
import json
import operator
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import byref, c_char_p, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from typing import Any, Union

import numpy

from . import _library
from .errors import InvalidError, error_of
from .tensors import F32, OUTPUT_TYPES, TYPE_NAMES, Argument, current_stream, empty_like, own_type, rows_of, shape_of

Array = Any  # of NumPy, PyTorch, or whatever has __array_interface__ or speaks DLPack
Integers = Union['Sequence[int]', Array]

ALL = 0xFFFFFFFF  # tokens of a fork
FORKS_MAX = 1000  # of a call
_OPS = {'create': 0, 'fork': 1, 'truncate': 2, 'delete': 3}


class SequenceId(int):
    """A sequence's id. `cached`: tokens that were found in the prefix cache as it was created."""

    cached: int = 0
    __str__ = int.__repr__  # it stands in paths

    def __repr__(self) -> str:
        return f'<attnd.SequenceId {self}{f", {self.cached} tokens cached" if self.cached else ""}>'


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
    lengths: list[int]


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
    blocks: list[int]


def version() -> str:
    """The library's version and commit."""
    return _library.functions().version().decode()


def backends() -> dict[str, str]:
    """What is in the library and can be used here: {'cpu': 'portable avx2', 'reference': '', 'cuda': ...}."""
    lines = _library.functions().backends().decode().splitlines()
    return {name: rest.strip() for name, _, rest in (line.partition(':') for line in lines)}


_sink = None


def log(write: Callable[[int, str], Any] | None) -> None:
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


def integer(value, name, most=2**64 - 1, least=0):
    """An argument as a number in least..most."""
    try:
        number = operator.index(value)
    except TypeError:
        raise _invalid(f'{name}: wants an integer, has {value!r:.60}') from None
    if not least <= number <= most:
        raise _invalid(f'{name}: wants {least}..{most}, has {number}')
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


def _wanted_dtype(dtype, kind):
    """DLPack's code and bits of outputs: those of a name, or else `kind`."""
    if dtype is not None and dtype not in OUTPUT_TYPES:
        raise _invalid(f'dtype: wants one of {", ".join(OUTPUT_TYPES)}')
    return OUTPUT_TYPES[dtype] if dtype else kind


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

    def done(self) -> bool:
        """Whether they are done. Without a thread of the engine's, asking makes them go on."""
        with self._lock:
            if self._code is None:
                code = self._engine._call('poll', self._number, None)
                if code != _library.PENDING:
                    self._finish(code)
            return self._code is not None

    def result(self, timeout: float | None = None) -> Any:
        """Their outputs: what the call with wait=True would have returned. Raises what they failed with.

        timeout: seconds, after which it is a TimeoutError, and the calls go on; None: for ever."""
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

    config: the daemon's keys, as a dictionary {'geometry': {...}, 'pool': {...}, ...} or as JSON text.
    file: a path of such text, instead.
    settings: "path=value" strings, or a dictionary {path: value}, stronger than both.
    thread: calls with wait=False are computed by a thread of the library's; without, in done(), result() and whatever else is called.

    Sequences are ids. q, k, v are arrays [tokens][heads][head_dim] (NumPy, PyTorch, anything that speaks DLPack) in host memory, or on the
    engine's GPU. What an engine is made of, say how many heads, is in `description`.
    """

    def __init__(self, config: dict | str | bytes | None = None, *, file: str | os.PathLike | None = None,
                 settings: Iterable[str] | Mapping[str, Any] = (), thread: bool = False, **unknown: Any) -> None:
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
        self._own = own_type(self.description.dtype) if d.gpu >= 0 else None

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

    def takes_gpu(self, device: int) -> bool:
        """Whether calls take tensors on a GPU, by its number (`device`), where they are."""
        return self.description.gpu == device

    @property
    def gpu_rows(self) -> int:
        """Rows of a call whose tensors are there, at most."""
        return self.description.stream_rows

    @property
    def is_closed(self) -> bool:
        """Whether close() was called."""
        return self._a is None

    def close(self) -> None:
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

    def __repr__(self) -> str:
        if self._a is None:
            return '<attnd.Engine, closed>'
        d = self.description
        return (f'<attnd.Engine {d.backend} {d.isa or d.device}, {d.layers} layers, {d.query_heads}/{d.kv_heads} heads of {d.head_dim}, '
                f'{d.blocks} blocks of {d.block_size} tokens, {d.dtype}>')

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

    def create(self, tokens: Integers | None = None, *, id: int = 0, max_tokens: int = 0, priority: int = 0,
               salt: str | None = None) -> SequenceId:
        """A new sequence: its id, a SequenceId, which is an int.

        tokens: [n] ids of its prompt, integers; whole blocks of it that are cached are taken over, `.cached` tokens.
        id: the wanted one, 1 to 2**53 - 1; 0: a free one.
        max_tokens: blocks for so many are kept, so that no append fails for want of them; 0: none.
        priority: calls on the larger one go first, and it keeps its blocks where some have to be swapped out.
        salt: prompts are found under the same one only."""
        creation = self._creation(tokens, id, max_tokens, priority, salt)
        _check(self._call('create', byref(creation)))
        return self._created(creation)

    def fork(self, sequence: int, count: int | None = None, *, length: int | None = None,
             ids: Integers | None = None) -> SequenceId | list[SequenceId]:
        """New sequences that share the blocks of a sequence's first tokens: a list, or, without count and ids, one.

        sequence: its id.
        count: how many forks, 1 to 1000; None: one, and no list.
        length: how many tokens they begin with; None: all.
        ids: [count] their ids, instead of count."""
        n = numpy.size(ids) if ids is not None else integer(count, 'count', FORKS_MAX, 1) if count is not None else 1
        children = _list_of(c_uint64, ids if ids is not None else [0] * n, 'ids', n)
        _check(self._call('fork', id_of(sequence), ALL if length is None else integer(length, 'length', ALL), children, n))
        forks = [SequenceId(i) for i in children[:n]]
        return forks[0] if count is None and ids is None else forks

    def truncate(self, sequence: int, length: int) -> None:
        """Forget the last tokens of a sequence.

        sequence: its id.
        length: how many tokens stay, at every layer; where there are no more, nothing is forgotten."""
        _check(self._call('truncate', id_of(sequence), integer(length, 'length', ALL)))

    def delete(self, sequence: int | Lease) -> None:
        """The end of a sequence, by its id, or of a lease."""
        _check(self._call('delete', sequence.id if isinstance(sequence, Lease) else id_of(sequence)))

    def batch(self, ops: Iterable[Mapping[str, Any]]) -> list[SequenceId | list[SequenceId] | None]:
        """All of these, in order, or none.

        ops: dictionaries {'op': 'create' | 'fork' | 'truncate' | 'delete', ...} with the names of the methods' arguments, 'id' for the
        sequence.

        Returns what each of them would: an id, a list of ids (of a fork), or None."""
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
                n = numpy.size(ids) if ids is not None else integer(of.pop('count', 1), f'ops[{i}].count', FORKS_MAX, 1)
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

    def look(self, sequence: int) -> SequenceInfo:
        """A sequence as it is now, by its id: `.length`, `.lengths` [layers], `.blocks`, `.shared_blocks`, `.parent`."""
        lengths = (c_uint32 * self.description.layers)()
        info = _library.Sequence(lengths=lengths)
        _check(self._call('look', id_of(sequence), byref(info)))
        return SequenceInfo(int(sequence), info.parent, info.length, info.blocks, info.shared_blocks, list(lengths))

    def blocks(self, sequence: int | Lease) -> list[int]:
        """The block table of a sequence, by its id, or of a lease: ids of blocks in token order."""
        n = self.description.sequence_tokens // self.description.block_size + 1
        ids, count = (c_uint32 * n)(), c_uint32(n)
        _check(self._call('blocks', sequence.id if isinstance(sequence, Lease) else id_of(sequence), 0, ids, byref(count)))
        return ids[: count.value]

    def lease(self, blocks: int) -> Lease:
        """Reserve so many blocks for tables of one's own (paged()); delete() gives them back."""
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

    def _outputs(self, q, shape, kind, lse, out, dtype, keeps, struct, stream):
        """The arrays for o and lse, named in `struct`: the Argument of o, and what the caller gets."""
        o = out if out is not None else empty_like(q, shape, _wanted_dtype(dtype, kind))
        of_o = Argument(o, 'out', writes=True, stream=stream, own=self._own)
        if out is not None and of_o.shape != tuple(shape):
            raise _invalid(f'out: wants the shape {list(shape)}, has {list(of_o.shape)}')
        keeps.append(of_o)
        struct.o = of_o.pointer
        if not lse:
            return of_o, o
        l = empty_like(q, shape[:-1], F32)
        argument = Argument(l, 'lse', writes=True, stream=stream)
        keeps.append(argument)
        struct.lse = argument.pointer
        return of_o, (o, l)

    def _inputs(self, struct, keeps, stream, **arrays):
        """Name arrays in `struct`; the stream of those on a GPU."""
        for name, array in arrays.items():
            if array is None:
                continue
            if stream is None:
                stream = current_stream(array)
            struct.stream = stream
            argument = Argument(array, name, stream=stream, own=None if name == 'lse' else self._own)
            keeps.append(argument)
            setattr(struct, name, argument.pointer)
        return stream

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

    def _run(self, function, arguments, keeps, outputs, wait, of_o=None):
        on_gpu = keeps[0].tensor.device_type == _library.CUDA
        if wait:
            _check((self._call_with_room if on_gpu else self._call)(function, *arguments, None))
            result = outputs
        else:
            self._sweep()
            number = c_uint64()
            _check(self._call(function, *arguments, byref(number)))
            result = Ticket(self, number.value, outputs)
            self._pending[number.value] = weakref.ref(result), keeps, outputs
        if on_gpu and of_o is not None:
            of_o.widen()  # the call is on its stream, also where nobody waits
        return result

    def _call_with_room(self, name, *arguments):
        """Call a function whose tensors are on the GPU, when there is room on its queue."""
        code = self._call(name, *arguments)
        while code == _library.BUSY:  # the host is two tokens ahead of the GPU
            self._call('turn')
            code = self._call(name, *arguments)
        return code

    def prepare_attend(self, rows: _library.Rows) -> Callable[[], None]:
        """attnd_attend() of one list of rows, with tensors on the GPU, as a function without arguments: `rows` is filled in before each
        call."""
        arguments = byref(rows), 1, None
        return lambda: _check(self._call_with_room('attend', *arguments))

    @staticmethod
    def _counts(sequences, counts, rows):
        """One sequence has all rows, unless it is said otherwise."""
        return [rows] if counts is None and is_single(sequences) else counts

    def append(self, sequences: int | Integers, k: Array, v: Array, *, layer: int | None = None, counts: Integers | None = None,
               positions: Integers | None = None, tokens: Integers | None = None, wait: bool = True, stream: int | None = None,
               retry: bool = False) -> Ticket | None:
        """Write k and v at the end of sequences. A row is a token.

        sequences: an id, or [n] ids, integers.
        k, v: [rows][kv_heads][head_dim] of one layer, or [layers][rows][kv_heads][head_dim] of all; of float32, or the geometry's dtype or
            kv_dtype. Where the geometry has 16 bits or less, float32 is rounded; float64 and lists are as in attend().
        layer: its number, 0 to layers - 1; may be absent where there is one layer, or k and v are those of all.
        counts: [n] rows of each sequence, integers; absent: all of a single one, else one each.
        positions: [n] of the first row of each, integers; absent: where the sequence ends. Rows that stand already are compared, a gap is a
            PositionError.
        tokens: ids of the first rows, integers: full blocks are published, and create() finds them.
        wait: False: return a Ticket at once.
        stream: of k and v on the GPU: the call is ordered on it (its number; absent: PyTorch's current one, or the default), and waits for
            room on the GPU's queue alone; with wait=False not even for that: BusyError. Whether they are finite shows later: see
            InvalidError. There float32 is taken of PyTorch's tensors alone.
        retry: of k and v on the GPU: rows at positions that stand already are compared; in host memory they always are."""
        keeps = []
        d, shape = self.description, shape_of(k, 'k')
        rows = rows_of('k', k, shape, d.kv_heads, d.head_dim, d.layers)
        struct = self._rows(sequences, layer, len(shape) == 4, self._counts(sequences, counts, rows), positions, tokens)
        struct.retry = retry
        self._inputs(struct, keeps, stream, k=k, v=v)
        keeps.append(struct)
        return self._run('append', (byref(struct), 1), keeps, None, wait)

    def attend(self, sequences: int | Integers, q: Array, *, k: Array | None = None, v: Array | None = None, layer: int | None = None,
               counts: Integers | None = None, positions: Integers | None = None, tokens: Integers | None = None,
               lse: bool = False, out: Array | None = None, dtype: str | None = None, kernel: int = 0, wait: bool = True,
               stream: int | None = None, retry: bool = False) -> Array | tuple[Array, Array] | Ticket:
        """Attention of q over sequences, at one layer; k and v, if given, are appended first. A query at position p sees the keys up to p.

        sequences: an id, or [n] ids, integers.
        q: [rows][query_heads][head_dim]: the last rows of each sequence. Of float32 or the geometry's dtype (bfloat16 of NumPy is an
            attnd.bf16). float64 of NumPy and lists of numbers are rounded to float32 first; arrays of integers are refused.
        k, v: [rows][kv_heads][head_dim], as in append(); both or none.
        layer: its number, 0 to layers - 1; may be absent where there is one.
        counts: [n] rows of each sequence, integers; absent: all of a single one, else one each.
        positions: [n] of the first row of each, integers; absent: rows of k and v go to the end, and q without them has the last ones.
        tokens: ids of the first rows of k and v, as in append().
        lse: return the logarithms of the sums, too: [rows][query_heads], float32, natural.
        out: an array [rows][query_heads][head_dim] that o is written to.
        dtype: of o: "f32", "f16" or "bf16"; absent: that of q.
        kernel: 0: the engine's own; 1, 2: paged_v1 and paged_v2, with geometry.layout vllm on a GPU.
        wait: False: return a Ticket at once.
        stream, retry: of tensors on the GPU, as in append().

        Returns o [rows][query_heads][head_dim], of q's kind, or (o, lse)."""
        keeps = []
        rows = rows_of('q', q, shape_of(q, 'q'), self.description.query_heads, self.description.head_dim)
        struct = self._rows(sequences, layer, False, self._counts(sequences, counts, rows), positions, tokens)
        struct.kernel, struct.retry = kernel, retry
        stream = self._inputs(struct, keeps, stream, q=q, k=k, v=v)
        of_o, outputs = self._outputs(q, keeps[0].shape, keeps[0].given, lse, out, dtype, keeps, struct, stream)
        keeps.append(struct)
        return self._run('attend', (byref(struct), 1), keeps, outputs, wait, of_o)

    def paged(self, lease: int | Lease, q: Array | None = None, block_tables: Array | None = None,
              context_lens: Integers | None = None, *, indptr: Integers | None = None, k: Array | None = None,
              v: Array | None = None, slot_mapping: Integers | None = None, layer: int | None = None, lse: bool = False,
              out: Array | None = None, dtype: str | None = None, kernel: int = 0, wait: bool = True,
              stream: int | None = None) -> Array | tuple[Array, Array] | Ticket | None:
        """Attention over block tables of one's own, in leased blocks; k and v go to slot_mapping first.

        lease: of lease(), or its id.
        q: [rows][query_heads][head_dim], as in attend(); absent: k and v are written only.
        block_tables: [n][columns] ids of blocks, int32.
        context_lens: [n] tokens of each sequence, integers, whose last ones are its rows.
        indptr: [n + 1] integers: rows indptr[i] to indptr[i + 1] are those of sequence i; absent: one each.
        k, v: [tokens][kv_heads][head_dim], as in append().
        slot_mapping: [tokens] integers, block * block_size + slot of each row of k and v; -1: it is not written.
        layer, lse, out, dtype, kernel, wait, stream: as in attend(), and so is what it returns."""
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
        stream = self._inputs(struct, keeps, stream, q=q, k=k, v=v)
        of_o = outputs = None
        if q is not None:
            of_o, outputs = self._outputs(q, keeps[0].shape, keeps[0].given, lse, out, dtype, keeps, struct, stream)
        keeps.append(struct)
        return self._run('paged', (byref(struct),), keeps, outputs, wait, of_o)

    def merge(self, o: Array, lse: Array, *, stream: int | None = None) -> tuple[Array, Array]:
        """States of the same rows over disjoint keys, into one over all of them.

        o: [states][rows][query_heads][head_dim], of float32, float16 or bfloat16.
        lse: [states][rows][query_heads], float32; minus infinity for a state without keys.
        stream: of tensors on the GPU, as in append().

        Returns (o [rows][query_heads][head_dim], lse [rows][query_heads])."""
        struct, keeps = _library.States(), []
        stream = self._inputs(struct, keeps, stream, o=o, lse=lse)
        merged = empty_like(o, keeps[0].shape[1:], keeps[0].given), empty_like(o, keeps[1].shape[1:], F32)
        for name, array, own in zip(('merged_o', 'merged_lse'), merged, (self._own, None)):
            keeps.append(Argument(array, name, writes=True, stream=stream, own=own))
            setattr(struct, name, keeps[-1].pointer)
        on_gpu = keeps[0].tensor.device_type == _library.CUDA
        _check((self._call_with_room if on_gpu else self._call)('merge', byref(struct)))
        keeps[2].widen()
        return merged

    def turn(self) -> bool:
        """Do what there is to do now for calls with wait=False; whether there was anything."""
        return bool(_check(self._call('turn')))

    # ---- looking

    def stats(self) -> Stats:
        """What it holds now, and has done."""
        s = _library.Stats()
        _check(self._call('stats', byref(s)))
        return Stats(**{f.name: getattr(s, f.name) for f in dataclasses.fields(Stats)})

    def audit(self) -> None:
        """Recount every block and check every invariant. Raises InternalError if one does not hold."""
        _check(self._call('audit'))
