# SPDX-License-Identifier: Apache-2.0
"""Memory that a daemon reads and writes, and arrays in it."""
import bisect
import math
import threading
import weakref

import numpy

from .errors import error_of
from .tensors import bf16

_DTYPES = {'f32': numpy.float32, 'f16': numpy.float16}
_ALIGNMENT = 64


class Region:
    """Memory that the daemon reads and writes, of Client.register(). empty() gives arrays in it, which calls take without a copy of theirs.

    A context manager; its arrays stay readable after close(), but calls copy them then."""

    def __init__(self, rings, number, memory, n):
        self._rings, self.number, self.bytes = rings, number, n
        self._memory = numpy.frombuffer(memory, numpy.uint8)  # which keeps the mapping
        self.address = self._memory.ctypes.data
        self._lock = threading.Lock()
        self._free = [(0, n)]  # (offset, bytes), in order
        self.is_closed = False

    def take(self, n):
        """Where so many bytes are free; None: nowhere."""
        n = max((n + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT, _ALIGNMENT)
        with self._lock:
            for i, (at, free) in enumerate(self._free):
                if free >= n:
                    self._free[i : i + 1] = [(at + n, free - n)] if free > n else []
                    return at
        return None

    def give(self, at, n):
        n = max((n + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT, _ALIGNMENT)
        with self._lock:
            i = bisect.bisect(self._free, (at, 0))
            if i < len(self._free) and self._free[i][0] == at + n:
                n += self._free.pop(i)[1]
            if i and sum(self._free[i - 1]) == at:
                at, before = self._free.pop(i - 1)
                n += before
                i -= 1
            self._free.insert(i, (at, n))

    def offset_of(self, address, n):
        """Of memory that lies in it; None: it does not."""
        at = address - self.address
        return at if not self.is_closed and 0 <= at <= self.bytes - n else None

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
            raise error_of({'code': 'busy', 'detail': f'the region has no {n} bytes in one piece: register() a larger one'})
        words = _Owner(self, at, n)
        result = numpy.asarray(words).view(kind).reshape(shape)
        return result.view(bf16) if dtype == 'bf16' else result

    def close(self):
        """The daemon lets go of it, when calls that use it are done."""
        if not self.is_closed:
            self.is_closed = True
            self._rings.close_region(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class _Owner:
    """The bytes of an array in a region: they are free when it goes, and arrays keep it."""

    def __init__(self, region, at, n):
        self.__array_interface__ = {'shape': (n,), 'typestr': '|u1', 'data': (region.address + at, False), 'version': 3}
        self._keeps = region
        weakref.finalize(self, region.give, at, n)
