# SPDX-License-Identifier: Apache-2.0
"""Memory that a daemon reads and writes, of the host or of a GPU, and arrays in it.

A region hands out pieces. A piece is given back by the end of an array, which the collector may cause at any time, in any thread, also in
the midst of take(): so it is only noted, and put among the free ones by the next take().

On a GPU a piece is free again while a stream may still read it. That stream's own later work comes behind, so only another stream waits
for it (as with PyTorch's allocator).
"""
import bisect
import collections
import ctypes
import math
import threading
import weakref
from ctypes import c_char_p, c_int, c_void_p

import numpy

from . import _library, gpu
from .errors import InvalidError, error_of
from .tensors import TORCH_TYPES, TYPE_NAMES, bf16

_DTYPES = {'f32': numpy.float32, 'f16': numpy.float16}
_TYPES = {name: kind for kind, name in TYPE_NAMES.items()}


class _Pieces:
    """Which bytes of a region are free."""

    def __init__(self, n, alignment):
        self._alignment, self._lock = alignment, threading.Lock()
        self._free = [(0, n)]  # (offset, bytes), in order
        self._given = collections.deque()  # not among these yet: (offset, bytes, stream)
        self._read_by = set()  # streams that may still read what is free

    def _rounded(self, n):
        return max((n + self._alignment - 1) // self._alignment * self._alignment, self._alignment)

    def _collect(self):
        while self._given:
            at, n, stream = self._given.popleft()
            if stream is not None:
                self._read_by.add(stream)
            i = bisect.bisect(self._free, (at, 0))
            if i < len(self._free) and self._free[i][0] == at + n:
                n += self._free.pop(i)[1]
            if i and sum(self._free[i - 1]) == at:
                at, before = self._free.pop(i - 1)
                n += before
                i -= 1
            self._free.insert(i, (at, n))

    def take(self, n, stream=None):
        """Where so many bytes are free (None: nowhere), and whether another stream may still read there."""
        n = self._rounded(n)
        with self._lock:
            self._collect()
            for i, (at, free) in enumerate(self._free):
                if free >= n:
                    self._free[i : i + 1] = [(at + n, free - n)] if free > n else []
                    others = bool(self._read_by - {stream})
                    if others:
                        self._read_by.clear()
                    return at, others
        return None, False

    def give(self, at, n, stream=None):
        """stream: that may still read them."""
        self._given.append((at, self._rounded(n), stream))


class _Memory:
    """What regions of either kind are."""

    alignment = 64

    def __init__(self, rings, number, address, n):
        self._rings, self.number, self.address, self.bytes = rings, number, address, n
        self._pieces = _Pieces(n, self.alignment)
        self.is_closed = False

    def take(self, n, stream=None):
        """Where so many bytes are free, for work on a stream; None: nowhere."""
        at, is_read = self._pieces.take(n, stream)
        if is_read:
            self._wait()
        return at

    def give(self, at, n, stream=None):
        """Give back a piece, which work on a stream may still use."""
        self._pieces.give(at, n, stream)

    def offset_of(self, address, n):
        """Of memory that lies in it; None: it does not."""
        at = address - self.address
        return at if not self.is_closed and 0 <= at <= self.bytes - n else None

    def _full(self, n):
        return error_of({'code': 'busy', 'detail': f'the region has no {n} bytes in one piece: register() a larger one'})

    def close(self):
        """The daemon lets go of it, when calls that use it are done."""
        rings = self._rings
        self.end()
        if rings is not None:
            rings.close_region(self)

    def end(self):
        """The daemon has let go of it, or will have."""
        self.is_closed, self._rings = True, None  # arrays that stay keep nothing but the memory

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Region(_Memory):
    """Memory that the daemon reads and writes, of Client.register(). empty() gives arrays in it, which calls take without a copy of theirs.

    A context manager; its arrays stay readable after close(), but calls copy them then."""

    def __init__(self, rings, number, memory, n):
        self._memory = numpy.frombuffer(memory, numpy.uint8)  # which keeps the mapping
        super().__init__(rings, number, self._memory.ctypes.data, n)

    def view(self, at, n):
        return self._memory[at : at + n]

    def empty(self, shape, dtype='f32'):
        """A new array in the region, with whatever was there: of 'f32', 'f16', 'bf16', or a dtype of NumPy's. Its memory is free again
        when nobody has the array, or a view of it, any more."""
        kind = numpy.dtype(numpy.uint16 if dtype == 'bf16' else _DTYPES.get(dtype, dtype))
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        n = math.prod(shape) * kind.itemsize
        at = self.take(n)
        if at is None:
            raise self._full(n)
        words = _Owner(self, at, n)
        result = numpy.asarray(words).view(kind).reshape(shape)
        return result.view(bf16) if dtype == 'bf16' else result


class _Owner:
    """The bytes of an array in a region: they are free when it goes, and arrays keep it."""

    def __init__(self, region, at, n):
        self.__array_interface__ = {'shape': (n,), 'typestr': '|u1', 'data': (region.address + at, False), 'version': 3}
        self._keeps = region
        weakref.finalize(self, region.give, at, n)


class GpuRegion(_Memory):
    """Memory of the daemon's GPU, mapped for one of this process, of Client.register(device=). empty() gives tensors in it.

    A context manager. Its tensors stay after close(), and after the client's, but calls copy them then; the memory is unmapped when the
    last of them is gone."""

    alignment = 256

    def __init__(self, rings, number, fd, n, device):
        self._mapping, self.device = gpu.Mapping(fd, n, device), device
        super().__init__(rings, number, self._mapping.address, n)

    def _wait(self):
        """For all streams of the GPU."""
        with gpu.driver().on(self.device):
            gpu.driver().wait_for_all()

    def array(self, shape, dtype, stream=None, at=None):
        """A GpuArray, for work on a stream; at: in a piece that was taken for it."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        kind = _kind_of(dtype)
        n = math.prod(shape) * (kind[1] // 8)
        if at is None:
            at = self.take(n, stream)
        if at is None:
            raise self._full(n)
        return GpuArray(self, at, n, shape, kind, stream)

    def empty(self, shape, dtype='bf16'):
        """A new tensor of PyTorch's in the region, with whatever was there: of 'f32', 'f16', 'bf16', or a dtype of PyTorch's. It is for
        the current stream, as others of PyTorch's are. Its memory is free again when nobody has it, or a view of it, any more."""
        import torch

        return self.array(shape, dtype, torch.cuda.current_stream(self.device).cuda_stream).torch()


class IpcRegion(_Memory):
    """A tensor of the caller's own on a GPU that the daemon has, too, of Client.register_ipc(): calls use it, and views of it, where they are,
    if nothing of theirs lies elsewhere, `out` included.

    A context manager. The tensor is kept until the daemon has let go of it, in close(), or in the client's."""

    def __init__(self, rings, number, base, first, n, device, keeps):
        super().__init__(rings, number, base, n)
        self._first, self.device, self._keeps = first, device, keeps

    def offset_of(self, address, n):
        """From the begin of the allocation, as the daemon counts; what else lies there is none of ours."""
        return super().offset_of(address, n) if address >= self._first else None

    def take(self, n, stream=None):
        """Nothing is put into it."""

    def close(self):
        keeps = self._keeps
        super().close()
        del keeps  # which the daemon may have read till now

    def end(self):
        super().end()
        self._keeps = None


def _kind_of(dtype):
    """DLPack's code and bits of a name, or of a dtype of PyTorch's."""
    kind = _TYPES.get(dtype) if isinstance(dtype, str) else TORCH_TYPES.get(str(dtype))
    if kind is None:
        raise InvalidError({'code': 'invalid', 'detail': f'dtype: wants one of {", ".join(_TYPES)}, or of PyTorch, has {dtype}'})
    return kind


# ---- tensors for others


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [('tensor', _library.Tensor), ('context', c_void_p), ('deleter', c_void_p)]


_lent = {}  # by the address of a _Managed: what it and its tensor need


@ctypes.CFUNCTYPE(None, c_void_p)
def _delete(address, lent=_lent):
    lent.pop(address, None)


_api = ctypes.pythonapi
_NAME = ctypes.create_string_buffer(b'dltensor')
_capsule_new = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, c_void_p, c_void_p)(('PyCapsule_New', _api))
_capsule_is = ctypes.PYFUNCTYPE(c_int, c_void_p, c_void_p)(('PyCapsule_IsValid', _api))
_capsule_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_void_p)(('PyCapsule_GetPointer', _api))


