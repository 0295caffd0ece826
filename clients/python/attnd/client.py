# SPDX-License-Identifier: Apache-2.0
"""A daemon's sequences and attention over HTTP, with the methods of Engine."""
from __future__ import annotations

import collections
import concurrent.futures
import ctypes
import http.client
import json
import os
import re
import select
import socket
import ssl
import sys
import threading
import urllib.parse
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy

from . import _library, gpu
from .engine import (ALL, FORKS_MAX, Array, Description, Engine, Integers, Lease, SequenceId, SequenceInfo, Stats, _invalid, _wanted_dtype, id_of,
                     integer, integers_of, is_single, taken)
from .errors import DeviceError, Error, UnsupportedError, error_of
from .regions import GpuRegion, IpcRegion, Region
from .registered import APPEND, ATTEND, Call, Rings, Step
from .tensors import F32, TYPE_NAMES, Argument, bf16, check_type, current_stream, empty_like, own_type, rows_of

_SAFETENSORS = {'f32': 'F32', 'f16': 'F16', 'bf16': 'BF16', 'e4m3': 'F8_E4M3', 'e5m2': 'F8_E5M2'}
_BYTES = {'F32': 4, 'F16': 2, 'BF16': 2}
_PAGE = 1000
_ADDRESSES = 'http://HOST:PORT, https://HOST:PORT (a proxy) or unix:PATH'
_GPU_REGION_BYTES = 64 << 20
_JSON = 'application/json'
_TENSORS = 'application/x-safetensors'
_STREAM = 'application/x-ndjson'
_NAMED = re.compile('/v1/(?:sequences|leases|workloads)/([0-9]+)')
_NODE_SHIFT = 40  # of an id


class _Closing:
    """A connection that is closed with its thread."""

    def __del__(self):
        self.close()


class _TcpConnection(_Closing, http.client.HTTPConnection):
    pass


class _TlsConnection(_Closing, http.client.HTTPSConnection):
    pass


