# SPDX-License-Identifier: Apache-2.0
"""The driver of a GPU, by ctypes alone: memory that another process has made, or gets, and copies on streams.

    a descriptor -> cuMemImportFromShareableHandle -> cuMemAddressReserve, cuMemMap, cuMemSetAccess -> an address for one GPU here

    memory of this process's -> cuMemGetAddressRange, cuIpcGetMemHandle -> a handle for another one

The memory may lie on another GPU than the one that it is mapped for. All is done in the primary context of that one, which is PyTorch's
and CuPy's, too; a thread finds its own context again behind it. Streams are numbers, as theirs are.
"""
import contextlib
import ctypes
import os
import threading
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

from .errors import DeviceError, InvalidError, UnsupportedError, error_of

_NAME = 'libcuda.so.1'
_POSIX_FILE_DESCRIPTOR, _DEVICE, _READ_WRITE = 1, 1, 3  # CU_MEM_HANDLE_TYPE_..., CU_MEM_LOCATION_TYPE_..., CU_MEM_ACCESS_FLAGS_PROT_...
_OUT_OF_MEMORY = 2
IPC_BYTES = 64  # of a CUipcMemHandle
LEGACY_STREAM = 1  # CU_STREAM_LEGACY, the default one
_FUNCTIONS = {
    'cuInit': (c_uint,),
    'cuDeviceGet': (POINTER(c_int), c_int),
    'cuDevicePrimaryCtxRetain': (POINTER(c_void_p), c_int),
    'cuCtxGetCurrent': (POINTER(c_void_p),),
    'cuCtxSetCurrent': (c_void_p,),
    'cuCtxSynchronize': (),
    'cuStreamSynchronize': (c_void_p,),
    'cuMemcpyAsync': (c_uint64, c_uint64, c_size_t, c_void_p),
    'cuMemImportFromShareableHandle': (POINTER(c_uint64), c_void_p, c_int),
    'cuMemRelease': (c_uint64,),
    'cuMemAddressReserve': (POINTER(c_uint64), c_size_t, c_size_t, c_uint64, c_uint64),
    'cuMemAddressFree': (c_uint64, c_size_t),
    'cuMemMap': (c_uint64, c_size_t, c_size_t, c_uint64, c_uint64),
    'cuMemSetAccess': (c_uint64, c_size_t, c_void_p, c_size_t),
    'cuMemUnmap': (c_uint64, c_size_t),
    'cuMemGetAddressRange_v2': (POINTER(c_uint64), POINTER(c_size_t), c_uint64),
    'cuIpcGetMemHandle': (c_void_p, c_uint64),
    'cuGetErrorName': (c_int, POINTER(c_char_p)),
}


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [('location_type', c_int), ('location_id', c_int), ('flags', c_int)]


class _Driver:
    """libcuda.so.1. Threads may share it."""

    def __init__(self):
        try:
            library = ctypes.CDLL(_NAME)
        except OSError as e:
            raise UnsupportedError({'code': 'unsupported', 'detail': f'tensors on a GPU: there is no driver of NVIDIA here ({e})'}) from None
        self._functions = {}
        for name, arguments in _FUNCTIONS.items():
            function = getattr(library, name, None)
            if function is None:
                raise UnsupportedError({'code': 'unsupported', 'detail': f'tensors on a GPU: the driver has no {name}(): it is too old'})
            function.argtypes, function.restype = arguments, c_int
            self._functions[name] = function
        self.call('cuInit', 0, doing='beginning')
        self._contexts, self._lock = {}, threading.RLock()  # a Mapping may end in the midst of it

    def call(self, name, *arguments, doing):
        result = self._functions[name](*arguments)
        if result:
            text = c_char_p()
            known = self._functions['cuGetErrorName'](result, byref(text)) == 0 and text.value
            code = 'no_memory' if result == _OUT_OF_MEMORY else 'device'
            raise error_of({'code': code, 'detail': f'{doing}: the driver says {known.decode() if known else result}'})

    def _context(self, device):
        with self._lock:
            if device not in self._contexts:
                at, context = c_int(), c_void_p()
                self.call('cuDeviceGet', byref(at), device, doing=f'finding GPU {device}')
                self.call('cuDevicePrimaryCtxRetain', byref(context), at, doing=f'taking GPU {device}')
                self._contexts[device] = context
            return self._contexts[device]

    @contextlib.contextmanager
    def on(self, device):
        """With the context of a GPU, by its number here."""
        context, before = self._context(device), c_void_p()
        self.call('cuCtxGetCurrent', byref(before), doing='looking for a context')
        same = before.value == context.value
        if not same:
            self.call('cuCtxSetCurrent', context, doing=f'taking GPU {device}')
        try:
            yield
        finally:
            if not same:
                self.call('cuCtxSetCurrent', before, doing='leaving the GPU')

    def copy(self, to, from_, n, stream):
        """Copy bytes on a stream. Under on(), as all that follows."""
        self.call('cuMemcpyAsync', to, from_, n, stream, doing='copying on the GPU')

    def wait(self, stream):
        """Until all is done that a stream has been given so far."""
        self.call('cuStreamSynchronize', stream, doing='waiting for the GPU')

    def wait_for_all(self):
        """Until all is done that this process has given the GPU."""
        self.call('cuCtxSynchronize', doing='waiting for the GPU')


