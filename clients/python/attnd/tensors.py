# SPDX-License-Identifier: Apache-2.0
"""From arrays of others to struct attnd_tensor: NumPy's, whatever has __array_interface__, and DLPack.

NumPy has no bfloat16: a `bf16` is an array of 16-bit words that are bfloat16's bits. `bf16.of(x)` rounds float32 (to nearest, ties to
even), `x.float32()` widens.
"""
import ctypes

import numpy

from . import _library
from .errors import InvalidError

# NumPy's kind and bytes, to DLPack's code and bits.
_NUMPY_TYPES = {('f', 4): (2, 32), ('f', 2): (2, 16), ('u', 1): (1, 8)}
_NAMED_TYPES = {'bfloat16': (4, 16), 'float8_e4m3fn': (10, 8), 'float8_e5m2': (12, 8)}  # of ml_dtypes
TORCH_TYPES = {'torch.float32': (2, 32), 'torch.float16': (2, 16), 'torch.bfloat16': (4, 16), 'torch.uint8': (1, 8),
                'torch.float8_e4m3fn': (10, 8), 'torch.float8_e5m2': (12, 8)}
TYPE_NAMES = {(2, 32): 'f32', (2, 16): 'f16', (4, 16): 'bf16', (10, 8): 'e4m3', (12, 8): 'e5m2', (1, 8): 'u8'}

OUTPUT_TYPES = {'f32': (2, 32), 'f16': (2, 16), 'bf16': (4, 16)}


class bf16(numpy.ndarray):
    """An array of bfloat16, as words of 16 bits."""

    def __new__(cls, words):
        """A view of an array of 16-bit words that are bfloat16."""
        words = numpy.asarray(words)
        if words.dtype.itemsize != 2 or words.dtype.kind not in 'uiV':
            raise TypeError(f'bf16 wants an array of 16-bit words, got {words.dtype}; bf16.of() converts numbers')
        return words.view(numpy.uint16).view(cls)

    @classmethod
    def of(cls, numbers):
        """Numbers, rounded to nearest, ties to even. NaN stays NaN; beyond the largest finite value it is infinity."""
        bits = numpy.ascontiguousarray(numbers, numpy.float32).view(numpy.uint32)
        is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return numpy.where(is_nan, (bits >> 16) | 0x40, rounded).astype(numpy.uint16).reshape(numpy.shape(numbers)).view(cls)

    @classmethod
    def empty(cls, shape):
        return numpy.empty(shape, numpy.uint16).view(cls)

    def float32(self):
        """The same numbers as float32, exactly."""
        words = self.view(numpy.ndarray).astype(numpy.uint32) << 16
        return words.view(numpy.float32)

    def __array_finalize__(self, source):
        if source is not None and self.dtype != numpy.uint16:
            raise TypeError('arithmetic on bf16 words makes no sense: float32() gives numbers')


def _refuse(name, detail):
    return InvalidError({'code': 'invalid', 'detail': f'{name}: {detail}'})