class _UnixConnection(_Closing, http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path, timeout):
        super().__init__('localhost', timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _Tensors:
    """A safetensors body that is being made."""

    def __init__(self):
        self._header, self._parts, self._bytes = {}, [], 0

    def value(self, name, dtype, argument, data):
        """q, k, v or o: an Argument, or other bytes of its shape."""
        self.add(name, _SAFETENSORS[dtype], argument.shape, _bytes_of(argument) if data is None else data)

    def add(self, name, dtype, shape, data):
        n = len(data)
        self._header[name] = {'dtype': dtype, 'shape': list(shape), 'data_offsets': [self._bytes, self._bytes + n]}
        self._parts.append(data)
        self._bytes += n

    def integers(self, name, values, length=None):
        if values is None:
            return
        values = integers_of(values, name).astype(numpy.int64)
        if length is not None and len(values) != length:
            raise _invalid(f'{name}: wants {length} numbers, has {len(values)}')
        self.add(name, 'I64', values.shape, values.tobytes())

    def body(self):
        header = json.dumps(self._header).encode()
        header += b' ' * (-len(header) % 8)
        return b''.join([len(header).to_bytes(8, 'little'), header, *self._parts])


def _read_tensors(body):
    """{name: (dtype, shape, bytes)} and the metadata of a safetensors body."""
    n = int.from_bytes(body[:8], 'little')
    header = json.loads(body[8 : 8 + n])
    metadata = header.pop('__metadata__', {})
    data = memoryview(body)[8 + n :]
    return {name: (t['dtype'], tuple(t['shape']), data[slice(*t['data_offsets'])]) for name, t in header.items()}, metadata


def _array(dtype, shape, data):
    if dtype == 'BF16':
        return numpy.frombuffer(data, numpy.uint16).reshape(shape).view(bf16)
    return numpy.frombuffer(data, {'F32': numpy.float32, 'F16': numpy.float16}[dtype]).reshape(shape)


def _bytes_of(argument):
    """The bytes of a tensor in host memory."""
    t = argument.tensor
    if t.device_type not in (1, 3):
        raise _invalid('tensors on a device cannot be sent: copy them to host memory')
    n = t.dtype_bits // 8
    for i in range(t.ndim):
        n *= t.shape[i]
    return ctypes.string_at(t.data + t.byte_offset, n) if n else b''


def _encoded(document):
    try:
        return json.dumps(document).encode()
    except (TypeError, ValueError) as e:
        raise _invalid(str(e)) from None


def _as_engine(method: Callable) -> Callable:
    """The documentation of Engine's method of this name, before what there is of its own."""
    own, of = method.__doc__, getattr(Engine, method.__name__).__doc__
    method.__doc__ = f'{of}\n\n        {own}' if own else of
    return method


class RemoteTicket:
    """A call that is under way, behind those with wait=False before it."""

    def __init__(self, future):
        self._future = future

    def done(self) -> bool:
        """Whether it is done."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> Any:
        """As Ticket.result()."""
        try:
            return self._future.result(timeout)
        except concurrent.futures.TimeoutError:
            raise TimeoutError(f'not done within {timeout} s') from None


class Report(dict):
    """How a workload went, as the daemon reports it. record(): one level deep, for a row of a table."""

    def record(self) -> dict[str, Any]:
        """A flat dictionary: {'tokens': {'done': 3}} is {'tokens_done': 3}."""
        flat = {}
        for name, value in self.items():
            if isinstance(value, dict):
                flat.update({f'{name}_{k}': v for k, v in value.items() if not isinstance(v, (dict, list))})
            elif not isinstance(value, list):
                flat[name] = value
        return flat


class Client:
    """A daemon, at a URL (http://, or https:// of a proxy) or a unix socket ("unix:/run/attnd.sock"), with the methods of Engine.

    address: of the daemon: "http://HOST:PORT", "https://HOST:PORT" or "unix:PATH".
    key: an API key.
    timeout: seconds that an answer may take to begin, and go on.
    registered: the socket of the daemon's transport.listen, or True: where it says that it is. append() and attend() go by memory that is
        registered with the daemon then, with the same results; all else by HTTP.
    region_bytes: of the memory that tensors are copied to which are not in a register()ed region.
    gpu_region_bytes: of such memory on a GPU, of which there is one for each GPU that tensors come from; absent: 64 MiB, or half of
        transport.gpu_bytes.

    Threads may share a client: each has a connection. One that the daemon has closed meanwhile is opened again."""

    def __init__(self, address: str = 'http://127.0.0.1:8400', *, key: str | None = None, timeout: float = 600,
                 registered: str | bool | None = None, region_bytes: int = 16 << 20, gpu_region_bytes: int | None = None) -> None:
        if not isinstance(address, str):
            raise _invalid(f'address: wants {_ADDRESSES}, has {address!r:.60}')
        self._address = address
        self._unix = address[5:] if address.startswith('unix:') else None
        if self._unix is None:
            url = urllib.parse.urlsplit(address)
            if url.scheme not in ('http', 'https') or not url.hostname or url.path not in ('', '/'):
                raise _invalid(f'{address}: wants {_ADDRESSES}')
            self._secure, self._host, self._port = url.scheme == 'https', url.hostname, url.port
        self._headers = {'Authorization': f'Bearer {key}'} if key else {}
        self._timeout = timeout
        self._here = threading.local()
        self._opened, self._lock = weakref.WeakSet(), threading.Lock()
        self._process = os.getpid()
        self.orphans = collections.deque()  # sequences that are deleted by the next call
        self._last = None  # of the calls with wait=False
        self._pool = self._rings = None
        self.gpu_rows = 0  # of a call whose tensors are on a GPU, so that half of the region is enough for them
        self._reached = {}  # by the number of a GPU: see takes_gpu()
        self.is_closed = False
        info = self._ask('GET', '/v1/info')
        g, backend, limits = info['geometry'], info['backend'], info['limits']
        self.info, self.geometry = info, g
        self.description = Description(
            **{n: g[n] for n in ('layers', 'query_heads', 'kv_heads', 'head_dim', 'block_size', 'dtype', 'kv_dtype')},
            **{n: limits[n] for n in ('sequence_tokens', 'rows_per_call', 'calls')},
            **{n: backend[n] for n in ('bit_stable', 'threads', 'isa', 'device')},
            blocks=info['pool']['blocks'],
            backend=backend['name'],
            kernel=info['kernels']['attend'],
            gpu=-1,
            stream_rows=0,
        )
        self._own = own_type(g['dtype'])
        if registered is True:
            registered = info.get('transport', {}).get('listen')
            if registered is None:
                raise _invalid('registered: the daemon has no transport.listen')
        if registered:
            path = registered[5:] if registered.startswith('unix:') else registered
            transport = info.get('transport', {})
            gpu_region_bytes = gpu_region_bytes or min(_GPU_REGION_BYTES, max(transport.get('gpu_bytes', 0) // 2, 1))
            self.gpu_rows = min(transport.get('gpu_rows', 0), gpu_region_bytes // 2 // self._row_bytes())
            self._rings = Rings(path, key, self.description, region_bytes, gpu_region_bytes, timeout)

    # ---- HTTP

    def _connect(self):
        if self._unix is not None:
            connection = _UnixConnection(self._unix, self._timeout)
        else:
            kind = _TlsConnection if self._secure else _TcpConnection
            connection = kind(self._host, self._port, timeout=self._timeout)
        connection.connect()
        if connection.sock.family != socket.AF_UNIX:
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._opened.add(connection)
        return connection

    def _drop(self):
        connection, self._here.connection = getattr(self._here, 'connection', None), None
        if connection is not None:
            connection.close()
            with self._lock:
                self._opened.discard(connection)

    def _unreachable(self, e):
        """What goes wrong with a connection, as an Error that says where."""
        if isinstance(e, Error):
            return e
        if isinstance(e, socket.timeout):
            return error_of({'code': 'deadline', 'detail': f'{self._address}: no answer within {self._timeout} s'})
        hint = 'attnd serves http://, https:// is that of a proxy' if isinstance(e, ssl.SSLError) else 'is attnd running?'
        return error_of({'code': 'unreachable', 'detail': f'{self._address}: {e or type(e).__name__}; {hint}'})

    def _send(self, method, path, body, headers, about=None):
        """As _exchange(), with the errors of connections as ours. Proxies route by X-Attnd-Node, and an id begins with its node: that in
        the path, or `about`, which the body names."""
        named = _NAMED.match(path)
        id = int(named[1]) if named else about
        if id:
            headers = {**headers, 'X-Attnd-Node': f'n{id >> _NODE_SHIFT}'}
        try:
            return self._exchange(method, path, body, headers)
        except (OSError, http.client.HTTPException) as e:
            raise self._unreachable(e) from e

    def _exchange(self, method, path, body, headers):
        """The answer, its body not read. A connection that was closed while it was idle is opened again. What only looks is asked again
        where a connection ends in the middle; of anything else nobody knows then whether it was done."""
        if self.is_closed:
            raise _invalid('the client is closed')
        if self._process != os.getpid():  # the connections are the parent's
            self._here, self._opened, self._process = threading.local(), weakref.WeakSet(), os.getpid()
        while True:
            connection = getattr(self._here, 'connection', None)
            if connection is not None and (connection.sock is None or select.select([connection.sock], [], [], 0)[0]):
                self._drop()
                connection = None
            reused = connection is not None
            if not reused:
                connection = self._here.connection = self._connect()
            try:
                connection.request(method, path, body, {**self._headers, **headers})
                return connection.getresponse()
            except (ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected):
                self._drop()
                if not reused or method != 'GET':
                    raise
            except BaseException:
                self._drop()
                raise

    def _answer(self, response):
        try:
            body = response.read()
        except (OSError, http.client.HTTPException) as e:
            self._drop()
            raise self._unreachable(e) from e
        if response.will_close:
            self._drop()
        if response.status < 400:
            return body
        try:
            problem = json.loads(body)
        except ValueError:
            problem = {'code': 'http', 'status': response.status, 'detail': body.decode(errors='replace')[:200] or response.reason}
        raise error_of(problem)

    def _bury(self):
        """Delete what nobody has any more."""
        for id in taken(self.orphans):
            self._send('DELETE', f'/v1/sequences/{id}', None, {}).read()

    def _ask(self, method, path, document=None, about=None):
        self._bury()
        headers = {} if document is None else {'Content-Type': _JSON}
        body = None if document is None else _encoded(document)
        answer = self._answer(self._send(method, path, body, headers, about))
        return json.loads(answer) if answer else None

    def _compute(self, path, parameters, tensors, about=None):
        self._bury()
        query = urllib.parse.urlencode({k: v for k, v in parameters.items() if v is not None})
        body = tensors.body()
        return self._answer(self._send('POST', f'{path}?{query}' if query else path, body, {'Content-Type': _TENSORS}, about))

    def close(self) -> None:
        """Close the connections. Sequences stay, until they are deleted or idle for too long."""
        if self._pool is not None:
            self._pool.shutdown()
        if self._rings is not None:
            self._rings.close()
        self.is_closed = True
        with self._lock:
            for connection in list(self._opened):
                connection.close()
            self._opened.clear()
        self._here = threading.local()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self) -> str:
        return f'<attnd.Client {self._address}{", closed" if self.is_closed else ""}>'

    # ---- sequences

    @staticmethod
    def _creation(tokens, id, max_tokens, priority, salt):
        document = {'id': id, 'max_tokens': max_tokens, 'priority': priority, 'salt': salt}
        document = {k: v for k, v in document.items() if v}
        if tokens is not None:
            document['tokens'] = integers_of(tokens, 'tokens').tolist()
        return document

    @staticmethod
    def _created(answer):
        id = SequenceId(answer['id'])
        id.cached = answer['cached_tokens']
        return id

    @_as_engine
    def create(self, tokens: Integers | None = None, *, id: int = 0, max_tokens: int = 0, priority: int = 0,
               salt: str | None = None) -> SequenceId:
        return self._created(self._ask('POST', '/v1/sequences', self._creation(tokens, id, max_tokens, priority, salt), id))

    @staticmethod
    def _fork(count, length, ids):
        document = {'count': numpy.size(ids) if ids is not None else 1 if count is None else integer(count, 'count', FORKS_MAX, 1)}
        if length is not None and length != ALL:
            document['length'] = integer(length, 'length')
        if ids is not None:
            document['ids'] = integers_of(ids, 'ids').tolist()
        return document

    @_as_engine
    def fork(self, sequence: int, count: int | None = None, *, length: int | None = None,
             ids: Integers | None = None) -> SequenceId | list[SequenceId]:
        answer = self._ask('POST', f'/v1/sequences/{id_of(sequence)}/fork', self._fork(count, length, ids))
        forks = [SequenceId(s['id']) for s in answer['sequences']]
        return forks[0] if count is None and ids is None else forks

    @_as_engine
    def truncate(self, sequence: int, length: int) -> None:
        self._ask('POST', f'/v1/sequences/{id_of(sequence)}/truncate', {'length': integer(length, 'length')})

    @_as_engine
    def delete(self, sequence: int | Lease) -> None:
        if isinstance(sequence, Lease):
            self._ask('DELETE', f'/v1/leases/{sequence.id}')
        else:
            self._ask('DELETE', f'/v1/sequences/{id_of(sequence)}')

    @_as_engine
    def batch(self, ops: Iterable[Mapping[str, Any]]) -> list[SequenceId | list[SequenceId] | None]:
        documents = []
        for op in ops:
            of = dict(op)
            kind = of.get('op')
            if kind == 'create':
                of.pop('op')
                of = {'op': kind, **self._creation(of.pop('tokens', None), of.pop('id', 0), of.pop('max_tokens', 0), of.pop('priority', 0),
                                                   of.pop('salt', None)), **of}
            elif kind == 'fork':
                id, of = of['id'], {k: v for k, v in of.items() if k not in ('op', 'id')}
                of = {'op': kind, 'id': int(id), **self._fork(of.pop('count', None), of.pop('length', None), of.pop('ids', None)), **of}
            documents.append(of)
        answer = self._ask('POST', '/v1/batch', {'ops': documents}, next((int(d['id']) for d in documents if d.get('id')), None))
        results = []
        for of, result in zip(documents, answer['results']):
            if of['op'] == 'create':
                results.append(self._created(result))
            elif of['op'] == 'fork':
                results.append([SequenceId(s['id']) for s in result['sequences']])
            else:
                results.append(None)
        return results

    @_as_engine
    def look(self, sequence: int) -> SequenceInfo:
        s = self._ask('GET', f'/v1/sequences/{id_of(sequence)}')
        listed = len(s['blocks']) + len(s.get('host_blocks', ()))
        blocks = len(self.blocks(sequence)) if 'blocks_next' in s else listed
        return SequenceInfo(s['id'], s['parent'] or 0, s['length'], blocks, s['shared_blocks'], s['lengths'])

    @_as_engine
    def blocks(self, sequence: int | Lease) -> list[int]:
        what = f'leases/{sequence.id}' if isinstance(sequence, Lease) else f'sequences/{id_of(sequence)}'
        ids = []
        while True:
            page = self._ask('GET', f'/v1/{what}/blocks?limit={_PAGE}&cursor={len(ids)}')
            ids += [b['block'] for b in page]
            if len(page) < _PAGE:
                return ids

    @_as_engine
    def lease(self, blocks: int) -> Lease:
        answer = self._ask('POST', '/v1/leases', {'blocks': integer(blocks, 'blocks')})
        return Lease(answer['id'], answer['blocks'])

    # ---- calls by HTTP

    def _value(self, tensors, name, array, stream=None):
        """Add q, k, v or o; float32 becomes the geometry's dtype. Returns (shape, type) as they were given."""
        argument = Argument(array, name, stream=stream, own=self._own if isinstance(tensors, Call) else None)
        own = TYPE_NAMES.get(argument.type)
        if name in ('q', 'o'):
            check_type(name, argument.type)
        data, dtype = None, own
        if argument.type == (1, 8):
            dtype = self.description.kv_dtype
        elif argument.tensor.device_type == _library.CUDA:
            pass  # the Argument is of that already
        elif own == 'f32' and self.description.dtype != 'f32':
            dtype = self.description.dtype
            numbers = numpy.frombuffer(_bytes_of(argument), numpy.float32)
            if not numpy.isfinite(numbers).all():
                raise _invalid(f'{name}: is not finite')
            if dtype == 'bf16':
                data = bf16.of(numbers).tobytes()
            else:
                data = numpy.clip(numbers, -65504, 65504).astype(numpy.float16).tobytes()
        tensors.value(name, dtype, argument, data)
        return argument.shape, argument.given

    def _outputs(self, answer, like, kind, lse, out, dtype):
        tensors, _ = _read_tensors(answer)
        return self._arrays(_array(*tensors['o']), _array(*tensors['lse']) if lse else None, like, kind, out, dtype)

    def _arrays(self, o, l, like, kind, out, dtype):
        """o, and lse unless it is None, as the caller wants them. They may be in memory that is used again."""
        kind = _wanted_dtype(dtype, kind)
        if out is not None:
            self._copy(Argument(out, 'out', writes=True), o)
            o = out
        elif hasattr(like, 'new_empty'):
            target = empty_like(like, o.shape, kind)
            self._copy(Argument(target, 'out', writes=True), o)
            o = target
        else:
            o = self._as(o, kind)
        if l is None:
            return o
        if hasattr(like, 'new_empty'):
            target = empty_like(like, l.shape, (2, 32))
            self._copy(Argument(target, 'lse', writes=True), l)
            return o, target
        return o, l.copy()

    @staticmethod
    def _as(o, kind):
        """An array of a type, as one that can be written."""
        numbers = o.float32() if isinstance(o, bf16) else o
        if kind == (4, 16):
            return o.copy() if isinstance(o, bf16) else bf16.of(numbers)
        return numbers.astype({(2, 32): numpy.float32, (2, 16): numpy.float16}[kind])

    def _copy(self, argument, o):
        if argument.tensor.device_type == _library.CUDA:
            raise _invalid('out: lies on a GPU, and q in host memory')
        if argument.shape != o.shape:
            raise _invalid(f'out: wants the shape {list(o.shape)}, has {list(argument.shape)}')
        data = self._as(o, argument.type).tobytes()
        ctypes.memmove(argument.tensor.data + argument.tensor.byte_offset, data, len(data))

    def _run(self, call, wait):
        """In the order in which they are asked for, as an engine does."""
        with self._lock:
            if self._pool is None and not wait:
                self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix='attnd')
            last = self._last
            if not wait:
                last = self._last = self._pool.submit(call)
        if not wait:
            last.add_done_callback(self._forget)
            return RemoteTicket(last)
        if last is not None:
            concurrent.futures.wait([last])
        return call()

    def _forget(self, future):
        """Keep no outputs of a call that is done: they may lie in a region."""
        with self._lock:
            if self._last is future:
                self._last = None

    def _layer(self, layer, all_layers=False):
        if layer is None and not all_layers and self.description.layers > 1:
            raise _invalid(f'layer: is missing: there are layers 0..{self.description.layers - 1}')
        return layer if layer is None else integer(layer, 'layer')

    def _row_count(self, name, array, shape, all_layers=False):
        d = self.description
        return rows_of(name, array, shape, d.query_heads if name == 'q' else d.kv_heads, d.head_dim, d.layers if all_layers else None)

    @staticmethod
    def _sequences(tensors, sequences, rows, counts, positions, tokens):
        single = is_single(sequences)
        ids = [int(i) for i in integers_of(sequences, 'sequences')]
        if any(i < 0 for i in ids):
            raise _invalid(f'sequences: entry {[i < 0 for i in ids].index(True)}: {min(ids)} is out of range')
        counts = [rows] if counts is None and single else counts
        tensors.integers('sequences', ids)
        if counts is not None:
            counts = integers_of(counts, 'counts')
            if len(counts) != len(ids):
                raise _invalid(f'counts: wants {len(ids)} numbers, has {len(counts)}')
            tensors.integers('indptr', numpy.concatenate([[0], numpy.cumsum(counts)]))
        tensors.integers('positions', positions, len(ids))
        if tokens is not None:
            tensors.integers('token_ids', tokens, rows)
        return ids[0] if ids else None

    # ---- calls by registered memory

    def register(self, bytes_: int, *, device: int | None = None) -> Region | GpuRegion:
        """Memory that the daemon reads and writes, for calls without a copy of this side: a Region. Wants `registered`.

        bytes_: how many.
        device: a GPU, by its number here: memory of the daemon's GPU, mapped for this one, which may be the same or another: a
            GpuRegion."""
        rings = self._of_rings()
        return rings.register(bytes_) if device is None else rings.register_on_gpu(bytes_, device)

    def register_ipc(self, tensor: Array) -> IpcRegion:
        """Hand the daemon a tensor of one's own on a GPU, by a handle of CUDA IPC: an IpcRegion. Calls whose tensors all lie in it, as it or as
        views of it, and whose o goes to `out` there, use them where they are. Wants `registered`, and a daemon with transport.trust_clients.

        tensor: of any shape, contiguous, in memory of cudaMalloc(), as PyTorch's is. It may lie anywhere in an allocation, of which the daemon is
            given as much as ends with it, and which counts for transport.gpu_bytes."""
        return self._of_rings().register_ipc(tensor)

    def _of_rings(self):
        if self._rings is None:
            raise _invalid('registered: the client was made without it')
        return self._rings

    def empty(self, shape: int | Sequence[int], dtype: Any = None, *, device: Any = None) -> Array:
        """A new tensor of PyTorch's in memory of the daemon's GPU, which calls use where it is. Wants `registered`.

        shape: of the tensor, integers.
        dtype: 'f32', 'f16', 'bf16' or a dtype of PyTorch's; absent: the geometry's.
        device: PyTorch's, or a number; absent: the current one. GpuRegion.empty() has the rest."""
        import torch

        index = device if isinstance(device, int) or device is None else torch.device(device).index
        region = self._of_rings().gpu_region_of(torch.cuda.current_device() if index is None else index)
        return region.empty(shape, dtype or self.description.dtype)

    def _row_bytes(self):
        d = self.description
        return 2 * (d.query_heads + d.kv_heads) * d.head_dim * (4 if d.dtype == 'f32' else 2) + 4 * d.query_heads

    def takes_gpu(self, device: int) -> bool:
        """Whether calls take tensors on a GPU, by its number here (`device`): `registered`, a daemon with regions of GPU memory, and a GPU
        that reaches them. The region for it is made now."""
        if self._rings is None or not self.gpu_rows:
            return False
        if device not in self._reached:
            try:
                self._reached[device] = self._rings.gpu_region_of(device) is not None
            except (UnsupportedError, DeviceError):
                self._reached[device] = False
            except Error as e:
                if e.code != 'forbidden':  # under MPS, by a daemon that trusts nobody
                    raise
                self._reached[device] = False
        return self._reached[device]

    def prepare_step(self, sequences: Integers, device: int) -> Step:
        """attend() of one token of each sequence, with k and v, as a function of the layer, the addresses of q, k and v on a GPU, and their
        stream: for callers that make it again and again, and have looked at shapes and dtypes. It returns a GpuArray.

        sequences: [n] ids, integers.
        device: the GPU, by its number here."""
        return Step(self._of_rings(), sequences, device)

    def _fill(self, call, sequences, arrays, counts, positions, tokens, stream):
        """Name sequences and tensors; the type of the first one, as it was given."""
        shapes = {name: self._value(call, name, array, stream) for name, array in arrays.items() if array is not None}
        name, (shape, kind) = next(iter(shapes.items()))
        rows = self._row_count(name, arrays[name], shape, call.kind == APPEND)
        self._layer(call.layer, call.kind == APPEND and len(shape) == 4)
        self._sequences(call, sequences, rows, counts, positions, tokens)
        if tokens is not None and 'k' not in shapes:
            raise _invalid('token_ids: belongs to k and v, which are missing')
        return kind

    @staticmethod
    def _stream(call, stream, array):
        """On which the tensors of a call have been written: PyTorch's current one, or, of others, the default one."""
        if call.device is None or stream is not None:
            return stream
        stream = current_stream(array)
        return gpu.LEGACY_STREAM if stream is None else stream

    def _append_by_ring(self, sequences, arrays, layer, counts, positions, tokens, wait, stream, retry):
        call = Call(self._rings, APPEND, layer, retry=retry)
        self._fill(call, sequences, arrays, counts, positions, tokens, stream)
        fields = call.build(stream=self._stream(call, stream, arrays['k']))
        return self._run(lambda: self._rings.call(call, fields) or call.release(), wait)

    def _attend_by_ring(self, sequences, arrays, layer, counts, positions, tokens, lse, out, dtype, kernel, wait, stream, retry):
        call = Call(self._rings, ATTEND, layer, kernel, retry)
        q = arrays['q']
        kind = self._fill(call, sequences, arrays, counts, positions, tokens, stream)
        stream = self._stream(call, stream, q)
        if call.device is not None and out is None:
            out = self._wide_output(q, dtype, kind)
        fields = call.build(lse, None if out is None else Argument(out, 'out', writes=True, stream=stream, own=self._own), stream)

        def run():
            self._rings.call(call, fields)
            try:
                if call.device is not None:
                    return self._outputs_on_gpu(call, lse, out, hasattr(q, 'new_empty'))
                if call.in_place:
                    return (out, call.output('lse').copy()) if lse else out
                return self._arrays(call.output('o'), call.output('lse') if lse else None, q, kind, out, dtype)
            finally:
                call.release()

        return self._run(run, wait)

    def _wide_output(self, q, dtype, given):
        """A tensor on a GPU for o of float32, where it is of the geometry's 16 bits in a region; None: none is wanted."""
        wide = dtype == 'f32' or dtype is None and given == F32
        if dtype not in (None, 'f32', self.description.dtype):
            raise _invalid(f'dtype: on a GPU o is of {self.description.dtype}, the geometry\'s, or of f32')
        if not wide or self._own is None:
            return None
        if not hasattr(q, 'new_empty'):
            raise _invalid(f'dtype: on a GPU only PyTorch\'s tensors are converted: here o is of {self.description.dtype}')
        return empty_like(q, q.shape, F32)

    @staticmethod
    def _outputs_on_gpu(call, lse, out, is_torch):
        """Outputs in a region of GPU memory, as they are, or in `out`."""
        if out is not None and not call.in_place:
            call.copy_out()
        arrays = [call.array(name) for name in (['o'] if out is None else []) + (['lse'] if lse else [])]
        results = ([] if out is None else [out]) + [a.torch() if is_torch else a for a in arrays]
        return tuple(results) if lse else results[0]

    # ---- calls

    @_as_engine
    def append(self, sequences: int | Integers, k: Array, v: Array, *, layer: int | None = None, counts: Integers | None = None,
               positions: Integers | None = None, tokens: Integers | None = None, wait: bool = True, stream: int | None = None,
               retry: bool = False) -> RemoteTicket | None:
        """Of a client: tensors on a GPU want `registered`. Those that lie in a region of GPU memory are used where they are, others are
        copied into one. What their stream has been given so far is waited for. retry: of such; of others rows that stand are compared
        always."""
        if self._rings is not None:
            return self._append_by_ring(sequences, {'k': k, 'v': v}, layer, counts, positions, tokens, wait, stream, retry)
        tensors = _Tensors()
        shape, _ = self._value(tensors, 'k', k)
        self._value(tensors, 'v', v)
        about = self._sequences(tensors, sequences, self._row_count('k', k, shape, True), counts, positions, tokens)
        parameters = {'layer': self._layer(layer, len(shape) == 4)}
        return self._run(lambda: self._compute('/v1/append', parameters, tensors, about) and None, wait)

    @_as_engine
    def attend(self, sequences: int | Integers, q: Array, *, k: Array | None = None, v: Array | None = None, layer: int | None = None,
               counts: Integers | None = None, positions: Integers | None = None, tokens: Integers | None = None,
               lse: bool = False, out: Array | None = None, dtype: str | None = None, kernel: int = 0, wait: bool = True,
               stream: int | None = None, retry: bool = False) -> Array | tuple[Array, Array] | RemoteTicket:
        """Of a client: tensors on a GPU are as in append(); o and lse are complete on return, for any stream, and new ones lie in the
        region, whose memory they take as long as somebody has them."""
        _wanted_dtype(dtype, None)
        if self._rings is not None:
            return self._attend_by_ring(sequences, {'q': q, 'k': k, 'v': v}, layer, counts, positions, tokens, lse, out, dtype, kernel, wait, stream,
                                        retry)
        tensors = _Tensors()
        shape, kind = self._value(tensors, 'q', q)
        for name, array in (('k', k), ('v', v)):
            if array is not None:
                self._value(tensors, name, array)
        about = self._sequences(tensors, sequences, self._row_count('q', q, shape), counts, positions, tokens)
        parameters = {'layer': self._layer(layer), 'lse': int(lse) or None, 'kernel': [None, 'paged_v1', 'paged_v2'][kernel]}
        return self._run(lambda: self._outputs(self._compute('/v1/attend', parameters, tensors, about), q, kind, lse, out, dtype), wait)

    @_as_engine
    def paged(self, lease: int | Lease, q: Array | None = None, block_tables: Array | None = None,
              context_lens: Integers | None = None, *, indptr: Integers | None = None, k: Array | None = None,
              v: Array | None = None, slot_mapping: Integers | None = None, layer: int | None = None, lse: bool = False,
              out: Array | None = None, dtype: str | None = None, kernel: int = 0,
              wait: bool = True) -> Array | tuple[Array, Array] | RemoteTicket | None:
        _wanted_dtype(dtype, None)
        tensors, kind = _Tensors(), None
        for name, array in (('q', q), ('k', k), ('v', v)):
            if array is not None:
                _, of = self._value(tensors, name, array)
                kind = kind or of
        if block_tables is not None:
            tables = numpy.asarray(block_tables, numpy.int32)
            tensors.add('block_tables', 'I32', tables.shape, tables.tobytes())
        for name, values in (('context_lens', context_lens), ('indptr', indptr), ('slot_mapping', slot_mapping)):
            tensors.integers(name, values)
        parameters = {'lease': lease.id if isinstance(lease, Lease) else lease, 'layer': self._layer(layer),
                      'lse': int(lse) or None, 'kernel': [None, 'paged_v1', 'paged_v2'][kernel]}

        def call():
            answer = self._compute('/v1/paged', parameters, tensors, parameters['lease'])
            return None if q is None else self._outputs(answer, q, kind, lse, out, dtype)

        return self._run(call, wait)

    @_as_engine
    def merge(self, o: Array, lse: Array) -> tuple[Array, Array]:
        tensors = _Tensors()
        _, kind = self._value(tensors, 'o', o)
        argument = Argument(lse, 'lse')
        tensors.add('lse', 'F32', argument.shape, _bytes_of(argument))
        return self._outputs(self._compute('/v1/merge', {}, tensors), o, kind, True, None, None)

    # ---- workloads

    def run(self, workload: Mapping[str, Any], *, progress: bool | None = None) -> Report:
        """Run a workload to its end. Returns a Report.

        workload: a dictionary, as docs/WORKLOADS.md has it.
        progress: a bar on stderr; absent: if that is a terminal."""
        bar = sys.stderr.isatty() if progress is None else progress
        response = self._send('POST', '/v1/workloads', _encoded(workload), {'Content-Type': _JSON, 'Accept': _STREAM})
        if response.status >= 400:
            self._answer(response)
        report = None
        try:
            for line in response:
                report = json.loads(line)
                if bar:
                    _show(report)
        except (OSError, http.client.HTTPException) as e:
            raise self._unreachable(e) from e
        finally:
            if bar:
                sys.stderr.write('\n')
            self._drop()  # an interrupted stream cancels its workload
        if report is None or report.get('state') not in ('finished', 'cancelled', 'failed'):
            raise Error({'code': 'cut', 'detail': 'the stream ended ahead of the workload'})
        return Report(report)

    # ---- looking

    @_as_engine
    def stats(self) -> Stats:
        s = self._ask('GET', '/stats?limit=1')
        pool, scheduler = s['pool'], s['scheduler']
        return Stats(
            **{f'blocks_{n}': pool[n] for n in ('free', 'cached', 'held', 'fenced', 'shared')},
            sequences=s['sequences']['count'],
            tokens_logical=pool['tokens_logical'],
            tokens_physical=pool['tokens_physical'],
            forks=s['counters']['forks'],
            copies_on_write=s['counters']['cow_copies'],
            steps=scheduler['steps'],
            roof_gb_per_s=scheduler['roof_gb_per_s'],
        )

    @_as_engine
    def audit(self) -> None:
        self._ask('POST', '/v1/audit')


def _show(report):
    """A bar of how far a workload is."""
    tokens = report['tokens']
    part = tokens['done'] / tokens['total'] if tokens['total'] else 1
    filled = int(part * 30)
    sys.stderr.write(f'\r[{"#" * filled}{"." * (30 - filled)}] {part:4.0%}  {tokens["done"]} tokens, {report["steps"]} steps, '
                     f'{report["wall_s"]:.1f} s ')
    sys.stderr.flush()
