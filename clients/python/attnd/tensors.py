# SPDX-License-Identifier: Apache-2.0
"""From arrays of others to struct attnd_tensor: NumPy's, whatever has __array_interface__, and DLPack.

NumPy has no bfloat16: a `bf16` is an array of 16-bit words that are bfloat16's bits. `bf16.of(x)` rounds float32 (to nearest, ties to
even), `x.float32()` widens.

On a GPU float32 is narrowed and widened by PyTorch, on the stream of the call, where the library converts what lies in host memory.
"""
import contextlib
import ctypes
import sys

import numpy

from . import _library
from .errors import InvalidError

# NumPy's kind and bytes, to DLPack's code and bits.
_NUMPY_TYPES = {('f', 4): (2, 32), ('f', 2): (2, 16), ('u', 1): (1, 8)}
_NAMED_TYPES = {'bfloat16': (4, 16), 'float8_e4m3fn': (10, 8), 'float8_e5m2': (12, 8)}  # of ml_dtypes
TORCH_TYPES = {'torch.float32': (2, 32), 'torch.float16': (2, 16), 'torch.bfloat16': (4, 16), 'torch.uint8': (1, 8),
                'torch.float8_e4m3fn': (10, 8), 'torch.float8_e5m2': (12, 8)}
TYPE_NAMES = {(2, 32): 'f32', (2, 16): 'f16', (4, 16): 'bf16', (10, 8): 'e4m3', (12, 8): 'e5m2', (1, 8): 'u8'}

F32 = (2, 32)
OUTPUT_TYPES = {'f32': F32, 'f16': (2, 16), 'bf16': (4, 16)}
_UNSUMMABLE = 2.0**97  # v, and o of states, have to be below it: kernels/numeric.h
_LEGACY_STREAM = 1  # CU_STREAM_LEGACY, as 0 is


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


def current_stream(array):
    """PyTorch's current stream, where a tensor of its on a GPU belongs; None: it is not one."""
    if not getattr(array, 'is_cuda', False):
        return None
    import torch

    number = getattr(torch._C, '_cuda_getCurrentRawStream', None)  # 2 us less than an object made of it
    return number(array.get_device()) if number else torch.cuda.current_stream(array.device).cuda_stream


def _on_stream(tensor, stream):
    """Have PyTorch do on a stream, by its number (None: the current one), what it does with a tensor on a GPU."""
    if stream is None or stream == current_stream(tensor):
        return contextlib.nullcontext()
    import torch

    of = torch.cuda.ExternalStream(stream, tensor.device) if stream > _LEGACY_STREAM else torch.cuda.default_stream(tensor.device)
    return torch.cuda.stream(of)


def _torch_type(kind):
    """PyTorch's dtype of DLPack's code and bits."""
    import torch

    return {F32: torch.float32, (2, 16): torch.float16, (4, 16): torch.bfloat16}[kind]


def narrow(x, kind, summed=False):
    """A float32 tensor of PyTorch's in 16 bits, with the bits that the library gives an array in host memory: to nearest, ties to even, and
    what is finite but too large becomes the largest. What the library refuses there (infinities, NaN; where they are `summed` from 2^97 on)
    becomes NaN, which the GPU finds."""
    import torch

    x, dtype = x.detach(), _torch_type(kind)
    most = torch.finfo(dtype).max
    good = x.abs() < (_UNSUMMABLE if summed else float('inf'))
    return torch.where(good, x.clamp(-most, most), float('nan')).to(dtype)