class Argument:
    """A tensor for the library, with what keeps its memory there."""

    def __init__(self, array, name, writes=False, stream=None):
        self.keeps = array
        self.tensor = _library.Tensor()
        if getattr(array, 'is_cuda', False) and hasattr(array, 'data_ptr'):
            self._from_torch(array, name, writes)
        elif isinstance(array, numpy.ndarray):
            self._from_numpy(array, name, writes)
        elif hasattr(array, '__dlpack__') and hasattr(array, '__dlpack_device__'):
            self._from_dlpack(array, name, writes, stream)
        elif hasattr(array, '__array_interface__'):
            self._from_numpy(numpy.asarray(array), name, writes)
        elif writes:
            raise _refuse(name, 'wants an array that can be written')
        else:
            try:
                numbers = numpy.asarray(array, numpy.float32)
            except (TypeError, ValueError):
                raise _refuse(name, f'wants an array of numbers, has {array!r:.60}') from None
            self._from_numpy(numbers, name, writes)

    @property
    def pointer(self):
        return ctypes.pointer(self.tensor)

    @property
    def type(self):
        return self.tensor.dtype_code, self.tensor.dtype_bits

    @property
    def shape(self):
        return tuple(self.tensor.shape[: self.tensor.ndim])

    def _from_numpy(self, array, name, writes):
        if isinstance(array, bf16):
            kind = (4, 16)
        else:
            kind = _NUMPY_TYPES.get((array.dtype.kind, array.dtype.itemsize)) or _NAMED_TYPES.get(array.dtype.name)
        if kind is None and array.dtype == numpy.float64 and not writes:
            array, kind = array.astype(numpy.float32), (2, 32)  # what NumPy makes when nobody says a dtype
        if kind is None:
            raise _refuse(name, f'is of {array.dtype}: wants float32, float16 or attnd.bf16{"" if writes else "; float64 is rounded to float32"}')
        if array.dtype.byteorder == '>':
            raise _refuse(name, 'is big-endian')
        if not array.flags.c_contiguous:
            if writes:
                raise _refuse(name, 'is not contiguous, and is to be written')
            array = numpy.ascontiguousarray(array)
        if writes and not array.flags.writeable:
            raise _refuse(name, 'is read-only, and is to be written')
        self.keeps = array
        shape = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
        self._shape = shape
        self.tensor = _library.Tensor(
            data=array.__array_interface__['data'][0],
            device_type=_library.HOST,
            ndim=array.ndim,
            dtype_code=kind[0],
            dtype_bits=kind[1],
            dtype_lanes=1,
            shape=shape,
        )

    def _from_torch(self, array, name, writes):
        """PyTorch's on the GPU, whose stream is the current one: no capsule, which takes 10 us."""
        kind = TORCH_TYPES.get(str(array.dtype))
        if kind is None:
            raise _refuse(name, f'is of {array.dtype}, which attnd has not')
        if not array.is_contiguous():
            if writes:
                raise _refuse(name, 'is not contiguous, and is to be written')
            array = array.contiguous()
        self.keeps = array
        shape = self._shape = (ctypes.c_int64 * max(array.dim(), 1))(*array.shape)
        self.tensor = _library.Tensor(array.data_ptr(), _library.CUDA, array.device.index, array.dim(), *kind, 1, shape)

    def _from_dlpack(self, array, name, writes, stream):
        if getattr(array, 'requires_grad', False):
            array = array.detach()
        contiguous = getattr(array, 'is_contiguous', None)
        if contiguous is not None and not contiguous():
            if writes:
                raise _refuse(name, 'is not contiguous, and is to be written')
            array = array.contiguous()
        # what the producer has under way on a GPU comes before what is given to this stream: 1 is the legacy default one
        waits = {'stream': stream or 1} if array.__dlpack_device__()[0] == _library.CUDA else {}
        try:
            capsule = array.__dlpack__(max_version=(1, 0), **waits)
        except TypeError:
            capsule = array.__dlpack__(**waits)
        managed = _Managed(capsule)
        if writes and managed.is_read_only:
            raise _refuse(name, 'is read-only, and is to be written')
        self.keeps = (array, managed)
        ctypes.memmove(ctypes.byref(self.tensor), managed.address, ctypes.sizeof(_library.Tensor))


class _Managed:
    """A capsule of DLPack's, with or without a version."""

    _READ_ONLY = 1

    def __init__(self, capsule):
        api = ctypes.pythonapi
        api.PyCapsule_GetPointer.restype = ctypes.c_void_p
        api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
        self.capsule = capsule  # never consumed: its own destructor ends it
        self.is_read_only = False
        if api.PyCapsule_IsValid(capsule, b'dltensor_versioned'):
            address = api.PyCapsule_GetPointer(capsule, b'dltensor_versioned')
            # version (two 32-bit numbers), manager, deleter, flags, tensor
            major = ctypes.c_uint32.from_address(address).value
            if major != 1:
                raise _refuse('tensor', f'comes by version {major} of DLPack, and version 1 is read')
            self.is_read_only = bool(ctypes.c_uint64.from_address(address + 24).value & self._READ_ONLY)
            self.address = address + 32
        else:
            self.address = api.PyCapsule_GetPointer(capsule, b'dltensor')


def shape_of(array, name):
    """The shape of what Argument() takes."""
    return tuple(array.shape) if hasattr(array, 'shape') else Argument(array, name).shape


def rows_of(name, array, shape, heads, head_dim, layers=None):
    """Rows of q, or of k: [rows][heads][head_dim], and, where `layers` is given, also [layers][rows]... of all."""
    ranks = (3,) if layers is None else (3, 4)
    if array is not None and len(shape) not in ranks:
        wants = f'[rows, {heads}, {head_dim}]' + ('' if layers is None else f' or [{layers}, rows, {heads}, {head_dim}]')
        raise _refuse(name, f'wants the shape {wants}, has {list(shape)}')
    return shape[-3] if array is not None else 0


def check_type(name, kind):
    """Whether q or o may be of a type (DLPack's code and bits); else InvalidError."""
    if kind not in OUTPUT_TYPES.values():
        raise _refuse(name, f'is of {TYPE_NAMES.get(kind, kind)}: wants one of {", ".join(OUTPUT_TYPES)}')


def empty_like(array, shape, kind):
    """A new array for outputs of a type (DLPack's code and bits): of `array`'s library, else NumPy's."""
    check_type('q', kind)
    new_empty = getattr(array, 'new_empty', None)  # PyTorch's
    if new_empty is not None:
        import torch

        return new_empty(shape, dtype={(2, 32): torch.float32, (2, 16): torch.float16, (4, 16): torch.bfloat16}[kind])
    if kind == (4, 16):
        return bf16.empty(shape)
    return numpy.empty(shape, {(2, 32): numpy.float32, (2, 16): numpy.float16}[kind])
