# SPDX-License-Identifier: Apache-2.0
"""Registered memory with a daemon: appends and attends by a ring in shared memory (docs/TRANSPORTS.md), for Client.

Tensors of a call lie in host memory, or on one GPU: in a region of such memory, where they are or as a copy. Lists are in host memory always.
A GPU's stream is waited for before the call is put, as the daemon's knows nothing of it; when the completion is there outputs are.

Memory order. This is for x86-64, where stores are seen in the order in which they were made, and loads are made in order: a call is written
before the index that counts it, and a completion read after it. What x86-64 does move is a load ahead of an earlier store. That
matters twice: `asleep` must be read after the index was written, for which a lock is taken and given back, an instruction with the prefix
`lock`, which is a full fence; and `waiting` must be written before done_tail is looked at once more, which FUTEX_WAIT does itself. Elsewhere
such order would have to be asked for, and Python cannot: there use HTTP, or C.
"""
import array
import contextlib
import ctypes
import math
import mmap
import os
import platform
import select
import socket
import struct
import threading
import time
import weakref

import numpy

from . import _library, gpu
from .engine import _invalid, integers_of
from .errors import Error, ForkedError, UnsupportedError, error_of
from .regions import GpuRegion, IpcRegion, Region
from .tensors import TYPE_NAMES, Argument, bf16

_VERSION = 1
_HELLO, _REGION, _CLOSE_REGION, _GPU_REGION, _IPC_REGION = 1, 2, 4, 6, 8
_MESSAGE = struct.Struct('<IIQII228sI')
_ANSWER = struct.Struct('<IIIIQ32s264s')
_CALL = struct.Struct('<QIIIIIIIIIIQQQQQQQQQQ')
_COMPLETION = struct.Struct('<QIIddQ32s184s')
_CALLS, _RING_BYTES = 64, 28672
_CALLS_AT, _COMPLETIONS_AT = 4096, 12288
_WORDS = ('calls_tail', 'calls_head', 'asleep', 'done_tail', 'done_head', 'waiting')
_CUDA_HOST = 3  # DLPack's kDLCUDAHost
_NONE, _ALL = 2**64 - 1, 2**32 - 1
APPEND, ATTEND = 1, 2
_SYS_FUTEX, _FUTEX_WAIT = 202, 0
_GPU_ALIGNMENT = 8  # of tensors in a region of GPU memory
_LOOK_S = 0.00005  # at the ring, before it sleeps
_SLEEP_S = 1  # between two looks whether the daemon is there


class _Timespec(ctypes.Structure):
    _fields_ = [('seconds', ctypes.c_long), ('nanoseconds', ctypes.c_long)]


def _text(bytes_):
    return bytes_.split(b'\0', 1)[0].decode(errors='replace')


