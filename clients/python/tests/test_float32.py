# SPDX-License-Identifier: Apache-2.0
"""float32 that PyTorch narrows to 16 bits, as it does on a GPU, beside the same numbers narrowed by the library. Needs no GPU."""
import unittest

try:
    import torch
except ImportError:
    raise unittest.SkipTest('torch is not installed') from None

import numpy

import attnd
from attnd.tensors import OUTPUT_TYPES, narrow

DIM = 64


def numbers():
    """Every exponent, with what is rounded up, down and to even in either format, and both signs; without infinities and NaN."""
    exponents = numpy.arange(255, dtype=numpy.uint32)[:, None] << 23
    rng = numpy.random.default_rng(2)
    of_bf16 = [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x17FFF, 0x18000, 0x18001, 0x7FFFFF, 0x7F7FFF, 0x7F8000]
    of_f16 = [0xFFF, 0x1000, 0x1001, 0x1FFF, 0x2FFF, 0x3000, 0x3001, 0x7FE000, 0x7FEFFF, 0x7FF000]
    mantissas = numpy.concatenate([numpy.array(of_bf16 + of_f16, numpy.uint32), rng.integers(0, 1 << 23, 42, numpy.uint32)])
    bits = (exponents | mantissas).ravel()
    return numpy.concatenate([bits, bits | numpy.uint32(1 << 31)]).view(numpy.float32)


class Float32(unittest.TestCase):
    def stored(self, name, v):
        """v as an engine in host memory stores it: attention over one token is that token's v."""
        geometry = {'layers': 1, 'query_heads': 1, 'kv_heads': 1, 'head_dim': DIM, 'dtype': name, 'kv_dtype': name}
        with attnd.Engine({'geometry': geometry, 'pool': {'blocks': 1024}, 'backend': {'name': 'cpu'}}) as engine:
            ids = [engine.create() for _ in v]
            engine.append(ids, numpy.zeros_like(v), v)
            return engine.attend(ids, numpy.zeros_like(v)).ravel()

    def test_the_bits_are_the_librarys(self):
        x = numbers()
        v = x[(abs(x) < 2.0**96.99) & ((abs(x) >= 2.0**-126) | (x == 0))]  # attention flushes what is denormal in float32
        v = v[: len(v) // DIM * DIM].reshape(-1, 1, DIM)
        for name in ('bf16', 'f16'):
            got = narrow(torch.from_numpy(v), OUTPUT_TYPES[name], summed=True)
            for first in range(0, len(v), 500):
                part = slice(first, first + 500)
                numpy.testing.assert_array_equal(got[part].float().numpy().ravel(), self.stored(name, v[part]))
            all_ = narrow(torch.from_numpy(x), OUTPUT_TYPES[name])
            self.assertTrue(bool(all_.isfinite().all()), name)
            self.assertTrue(torch.equal(all_.signbit(), torch.from_numpy(x).signbit()), 'of zeros, too')
        small = x[abs(x) < 1]
        numpy.testing.assert_array_equal(narrow(torch.from_numpy(small), OUTPUT_TYPES['bf16']).float().numpy(), attnd.bf16.of(small).float32())

    def test_what_the_library_refuses_is_not_finite(self):
        for name in ('bf16', 'f16'):
            most = torch.finfo(torch.bfloat16 if name == 'bf16' else torch.float16).max
            x = torch.tensor([65504.0, 65536.0, -1e6, float('inf'), float('-inf'), float('nan'), 2.0**97, -(2.0**97), 3.4e38])
            self.assertEqual(narrow(x, OUTPUT_TYPES[name]).isfinite().tolist(), [True] * 3 + [False] * 3 + [True] * 3)
            self.assertEqual(narrow(x, OUTPUT_TYPES[name], summed=True).isfinite().tolist(), [True] * 3 + [False] * 6)
            self.assertEqual(float(narrow(x, OUTPUT_TYPES[name])[-1]), most)
            with self.assertRaises(attnd.InvalidError):
                self.stored(name, numpy.full((1, 1, DIM), 2.0**97, numpy.float32))

    def test_no_gradients(self):
        x = torch.ones(3, requires_grad=True)
        self.assertFalse(narrow(x, OUTPUT_TYPES['bf16']).requires_grad)


if __name__ == '__main__':
    unittest.main()