class Argument:
    """A tensor for the library, with what keeps its memory there.

    own: the geometry's dtype, of 16 bits, where float32 on a GPU is taken for it: the library is given a copy that is narrowed, or, of what
    it writes, memory from which widen() fills the array. Both are of the memory of `stream`, and so free again behind the call."""

    def __init__(self, array, name, writes=False, stream=None, own=None):
        self.keeps = array
        self.tensor = _library.Tensor()
        self._stream, self._wide, self._given = stream, None, None
        if getattr(array, 'is_cuda', False) and hasattr(array, 'data_ptr'):
            self._from_torch(array, name, writes, own)
        elif isinstance(array, numpy.ndarray):
            self._from_numpy(array, name, writes)
        elif hasattr(array, '__dlpack__') and hasattr(array, '__dlpack_device__'):
            self._from_dlpack(array, name, writes, own)
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
    def given(self):
        """The type of the array, of which `type` is that for the library."""
        return self._given or self.type

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

    def widen(self):
        """What was written as float32, if the array is of that: on the stream, behind what writes."""
        if self._wide is None:
            return
        import torch

        with torch.inference_mode(), _on_stream(self._wide, self._stream):
            self._wide.copy_(self.keeps)

    def _at_own_type(self, array, name, writes, own):
        """A tensor in place of one of float32."""
        torch = sys.modules.get('torch')
        if torch is None or not isinstance(array, torch.Tensor):
            self._refuse_wide(name, own)
        self._given = F32
        with _on_stream(array, self._stream):
            if not writes:
                return narrow(array, own, name in ('v', 'o'))
            self._wide = array
            return array.new_empty(array.shape, dtype=_torch_type(own))

    @staticmethod
    def _refuse_wide(name, own):
        raise _refuse(name, f'is of float32 on a GPU, where only PyTorch\'s tensors are converted: wants {TYPE_NAMES[own]}, or torch.from_dlpack() '
                            'of it')

    def _from_torch(self, array, name, writes, own):
        """PyTorch's on the GPU: no capsule, which takes 10 us."""
        kind = TORCH_TYPES.get(str(array.dtype))
        if kind is None:
            raise _refuse(name, f'is of {array.dtype}, which attnd has not')
        if not array.is_contiguous():
            if writes:
                raise _refuse(name, 'is not contiguous, and is to be written')
            with _on_stream(array, self._stream):
                array = array.contiguous()
        if kind == F32 and own is not None:
            array, kind = self._at_own_type(array, name, writes, own), own
        self.keeps = array
        shape = self._shape = (ctypes.c_int64 * max(array.dim(), 1))(*array.shape)
        self.tensor = _library.Tensor(array.data_ptr(), _library.CUDA, array.device.index, array.dim(), *kind, 1, shape)

    def _from_dlpack(self, array, name, writes, own):
        if getattr(array, 'requires_grad', False):
            array = array.detach()
        contiguous = getattr(array, 'is_contiguous', None)
        if contiguous is not None and not contiguous():
            if writes:
                raise _refuse(name, 'is not contiguous, and is to be written')
            array = array.contiguous()
        # what the producer has under way on a GPU comes before what is given to this stream
        waits = {'stream': self._stream or _LEGACY_STREAM} if array.__dlpack_device__()[0] == _library.CUDA else {}
        try:
            capsule = array.__dlpack__(max_version=(1, 0), **waits)
        except TypeError:
            capsule = array.__dlpack__(**waits)
        managed = _Managed(capsule)
        if writes and managed.is_read_only:
            raise _refuse(name, 'is read-only, and is to be written')
        self.keeps = (array, managed)
        ctypes.memmove(ctypes.byref(self.tensor), managed.address, ctypes.sizeof(_library.Tensor))
        if own is not None and self.type == F32 and self.tensor.device_type == _library.CUDA:
            self._refuse_wide(name, own)


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


def own_type(dtype):
    """DLPack's code and bits of a geometry's dtype for which float32 is taken: one of 16 bits. None: it is float32."""
    return None if dtype == 'f32' else OUTPUT_TYPES[dtype]


def empty_like(array, shape, kind):
    """A new array for outputs of a type (DLPack's code and bits): of `array`'s library, else NumPy's."""
    check_type('q', kind)
    new_empty = getattr(array, 'new_empty', None)  # PyTorch's
    if new_empty is not None:
        return new_empty(shape, dtype=_torch_type(kind))
    if kind == (4, 16):
        return bf16.empty(shape)
    return numpy.empty(shape, {F32: numpy.float32, (2, 16): numpy.float16}[kind])