class Call:
    """An append or attend that is being made: it takes what a body of HTTP's would."""

    def __init__(self, rings, kind, layer, kernel=0, retry=False):
        self._rings, self.kind, self.kernel, self.retry = rings, kind, kernel, retry
        self.layer = layer
        self.device = None  # the GPU of its tensors, by its number here; None: they are in host memory
        self.lists = {}
        self.values = {}  # name: (dtype, shape, address, bytes, what keeps them)
        self.region = self.gpu_region = None
        self._taken = []  # pieces: (region, offset, bytes)

    def integers(self, name, values, length=None):
        if values is None:
            return
        values = integers_of(values, name).astype(numpy.int64)
        if length is not None and len(values) != length:
            raise _invalid(f'{name}: wants {length} numbers, has {len(values)}')
        if name == 'indptr':
            name, values = 'counts', numpy.diff(values)
        if len(values) and not 0 <= values.min() <= values.max() < (2**63 if name == 'sequences' else 2**32):
            raise _invalid(f'{name}: wants numbers in 0..{2**63 - 1 if name == "sequences" else 2**32 - 1}')
        self.lists[name] = values.astype(numpy.uint64 if name == 'sequences' else numpy.uint32)

    def value(self, name, dtype, argument, data):
        """q, k or v: an Argument in host memory or on a GPU, or other bytes of its shape."""
        t = argument.tensor
        device = self._device_of(name, argument)
        if self.values and device != self.device:
            raise _invalid(f'{name}: lies {_place(device)}, and {next(iter(self.values))} {_place(self.device)}: tensors of a call lie together')
        self.device = device
        if data is None:
            n = math.prod(argument.shape) * (t.dtype_bits // 8)
            self.values[name] = dtype, argument.shape, t.data + t.byte_offset, n, argument
        else:
            keep = numpy.frombuffer(data, numpy.uint8)
            self.values[name] = dtype, argument.shape, keep.ctypes.data, len(data), keep

    @staticmethod
    def _device_of(name, argument):
        t = argument.tensor
        if t.device_type not in (_library.HOST, _library.CUDA, _CUDA_HOST):
            raise _invalid(f'{name}: is on a device that is neither the host nor a GPU of NVIDIA\'s')
        return t.device_id if t.device_type == _library.CUDA else None

    def _check(self, rows):
        """Shapes and types, which the daemon cannot see."""
        d = self._rings.description
        for name, (dtype, shape, *_) in self.values.items():
            heads = d.query_heads if name == 'q' else d.kv_heads
            wants = (rows, heads, d.head_dim)
            layered = self.kind == APPEND and len(shape) == 4
            dtypes = {d.dtype} if name == 'q' else {d.dtype, d.kv_dtype}
            if shape != ((d.layers, *wants) if layered else wants) or dtype not in dtypes:
                raise _invalid(f'{name}: wants {" or ".join(sorted(dtypes))} {list((d.layers, *wants) if layered else wants)}, '
                               f'has {dtype} {list(shape)}')
        if 'k' in self.values or 'v' in self.values:
            if 'k' not in self.values or 'v' not in self.values:
                raise _invalid(f'{"v" if "k" in self.values else "k"}: is missing: k and v come together')
            if self.values['k'][:2] != self.values['v'][:2]:
                raise _invalid('v: wants the dtype and shape of k')
            if len(self.values['k'][1]) == 4 and self.layer is not None:
                raise _invalid('layer: goes with k and v of one layer, and these have all')

    def _room(self, region, n):
        at = region.take(n, self.stream)
        if at is None:
            raise error_of({'code': 'busy', 'detail': f'the region of {region.bytes} bytes has no {n} more for this call: register() a larger one'})
        self._taken.append((region, at, n))
        return at

    def _place(self, address, n):
        """Where the daemon finds bytes of host memory: where they are, or a copy."""
        at = self.region.offset_of(address, n)
        if at is None:
            at = self._room(self.region, n)
            ctypes.memmove(self.region.address + at, address, n)
        return at

    def _place_on_gpu(self, address, n):
        """Likewise on a GPU, whose stream makes the copy."""
        at = self.gpu_region.offset_of(address, n)
        if at is None or at % _GPU_ALIGNMENT:
            at = self._room(self.gpu_region, n)
            if n:
                gpu.driver().copy(self.gpu_region.address + at, address, n, self.stream)
        return at

    def build(self, lse=False, out=None, stream=None):
        """Place everything in a region; what _Rings.call() writes down. `out`: an Argument into which o is written. `stream`: that of tensors on
        a GPU, on which they will have been written; it is waited for."""
        d = self._rings.description
        self._rings.check()
        n = len(self.lists['sequences'])
        rows = int(self.lists['counts'].sum()) if 'counts' in self.lists else n
        self._check(rows)
        if out is not None and self._device_of('out', out) != self.device:
            raise _invalid(f'out: lies {_place(self._device_of("out", out))}, and q {_place(self.device)}: tensors of a call lie together')
        self.o_shape, self.out, self.stream = (rows, d.query_heads, d.head_dim), out, stream
        try:
            at = self._build_lists()
            at.update(self._tensors(lse) if self.device is None else self._tensors_on_gpu(lse))
        except BaseException:
            self.release(stream)  # which may have copies under way
            raise
        layer = _ALL if self.kind == APPEND and len(self.values['k'][1]) == 4 else self.layer or 0
        self.at = at
        stored = 'k' in self.values and self.values['k'][0] != d.dtype
        tensors = 0 if self.gpu_region is None else self.gpu_region.number + 1
        return (self.kind, self.region.number, layer, self.kernel, int(stored), 0, n, rows, len(self.lists.get('token_ids', ())), tensors,
                *(at.get(x, _NONE) for x in ('sequences', 'counts', 'positions', 'token_ids', 'q', 'k', 'v', 'o', 'lse')), int(self.retry))

    def _build_lists(self):
        _, _, address, size, _ = next(iter(self.values.values()))
        self.region = self._rings.region_of(address, size)
        return {name: self._place(a.ctypes.data, a.nbytes) for name, a in self.lists.items() if len(a)}

    def _o_bytes(self):
        return math.prod(self.o_shape) * (4 if self._rings.description.dtype == 'f32' else 2)

    def _lse_bytes(self):
        return math.prod(self.o_shape[:2]) * 4

    def _tensors(self, lse):
        d, out = self._rings.description, self.out
        at = {name: self._place(address, size) for name, (_, _, address, size, _) in self.values.items()}
        if self.kind == ATTEND:
            here = None if out is None else self.region.offset_of(out.tensor.data + out.tensor.byte_offset, self._o_bytes())
            self.in_place = here is not None and out.shape == self.o_shape and d.dtype == TYPE_NAMES.get(out.type)
            at['o'] = here if self.in_place else self._room(self.region, self._o_bytes())
            if lse:
                at['lse'] = self._room(self.region, self._lse_bytes())
        return at

    def _choose_gpu_region(self, lse):
        """All tensors have to be in one: the caller's own, if they are, and else that in which most of their bytes are."""
        out = self.out
        if out is not None and (out.shape != self.o_shape or TYPE_NAMES.get(out.type) != self._rings.description.dtype):
            raise _invalid(f'out: wants {self._rings.description.dtype} {list(self.o_shape)}, has {TYPE_NAMES.get(out.type)} {list(out.shape)}')
        spans = [(address, size) for _, _, address, size, _ in self.values.values()]
        if out is not None:
            spans.append((out.tensor.data + out.tensor.byte_offset, self._o_bytes()))
        is_all = self.kind == APPEND or out is not None and not lse
        own = self._rings.ipc_region_of(self.device, spans) if is_all else None
        self.gpu_region = own or self._rings.gpu_region_of(self.device, spans)

    def _tensors_on_gpu(self, lse):
        self._choose_gpu_region(lse)
        with gpu.driver().on(self.device):
            at = {name: self._place_on_gpu(address, size) for name, (_, _, address, size, _) in self.values.items()}
            if self.kind == ATTEND:
                here = None if self.out is None else self.gpu_region.offset_of(self.out.tensor.data + self.out.tensor.byte_offset, self._o_bytes())
                self.in_place = here is not None and here % _GPU_ALIGNMENT == 0
                at['o'] = here if self.in_place else self._room(self.gpu_region, self._o_bytes())
                if lse:
                    at['lse'] = self._room(self.gpu_region, self._lse_bytes())
            gpu.driver().wait(self.stream)  # of pieces that were taken other threads' work on it may have been the last user
        return at

    def array(self, name):
        """o or lse of a call on a GPU, as a GpuArray, whose the piece is then."""
        size = self._o_bytes() if name == 'o' else self._lse_bytes()
        self._taken.remove((self.gpu_region, self.at[name], size))
        shape, dtype = (self.o_shape, self._rings.description.dtype) if name == 'o' else (self.o_shape[:2], 'f32')
        return self.gpu_region.array(shape, dtype, self.stream, self.at[name])

    def copy_out(self):
        """o to `out`, on the stream, which is waited for: the piece may be another call's then, and `out` is read anywhere."""
        with gpu.driver().on(self.device):
            gpu.driver().copy(self.out.tensor.data + self.out.tensor.byte_offset, self.gpu_region.address + self.at['o'], self._o_bytes(), self.stream)
            self.out.widen()
            gpu.driver().wait(self.stream)

    def output(self, name):
        """o or lse, as an array that is in the region until release()."""
        d = self._rings.description
        shape = self.o_shape if name == 'o' else self.o_shape[:2]
        kind = numpy.float32 if name == 'lse' or d.dtype == 'f32' else numpy.float16 if d.dtype == 'f16' else numpy.uint16
        n = math.prod(shape) * numpy.dtype(kind).itemsize
        result = self.region.view(self.at[name], n).view(kind).reshape(shape)
        return result.view(bf16) if name == 'o' and d.dtype == 'bf16' else result

    def release(self, stream=None):
        """stream: on a GPU, one that may still use the pieces."""
        for region, at, n in self._taken:
            region.give(at, n, stream)
        self._taken = []


class Step:
    """attend() of one token a sequence, with k and v, on a GPU, again and again: lists and places stay, so that a call is three copies, a
    wait, and a slot of the ring. One thread at a time."""

    def __init__(self, rings, sequences, device):
        d, n = rings.description, len(sequences)
        self._taken, self._failed = [], None
        rings.check()
        self._rings, self._device, self._driver = rings, device, gpu.driver()
        self._lists, self._region = rings.region_of(0, 0), rings.gpu_region_of(device)
        element = 4 if d.dtype == 'f32' else 2
        heads = d.query_heads, d.kv_heads, d.kv_heads
        self._shape, self._sizes = (n, d.query_heads, d.head_dim), [n * h * d.head_dim * element for h in heads]
        ids = (ctypes.c_uint64 * n)(*sequences)
        self._ids = self._take(self._lists, 8 * n)
        ctypes.memmove(self._lists.address + self._ids, ids, 8 * n)
        self._at = [self._take(self._region, size) for size in self._sizes]

    def _take(self, region, n):
        at = region.take(n)
        if at is None:
            raise error_of({'code': 'busy', 'detail': f'the region of {region.bytes} bytes has no {n} more for a step: register() a larger one'})
        self._taken.append((region, at, n))
        return at

    def __del__(self):
        for region, at, n in self._taken:
            region.give(at, n)

    @property
    def is_open(self):
        """Whether it can be called: its regions are the daemon's, and no call of it may be under way still."""
        return not (self._lists.is_closed or self._region.is_closed or self._failed)

    def __call__(self, layer, q, k, v, stream):
        """o, of tensors by their addresses."""
        d, region = self._rings.description, self._region
        if not self.is_open:
            raise _invalid('a step whose region was closed, or that has failed, cannot be called')
        o = region.array(self._shape, d.dtype, stream)
        with self._driver.on(self._device):
            for at, address, n in zip(self._at, (q, k, v), self._sizes):
                self._driver.copy(region.address + at, address, n, stream)
            self._driver.wait(stream)
        n = self._shape[0]
        try:
            self._rings.call(self, (ATTEND, self._lists.number, layer, 0, 0, 0, n, n, 0, region.number + 1, self._ids, _NONE, _NONE, _NONE,
                                    *self._at, o.address - region.address, _NONE, 0))
        except BaseException:
            self._failed = o  # the daemon may write there still, if the time was over
            raise
        return o

    def release(self):
        """When a call has failed: its places are the step's."""


def _gone(e='the daemon is gone'):
    return error_of({'code': 'unreachable', 'detail': f'registered memory: {e}; is attnd running?'})


def _place(device):
    return 'in host memory' if device is None else f'on GPU {device}'


class Rings:
    """A client's ring and regions. Threads may share it."""

    def __init__(self, path, key, description, region_bytes, gpu_region_bytes, timeout):
        if platform.machine() != 'x86_64':
            raise UnsupportedError({'code': 'unsupported', 'detail': 'registered memory from Python is for x86-64: use HTTP here'})
        self.description, self._timeout = description, timeout
        self._region_bytes, self._gpu_region_bytes = region_bytes, gpu_region_bytes
        self._process = os.getpid()
        self._talking, self._putting, self._fence = threading.Lock(), threading.Lock(), threading.Lock()
        self._slots = threading.BoundedSemaphore(_CALLS)
        self._looking = threading.Condition()
        self._looked_at = False  # some thread waits at the ring, for all
        self._done, self._late = {}, {}
        self._tail = self._head = self._tag = 0
        self.regions, self.gpu_regions, self.ipc_regions = [], [], []
        self._making = threading.Lock()  # a region of GPU memory
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(timeout)
        try:
            self._socket.connect(path)
            _, (ring, self._bell) = self._ask(_HELLO, key=key.encode() if key else b'')
            self._ring = mmap.mmap(ring, _RING_BYTES)
            os.close(ring)
        except BaseException as e:
            self._socket.close()
            if isinstance(e, OSError) and not isinstance(e, Error):
                raise _gone(f'{path}: {e}') from e
            raise
        self._words = {name: ctypes.c_uint32.from_buffer(self._ring, 64 * i) for i, name in enumerate(_WORDS)}
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._second = _Timespec(_SLEEP_S, 0)
        weakref.finalize(self, _close, self._socket, self._bell)

    # ---- the socket

    def _ask(self, kind, size=0, region=0, key=b'', writes=0):
        """A message; its answer and descriptors."""
        if len(key) > 228:
            raise error_of({'code': 'unauthorized', 'status': 401, 'detail': 'there is no such key'})
        with self._talking:
            try:
                self._socket.send(_MESSAGE.pack(kind, _VERSION, size, region, len(key), key, writes))
            except BrokenPipeError:
                pass  # why it has ended may be said yet
            except OSError as e:
                raise _gone(e) from e
            return self._take_answer()

    def _take_answer(self):
        try:
            data, control, _, _ = self._socket.recvmsg(_ANSWER.size, socket.CMSG_SPACE(8))
        except OSError as e:
            raise _gone(e) from e
        fds = array.array('i')
        for level, type_, rights in control:
            if level == socket.SOL_SOCKET and type_ == socket.SCM_RIGHTS:
                fds.frombytes(rights[: len(rights) // 4 * 4])
        if len(data) != _ANSWER.size:
            raise _gone()
        kind, status, region, _, size, code, detail = _ANSWER.unpack(data)
        if status != 200:
            raise error_of({'code': _text(code), 'status': status, 'detail': _text(detail)})
        return (region, size), list(fds)

    def check(self):
        """Whether calls may be made."""
        if self._process != os.getpid():
            raise ForkedError({'code': 'forked', 'detail': 'the ring belongs to the process that has forked this one'})
        if self._bell < 0:
            raise _invalid('the client is closed')

    def register(self, n):
        self.check()
        (number, size), (fd,) = self._ask(_REGION, n)
        region = Region(self, number, mmap.mmap(fd, size), size)
        os.close(fd)
        self.regions.append(region)
        return region

    def register_on_gpu(self, n, device):
        """Memory of the daemon's GPU, mapped for one of this process."""
        self.check()
        gpu.driver()  # whose absence is said first
        (number, size), (fd,) = self._ask(_GPU_REGION, n)
        try:
            region = GpuRegion(self, number, fd, size, device)
        except BaseException:
            self._ask(_CLOSE_REGION, region=number)
            raise
        finally:
            os.close(fd)
        self.gpu_regions.append(region)
        return region

    def register_ipc(self, tensor):
        """Give the daemon a tensor's memory, which stays the caller's."""
        self.check()
        of = Argument(tensor, 'tensor', writes=True)
        t, n = of.tensor, math.prod(of.shape) * (of.type[1] // 8)
        if t.device_type != _library.CUDA or not n:
            raise _invalid('tensor: is empty, or not on a GPU: register() makes memory of the host')
        first = t.data + t.byte_offset
        base, handle = gpu.lend(first, t.device_id)
        size = first + n - base
        (number, _), _ = self._ask(_IPC_REGION, size, key=handle, writes=1)
        region = IpcRegion(self, number, base, first, size, t.device_id, of)
        self.ipc_regions.append(region)
        return region

    def close_region(self, region):
        for regions in (self.regions, self.gpu_regions, self.ipc_regions):
            if region in regions:
                regions.remove(region)
                self._ask(_CLOSE_REGION, region=region.number)

    def region_of(self, address, n):
        """The region in which memory lies; else one that is open, made now if there is none."""
        for region in self.regions:
            if region.offset_of(address, n) is not None:
                return region
        with self._looking:
            return self.regions[0] if self.regions else self.register(self._region_bytes)

    def ipc_region_of(self, device, spans):
        """The caller's own region of a GPU in which all of these lie: (address, bytes); None: there is none."""
        for region in self.ipc_regions:
            at = [region.offset_of(address, n) for address, n in spans]
            if region.device == device and None not in at and not any(x % _GPU_ALIGNMENT for x in at):
                return region
        return None

    def gpu_region_of(self, device, spans=()):
        """The region of a GPU in which most bytes of these lie: (address, bytes); else the first one, made now if there is none."""
        best = max((r for r in self.gpu_regions if r.device == device), default=None,
                   key=lambda r: sum(n for address, n in spans if r.offset_of(address, n) is not None))
        if best is not None:
            return best
        with self._making:
            best = next((r for r in self.gpu_regions if r.device == device), None)
            return best or self.register_on_gpu(self._gpu_region_bytes, device)

    def close(self):
        for region in list(self.ipc_regions):
            with contextlib.suppress(Error):  # the daemon may be gone, or this be a child that was forked
                self.check()
                region.close()
        for region in self.regions + self.gpu_regions + self.ipc_regions:
            region.end()
        self.regions, self.gpu_regions, self.ipc_regions = [], [], []
        _close(self._socket, self._bell)
        self._bell = -1

    # ---- the ring

    def call(self, call, fields):
        """Put a call and wait for it; its memory is not used any more then, but for outputs, or is given back later."""
        self.check()
        self._slots.acquire()
        with self._putting:
            self._tag += 1
            tag = self._tag
            _CALL.pack_into(self._ring, _CALLS_AT + self._tail % _CALLS * _CALL.size, tag, *fields)
            self._tail = (self._tail + 1) % 2**32
            self._words['calls_tail'].value = self._tail
            with self._fence:
                pass
            if self._words['asleep'].value:
                os.write(self._bell, b'\1\0\0\0\0\0\0\0')
        status, code, detail = self._result_of(tag, call)
        if status != 200:
            call.release()
            raise error_of({'code': code, 'status': status, 'detail': detail})

    def _result_of(self, tag, call):
        """One thread waits at the ring for all that wait."""
        end = time.monotonic() + self._timeout
        while True:
            with self._looking:
                while self._looked_at and tag not in self._done:
                    self._looking.wait(_SLEEP_S)
                if tag in self._done:
                    return self._done.pop(tag)
                self._looked_at = True
            try:
                self._wait()
            finally:
                with self._looking:
                    self._take()
                    if tag not in self._done and time.monotonic() > end:
                        self._late[tag] = call
                    self._looked_at = False
                    self._looking.notify_all()
            if tag in self._late:
                raise error_of({'code': 'deadline', 'detail': f'not done within {self._timeout} s'})

    def _take(self):
        """Take completions."""
        while self._words['done_tail'].value != self._head:
            tag, status, _, _, _, _, code, detail = _COMPLETION.unpack_from(self._ring, _COMPLETIONS_AT + self._head % _CALLS * _COMPLETION.size)
            self._head = (self._head + 1) % 2**32
            self._words['done_head'].value = self._head
            self._slots.release()
            if tag in self._late:
                self._late.pop(tag).release()
            else:
                self._done[tag] = status, _text(code), _text(detail)

    def _wait(self):
        """Until there is a completion, or a second has passed."""
        tail, head = self._words['done_tail'], self._head
        until = time.perf_counter() + _LOOK_S
        while time.perf_counter() < until:
            if tail.value != head:
                return
        waiting = self._words['waiting']
        waiting.value = 1
        self._libc.syscall(_SYS_FUTEX, ctypes.byref(tail), _FUTEX_WAIT, ctypes.c_uint32(head), ctypes.byref(self._second), None, 0)
        waiting.value = 0
        if tail.value == head and select.select([self._socket], [], [], 0)[0]:
            self._take_answer()  # why it has ended
            raise _gone()


def _close(socket_, bell):
    if socket_.fileno() >= 0:
        socket_.close()
        os.close(bell)