_driver, _making = None, threading.Lock()


def driver():
    """The driver; UnsupportedError: there is none."""
    global _driver
    with _making:
        if _driver is None:
            _driver = _Driver()
        return _driver


def lend(address, device):
    """Where the allocation begins in which memory on a GPU lies, and its handle of CUDA IPC, by which another process has it from there on."""
    base, size, handle = c_uint64(), c_size_t(), (ctypes.c_uint8 * IPC_BYTES)()
    call = driver().call
    with driver().on(device):
        try:
            call('cuMemGetAddressRange_v2', byref(base), byref(size), address, doing='finding an allocation')
            call('cuIpcGetMemHandle', handle, base, doing='asking for a handle of CUDA IPC')
        except DeviceError as e:
            raise InvalidError({'code': 'invalid', 'detail': f'tensor: {e}: memory of cudaMalloc() alone has one, which that of PyTorch is, but for '
                                "its expandable_segments and cudaMallocAsync; client.empty() wants none"}) from None
    return base.value, bytes(handle)


class Mapping:
    """Memory behind a descriptor, which stays the caller's, mapped for a GPU. It is unmapped when nobody has this any more."""

    def __init__(self, fd, n, device):
        self._driver, self.device, self.bytes, self._process = driver(), device, n, os.getpid()
        handle, address = c_uint64(), c_uint64()
        access = _Access(_DEVICE, device, _READ_WRITE)
        call = self._driver.call
        self.address = 0
        with self._driver.on(device):
            call('cuMemImportFromShareableHandle', byref(handle), fd, _POSIX_FILE_DESCRIPTOR, doing='importing a region')
            try:
                call('cuMemAddressReserve', byref(address), n, 0, 0, 0, doing='finding addresses for a region')
                try:
                    call('cuMemMap', address, n, 0, handle, 0, doing='mapping a region')
                    self.address = address.value
                    call('cuMemSetAccess', address, n, byref(access), 1, doing=f'mapping a region for GPU {device}, which may be unable to reach '
                         "the memory of the daemon's")
                except BaseException:
                    self._unmap(address.value, self.address != 0)
                    self.address = 0
                    raise
            finally:
                call('cuMemRelease', handle, doing='mapping a region')  # what is mapped keeps it

    def _unmap(self, address, is_mapped=True):
        if is_mapped:
            self._driver.call('cuMemUnmap', address, self.bytes, doing='unmapping a region')
        self._driver.call('cuMemAddressFree', address, self.bytes, doing='giving back addresses')

    def __del__(self):
        if not getattr(self, 'address', 0) or os.getpid() != self._process:
            return  # a child that was forked has no GPU
        with contextlib.suppress(Exception), self._driver.on(self.device):  # a GPU that has failed has nothing to give back
            self._driver.wait_for_all()  # nothing may be reading there
            self._unmap(self.address)