@ctypes.CFUNCTYPE(None, c_void_p)
def _end_capsule(capsule, is_=_capsule_is, pointer=_capsule_pointer, name=_NAME, lent=_lent):
    if is_(capsule, ctypes.addressof(name)):  # who has taken the tensor has renamed it
        lent.pop(pointer(capsule, ctypes.addressof(name)), None)


for _kept in (_delete, _end_capsule, _NAME):  # tensors may outlive this module
    _api.Py_IncRef(ctypes.py_object(_kept))


class GpuArray:
    """An array in a region of GPU memory, for whatever speaks DLPack: torch.from_dlpack(), cupy.from_dlpack(). Calls take it as it is.

    The GPU is named by the capsule. The driver, asked about the address, would name the one where the memory lies, from which it cannot be
    used here. Its memory is free again when nobody has it, or a tensor made of it, any more."""

    def __init__(self, region, at, n, shape, kind, stream):
        self._region, self._at, self._stream = region, at, stream
        self.shape, self.kind, self.bytes = shape, kind, n

    def __del__(self):
        self._region.give(self._at, self.bytes, self._stream)

    @property
    def dtype(self):
        return TYPE_NAMES[self.kind]

    @property
    def address(self):
        return self._region.address + self._at

    def __dlpack_device__(self):
        return _library.CUDA, self._region.device

    def __dlpack__(self, *, stream=None, **_):
        shape = (ctypes.c_int64 * max(len(self.shape), 1))(*self.shape)
        tensor = _library.Tensor(self.address, _library.CUDA, self._region.device, len(self.shape), *self.kind, 1, shape)
        managed = _Managed(tensor, None, ctypes.cast(_delete, c_void_p))
        address = ctypes.addressof(managed)
        _lent[address] = managed, shape, self
        return _capsule_new(address, ctypes.addressof(_NAME), ctypes.cast(_end_capsule, c_void_p))

    def torch(self):
        """A tensor of PyTorch's there."""
        from torch.utils.dlpack import from_dlpack

        return from_dlpack(self.__dlpack__())
