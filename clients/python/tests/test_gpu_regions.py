# SPDX-License-Identifier: Apache-2.0
"""Registered memory on a GPU, of attnd.Client: what lies in a region is used there, all else is copied, and all is given back.

OfArrays and OfHandles need no PyTorch and, with a stub of the driver (tests/integration/49-gpu-regions.sh, STUB=1), no GPU: kernels compute nothing there,
so they look at where a call's tensors lie. On a GPU, and in OfTensors with PyTorch, outputs have the bits of the same calls with tensors in
host memory: with the daemon on the same GPU and, where there are two, on the other one.

    ATTND=PROGRAM ATTND_LIBRARY=LIBRARY PYTHONPATH=clients/python python3 clients/python/tests/test_gpu_regions.py
"""
import ctypes
import gc
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import types
import unittest
import unittest.mock
import weakref

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import numpy

import attnd
import attnd.gpu
import test_engine

try:
    import torch
except ImportError:
    torch = None

STUB = 'STUB' in os.environ
try:
    attnd.gpu.driver()
except attnd.Error as e:
    raise unittest.SkipTest(f'there is no GPU: {e}') from None
if 'ATTND' not in os.environ:
    raise unittest.SkipTest('ATTND names no daemon')

LAYERS, QUERY_HEADS, KV_HEADS, DIM, BLOCK = 2, 8, 2, 64, 16
GEOMETRY = {'layers': LAYERS, 'query_heads': QUERY_HEADS, 'kv_heads': KV_HEADS, 'head_dim': DIM, 'block_size': BLOCK,
            'dtype': 'bf16', 'kv_dtype': 'bf16'}
CONFIG = {'geometry': GEOMETRY, 'pool': {'blocks': 2048}, 'limits': {'sequence_tokens': 8192}}
BUSY_CYCLES = 100_000_000  # of a GPU: some hundredths of a second
DEVICE = 0  # the client's


def daemon_of(device=0, backend='cuda', **transport):
    """A daemon on a GPU."""
    if 'CUDA_MPS_PIPE_DIRECTORY' in os.environ:
        transport['trust_clients'] = 'on'
    of = {'name': backend, **({'device': device} if backend == 'cuda' else {})}
    return test_engine.Daemon({**CONFIG, 'backend': of, 'transport': transport})


def transport_of(client):
    return client._ask('GET', '/stats?limit=1')['transport']


class Memory:
    """A GPU's, by the driver's own calls."""

    def __init__(self):
        self.library = ctypes.CDLL('libcuda.so.1')

    def _call(self, name, *arguments):
        with attnd.gpu.driver().on(DEVICE):
            result = getattr(self.library, name)(*arguments)
        if result:
            raise RuntimeError(f'{name}: {result}')

    def take(self, n):
        address = ctypes.c_uint64()
        self._call('cuMemAlloc_v2', ctypes.byref(address), ctypes.c_size_t(n))
        return address.value

    def give(self, address):
        self._call('cuMemFree_v2', ctypes.c_uint64(address))

    def write(self, address, array):
        self._call('cuMemcpyHtoDAsync_v2', ctypes.c_uint64(address), ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes), None)
        self._call('cuStreamSynchronize', None)

    def read(self, address, n):
        array = numpy.empty(n, numpy.uint8)
        self._call('cuMemcpyDtoHAsync_v2', ctypes.c_void_p(array.ctypes.data), ctypes.c_uint64(address), ctypes.c_size_t(n), None)
        self._call('cuStreamSynchronize', None)
        return array.tobytes()


class Elsewhere:
    """A tensor on the GPU that looks as PyTorch's do, in no region."""

    is_cuda = True

    def __init__(self, memory, array, device=DEVICE, at=None):
        """at: the address of memory that is somebody else's."""
        self._memory, self._is_mine = memory, at is None
        self._address = memory.take(max(array.nbytes, 1)) if at is None else at
        self.shape, self.device = array.shape, types.SimpleNamespace(index=device)
        self.dtype = 'torch.bfloat16' if isinstance(array, attnd.bf16) else f'torch.{array.dtype}'
        self.bytes = array.nbytes
        memory.write(self._address, array)

    def __del__(self):
        if self._is_mine:
            self._memory.give(self._address)

    def data_ptr(self):
        return self._address

    def dim(self):
        return len(self.shape)

    @staticmethod
    def is_contiguous():
        return True

    def read(self):
        return self._memory.read(self._address, self.bytes)


class OfRegions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = daemon_of()
        cls.addClassCleanup(cls.daemon.end)

    def setUp(self):
        self.rng = numpy.random.default_rng(5)
        self.client = attnd.Client(self.daemon.address, registered=True)
        self.addCleanup(self.client.close)
        self.puts = []  # what was written down of calls
        put = self.client._rings.call

        def call(of, fields):
            names = ('kind', 'region', 'layer', 'kernel', 'kv_stored', 'timeout_ms', 'sequence_count', 'rows', 'token_count', 'tensors',
                     'sequences', 'counts', 'positions', 'tokens', 'q', 'k', 'v', 'o', 'lse', 'retry')
            self.puts.append(dict(zip(names, fields)))
            return put(of, fields)

        self.client._rings.call = call

    def values(self, *shape):
        return attnd.bf16.of(self.rng.standard_normal(shape))

    def call_of(self, rows):
        return self.values(rows, QUERY_HEADS, DIM), self.values(rows, KV_HEADS, DIM), self.values(rows, KV_HEADS, DIM)

    def assert_nothing_is_left(self):
        with attnd.Client(self.daemon.address) as other:
            other.audit()
            end = 0
            while [transport_of(other)[n] for n in ('clients', 'regions', 'region_bytes', 'gpu_bytes')] != [0, 0, 0, 0]:
                end += 1
                self.assertLess(end, 100_000)


class OfArrays(OfRegions):
    """Without PyTorch."""

    def setUp(self):
        super().setUp()
        self.memory = Memory()
        self.ids = self.client.create(), self.client.create()

    def tearDown(self):
        for id in self.ids:
            self.client.delete(id)

    def in_region(self, region, array):
        there = region.array(array.shape, 'bf16')
        self.memory.write(there.address, array)
        return there

    def read(self, array):
        return self.memory.read(array.address, array.bytes)

    def is_right(self, got, expected):
        """Bytes; a stub computes nothing."""
        if not STUB:
            self.assertEqual(got, expected.tobytes())

    def test_arrays_in_a_region_are_used_there(self):
        with self.client.register(8 << 20, device=DEVICE) as region:
            q, k, v = self.call_of(5)
            on_gpu = [self.in_region(region, x) for x in (q, k, v)]
            out = region.array(q.shape, 'bf16')
            for layer in range(LAYERS):
                result, lse = self.client.attend(self.ids[0], on_gpu[0], k=on_gpu[1], v=on_gpu[2], layer=layer, out=out, lse=True)
                self.assertIs(result, out)
                put = self.puts[-1]
                self.assertEqual([put[x] for x in 'qkvo'], [x.address - region.address for x in (*on_gpu, out)])
                self.assertEqual((put['tensors'], put['rows'], put['sequence_count']), (region.number + 1, 5, 1))
                o, l = self.client.attend(self.ids[1], q, k=k, v=v, layer=layer, lse=True)
                self.assertEqual(self.puts[-1]['tensors'], 0)
                self.is_right(self.read(out), o)
                self.is_right(self.read(lse), l)
                self.assertEqual((lse.shape, lse.dtype), ((5, QUERY_HEADS), 'f32'))
        self.assertEqual([self.client.look(i).lengths for i in self.ids], [[5] * LAYERS] * 2)

    def test_arrays_elsewhere_are_copied(self):
        for rows in (1, 33):
            q, k, v = self.call_of(rows)
            on_gpu = [Elsewhere(self.memory, x) for x in (q, k, v)]
            out = Elsewhere(self.memory, attnd.bf16(numpy.full(q.shape, 7, numpy.uint16)))
            at = self.client.look(self.ids[0]).lengths[0]
            all_k, all_v = (self.values(LAYERS, rows, KV_HEADS, DIM) for _ in range(2))
            for id, a, b in ((self.ids[0], *(Elsewhere(self.memory, x) for x in (all_k, all_v))), (self.ids[1], all_k, all_v)):
                self.client.append(id, a, b, positions=[at], stream=0)
            self.assertIs(self.client.attend(self.ids[0], on_gpu[0], k=on_gpu[1], v=on_gpu[2], layer=1, out=out, stream=0), out)
            region, put = self.client._rings.gpu_regions[0], self.puts[-1]
            for name, x in zip('qkv', (q, k, v)):
                self.assertEqual(self.memory.read(region.address + put[name], x.nbytes), x.tobytes())
            self.assertEqual(out.read(), self.memory.read(region.address + put['o'], q.nbytes))
            o = self.client.attend(self.ids[1], q, k=k, v=v, layer=1)
            self.is_right(out.read(), o)
            new = self.client.attend(self.ids[0], on_gpu[0], layer=0, stream=0)
            self.assertEqual((new.shape, new.dtype, new.address), (q.shape, 'bf16', region.address + self.puts[-1]['o']))
            self.is_right(self.read(new), self.client.attend(self.ids[1], q, layer=0))
            self.client.append(self.ids[0], *on_gpu[1:], layer=0, stream=0)
            self.client.append(self.ids[1], k, v, layer=0)
        del new
        everything = region.array(region.bytes, 'u8')  # all pieces are free again
        with self.assertRaisesRegex(attnd.BusyError, 'has no .* more for this call'):
            self.client.attend(self.ids[0], on_gpu[0], layer=0, stream=0)
        del everything
        self.client.attend(self.ids[0], on_gpu[0], layer=0, stream=0)
        region.array(region.bytes, 'u8')

    def test_a_prepared_step(self):
        step = self.client.prepare_step(self.ids, DEVICE)
        for rows in range(3):
            for layer in range(LAYERS):
                q, k, v = self.call_of(2)
                on_gpu = [Elsewhere(self.memory, x) for x in (q, k, v)]
                o = step(layer, *(x.data_ptr() for x in on_gpu), 0)
                region, put = self.client._rings.gpu_regions[0], self.puts[-1]
                for name, x in zip('qkv', (q, k, v)):
                    self.assertEqual(self.memory.read(region.address + put[name], x.nbytes), x.tobytes())
                self.assertEqual((o.shape, o.address, put['layer']), (q.shape, region.address + put['o'], layer))
                again = self.client.attend(self.ids, on_gpu[0], layer=layer, stream=0)
                if not STUB:
                    self.assertEqual(self.read(o), self.read(again))
        self.assertEqual([self.client.look(i).lengths for i in self.ids], [[3] * LAYERS] * 2)
        wrong = self.client.prepare_step([4711], DEVICE)
        with self.assertRaises(attnd.NotFoundError):
            wrong(0, *(x.data_ptr() for x in on_gpu), 0)
        with self.assertRaisesRegex(attnd.InvalidError, 'that has failed, cannot be called'):
            wrong(0, *(x.data_ptr() for x in on_gpu), 0)
        self.assertEqual((step.is_open, wrong.is_open), (True, False))
        del step, wrong, o, again
        gc.collect()
        region.array(region.bytes, 'u8')

    def test_all_go_to_the_region_that_has_most(self):
        with self.client.register(2 << 20, device=DEVICE) as one, self.client.register(2 << 20, device=DEVICE) as other:
            q, k, v = self.call_of(3)
            in_one, in_other = self.in_region(one, k), self.in_region(other, q)
            self.client.attend(self.ids[0], in_other, k=in_one, v=Elsewhere(self.memory, v), layer=0)
            put = self.puts[-1]
            self.assertEqual((put['tensors'], put['q']), (other.number + 1, in_other.address - other.address))
            self.assertEqual(self.memory.read(other.address + put['k'], k.nbytes), k.tobytes())

    def test_tickets(self):
        q, k, v = self.call_of(1)
        on_gpu = [Elsewhere(self.memory, x) for x in (q, k, v)]
        tickets = [self.client.attend(self.ids[0], on_gpu[0], k=on_gpu[1], v=on_gpu[2], layer=0, wait=False, stream=0) for _ in range(70)]
        outputs = [t.result() for t in tickets]
        self.assertEqual(len({o.address for o in outputs}), 70)
        for o in outputs:
            self.is_right(self.read(o), self.client.attend(self.ids[1], q, k=k, v=v, layer=0))
        self.client._pool.shutdown()  # whose thread had the last one
        del o, outputs, tickets
        region = self.client._rings.gpu_regions[0]
        region.array(region.bytes, 'u8')  # nobody else keeps outputs

    def test_what_is_wrong_is_said(self):
        q, k, v = self.call_of(2)
        on_gpu = [Elsewhere(self.memory, x) for x in (q, k, v)]

        def attend(q=on_gpu[0], k=on_gpu[1], v=on_gpu[2], **of):
            return self.client.attend(self.ids[0], q, k=k, v=v, layer=0, stream=0, **of)

        numbers = self.rng.standard_normal(q.shape).astype(numpy.float32)
        for wrong, of in (('k: lies in host memory, and q on GPU 0: tensors of a call lie together', {'k': k}),
                          ('v: lies on GPU 1, and q on GPU 0', {'v': Elsewhere(self.memory, v, device=1)}),
                          ('out: lies in host memory, and q on GPU 0', {'out': numpy.empty_like(numbers)}),
                          (r'out: wants bf16 \[2, 8, 64\], has bf16 \[1, 8, 64\]', {'out': Elsewhere(self.memory, q[:1])}),
                          (r'out: wants bf16 \[2, 8, 64\], has f16', {'out': Elsewhere(self.memory, numbers.astype(numpy.float16))}),
                          (r'q: wants bf16 \[2, 8, 64\], has f16', {'q': Elsewhere(self.memory, numbers.astype(numpy.float16))}),
                          (r"out: is of float32 on a GPU, where only PyTorch's .*: wants bf16, or torch.from_dlpack\(\) of it",
                           {'out': Elsewhere(self.memory, numbers)}),
                          ("q: is of float32 on a GPU, where only PyTorch's", {'q': Elsewhere(self.memory, numbers)}),
                          ("dtype: on a GPU only PyTorch's tensors are converted: here o is of bf16", {'dtype': 'f32'}),
                          ("dtype: on a GPU o is of bf16, the geometry's, or of f32", {'dtype': 'f16'}),
                          (r'k: wants bf16 \[2, 2, 64\], has bf16 \[1, 2, 64\]', {'k': Elsewhere(self.memory, k[:1])})):
            with self.assertRaisesRegex(attnd.InvalidError, wrong):
                attend(**of)
        with self.assertRaisesRegex(attnd.InvalidError, "k: is of float32 on a GPU, where only PyTorch's"):
            attend(k=self.client._rings.gpu_region_of(DEVICE).array(k.shape, 'f32'))
        with self.assertRaisesRegex(attnd.InvalidError, 'out: lies on GPU 0, and q in host memory'):
            self.client.attend(self.ids[0], q, layer=0, out=on_gpu[0])
        with attnd.Client(self.daemon.address) as http:
            with self.assertRaisesRegex(attnd.InvalidError, 'out: lies on a GPU, and q in host memory'):
                http.attend(self.client.create(), q, k=k, v=v, layer=0, out=on_gpu[0])
            with self.assertRaisesRegex(attnd.InvalidError, 'tensors on a device cannot be sent'):
                http.append(self.ids[0], *on_gpu[1:], layer=0)
            with self.assertRaisesRegex(attnd.InvalidError, 'made without it'):
                http.register(1, device=0)
        all_k, all_v = (Elsewhere(self.memory, attnd.bf16(numpy.stack([x.view(numpy.ndarray)] * LAYERS))) for x in (k, v))
        self.client.append(self.ids[0], all_k, all_v, stream=0)
        with self.assertRaisesRegex(attnd.ConflictError, 'stand already: a retry has to be asked for'):
            attend(positions=[0])
        with self.assertRaises(attnd.PositionError):
            attend(positions=[3])
        if not STUB:
            attend(positions=[0], retry=True)
            k_wrong = k.copy()
            k_wrong[1, 1, 3] = 0x7FC0
            with self.assertRaisesRegex(attnd.InvalidError, 'not finite'):
                attend(k=Elsewhere(self.memory, k_wrong))
            with self.assertRaisesRegex(attnd.InvalidError, 'void'):
                attend()
            self.assertEqual(self.client.look(self.ids[0]).lengths, [2] * LAYERS)
            attend()
        region = self.client._rings.gpu_region_of(DEVICE)
        region.array(region.bytes, 'u8')  # nothing was kept

    def test_a_daemon_with_less_and_with_none(self):
        small = daemon_of(gpu_bytes=16 << 20)
        self.addCleanup(small.end)
        with attnd.Client(small.address, registered=True) as client:
            self.assertTrue(client.takes_gpu(DEVICE))
            self.assertEqual(client._rings.gpu_regions[0].bytes, 8 << 20)
            with self.assertRaisesRegex(attnd.InvalidError, r'wants 1\.\.16777216 \(transport.gpu_bytes\)'):
                client.register(17 << 20, device=DEVICE)
            with self.assertRaisesRegex(attnd.BusyError, 'transport.gpu_bytes: 8388608 of 16777216 are in use'):
                client.register(16 << 20, device=DEVICE)
            client.register(8 << 20, device=DEVICE)
        none = daemon_of(backend='cpu')
        self.addCleanup(none.end)
        with attnd.Client(none.address, registered=True) as client:
            self.assertFalse(client.takes_gpu(DEVICE))
            with self.assertRaisesRegex(attnd.InvalidError, 'cpu, has no memory that a region could be in'):
                client.register(1 << 20, device=DEVICE)
            with self.assertRaisesRegex(attnd.InvalidError, 'cpu, has no memory that a region could be in'):
                client.append(client.create(), *(Elsewhere(self.memory, x) for x in self.call_of(1)[1:]), layer=0, stream=0)

    def test_without_a_driver(self):
        with unittest.mock.patch.multiple(attnd.gpu, _NAME='libcuda-is-not-here.so.1', _driver=None):
            with self.assertRaisesRegex(attnd.UnsupportedError, 'there is no driver of NVIDIA here'):
                self.client.register(1 << 20, device=DEVICE)
            self.assertFalse(self.client.takes_gpu(DEVICE))
        self.assertEqual(transport_of(self.client)['gpu_bytes'], 0)

    def test_a_gpu_that_cannot_be_had_leaves_nothing(self):
        call = attnd.gpu._Driver.call

        def fail(driver, name, *arguments, doing):
            if name == 'cuMemSetAccess':
                raise attnd.DeviceError({'code': 'device', 'detail': f'{doing}: refused'})
            return call(driver, name, *arguments, doing=doing)

        with unittest.mock.patch.object(attnd.gpu._Driver, 'call', fail):
            with self.assertRaisesRegex(attnd.DeviceError, 'mapping a region for GPU 0, which may be unable to reach'):
                self.client.register(1 << 20, device=DEVICE)
            self.assertFalse(self.client.takes_gpu(DEVICE))
        self.assertEqual(transport_of(self.client)['gpu_bytes'], 0)
        self.assertEqual(self.maps(), 0)

    @staticmethod
    def maps():
        """Of the stub, whose memory is a file's."""
        return pathlib.Path('/proc/self/maps').read_text().count('memfd:gpu')

    def test_closing_gives_everything_back(self):
        self.client.append(self.ids[0], *(Elsewhere(self.memory, self.values(1, KV_HEADS, DIM)) for _ in range(2)), layer=0, stream=0)
        gc.collect()  # what other tests left
        before = len(os.listdir('/proc/self/fd'))
        client = attnd.Client(self.daemon.address, registered=True)
        region = client.register(4 << 20, device=DEVICE)
        array = self.in_region(region, self.values(1, QUERY_HEADS, DIM))
        client.attend(self.ids[0], array, k=Elsewhere(self.memory, self.values(1, KV_HEADS, DIM)),
                      v=Elsewhere(self.memory, self.values(1, KV_HEADS, DIM)), layer=0)
        client.close()
        self.assertEqual(len(self.read(array)), array.bytes)  # it is there still
        with self.assertRaisesRegex(attnd.InvalidError, 'the client is closed'):
            client.attend(self.ids[0], array, layer=0)
        with self.assertRaisesRegex(attnd.InvalidError, 'the client is closed'):
            client.register(1, device=DEVICE)
        self.assertEqual(self.client.attend(self.ids[0], array, layer=0).shape, array.shape)  # another's is copied
        region.close()
        del client, region
        gc.collect()
        if STUB:  # a driver has descriptors of its own
            self.assertEqual(len(os.listdir('/proc/self/fd')), before)
            self.assertEqual(self.maps(), 2)  # self.client's, and that of the array
        del array
        self.client.close()
        gc.collect()
        self.assertEqual(self.maps(), 0)
        self.assert_nothing_is_left()
        self.client = attnd.Client(self.daemon.address, registered=True)
        self.addCleanup(self.client.close)

    def test_a_region_that_is_closed_is_the_daemons_again(self):
        region = self.client.register(4 << 20, device=DEVICE)
        array = self.in_region(region, self.values(1, QUERY_HEADS, DIM))
        self.assertEqual(transport_of(self.client)['gpu_bytes'], 4 << 20)
        region.close()
        region.close()
        self.assertEqual(transport_of(self.client)['gpu_bytes'], 0)
        self.client.append(self.ids[0], *(Elsewhere(self.memory, self.values(1, KV_HEADS, DIM)) for _ in range(2)), layer=0, stream=0)
        self.client.attend(self.ids[0], array, layer=0)
        copy = self.client._rings.gpu_regions[0].address + self.puts[-1]['q']
        self.assertNotEqual(copy, array.address)
        self.assertEqual(self.memory.read(copy, array.bytes), self.read(array))

    def test_a_client_that_is_killed_leaves_nothing(self):
        program = f'''
import attnd, os, signal
client = attnd.Client({self.daemon.address!r}, registered=True)
region = client.register(4 << 20, device={DEVICE})
k = region.array((1, {KV_HEADS}, {DIM}), 'bf16')
ticket = client.append(client.create(id=77), k, k, layer=0, wait=False)
os.kill(os.getpid(), signal.SIGKILL)
'''
        child = subprocess.run([sys.executable, '-c', program])
        self.assertEqual(child.returncode, -signal.SIGKILL)
        self.client.delete(77)
        self.client.close()
        self.assert_nothing_is_left()
        self.client = attnd.Client(self.daemon.address, registered=True)
        self.addCleanup(self.client.close)

    @unittest.skipIf(STUB, 'a stub reads no memory')
    def test_memory_that_is_rewritten_while_steps_read_it(self):
        """What a step has stored is finite, other clients' bits stay what they are, and the daemon serves on."""
        rows, mine, calls = 16, self.ids[0], 400
        region = self.client.register(8 << 20, device=DEVICE)
        q, k, v = (self.in_region(region, x) for x in self.call_of(rows))
        other = attnd.Client(self.daemon.address)
        self.addCleanup(other.close)
        theirs = other.create()
        their_q, their_k, their_v = self.call_of(rows)
        other.append(theirs, their_k, their_v, layer=0)
        expected = other.attend(theirs, their_q, layer=0)
        written, ended = 0, threading.Event()

        def rewrite():
            nonlocal written
            rng, memory = numpy.random.default_rng(9), Memory()
            while not ended.is_set():
                bits = rng.integers(0, 1 << 16, (rows, QUERY_HEADS, DIM), numpy.uint16)
                bits &= 0xBFFF if written % 3 else 0xFFFF  # of three times two without NaN and infinities
                for x in (q, k, v):
                    memory.write(x.address, bits.reshape(-1)[: x.bytes // 2])
                written += 1

        thread = threading.Thread(target=rewrite)
        thread.start()
        refused = appended = 0
        try:
            for i in range(calls):
                try:
                    for layer in range(LAYERS):
                        self.client.append(mine, k, v, layer=layer)
                    appended += rows
                    self.client.attend(mine, q, layer=0, stream=0)
                except attnd.InvalidError:
                    refused += 1
                    self.client.truncate(mine, appended)
                if i % 20 == 0:
                    self.assertEqual(other.attend(theirs, their_q, layer=0).tobytes(), expected.tobytes())
        finally:
            ended.set()
            thread.join()
        self.assertGreater(written, 0)
        self.assertGreater(appended, 0)
        self.assertEqual(self.client.look(mine).length, appended)
        for first in range(0, appended, 256):
            path = f'/v1/sequences/{mine}/kv?range={first}:{min(first + 256, appended)}'
            stored, _ = attnd.client._read_tensors(other._answer(other._send('GET', path, None, {})))
            for name in [name for name in stored if name[0] in 'kv']:
                bits = numpy.frombuffer(stored[name][2], numpy.uint16)
                self.assertTrue(((bits & 0x7F80) != 0x7F80).all(), f'{name} from token {first} on')
        other.audit()
        print(f'# rewritten {written} times while {calls} calls were made: {refused} refused', file=sys.stderr)

    def test_a_forked_child_is_refused(self):
        region = self.client.register(2 << 20, device=DEVICE)
        array = self.in_region(region, self.values(1, KV_HEADS, DIM))
        child = os.fork()
        if child == 0:
            try:
                self.client.append(self.ids[0], array, array, layer=0)
                os._exit(1)
            except attnd.ForkedError:
                del array, region
                os._exit(17)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 17)
        self.client.append(self.ids[0], array, array, layer=0)

    def test_threads_share_a_region(self):
        q, k, v = self.call_of(2)
        self.client.append(self.ids[0], *(Elsewhere(self.memory, x) for x in (k, v)), layer=0, stream=0)
        self.client.append(self.ids[1], k, v, layer=0)
        expected = self.client.attend(self.ids[1], q, layer=0)
        wrong = []

        def attend():
            mine = Elsewhere(self.memory, q)
            out = Elsewhere(self.memory, q)
            for i in range(100):
                o = self.client.attend(self.ids[0], mine, layer=0, stream=0, **({'out': out} if i % 2 else {}))
                got = o.read() if i % 2 else self.read(o)
                if not STUB and got != expected.tobytes():
                    wrong.append(i)

        threads = [threading.Thread(target=attend) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        region = self.client._rings.gpu_regions[0]
        region.array(region.bytes, 'u8')

    def test_another_stream_waits_for_what_may_be_read(self):
        pieces = attnd.regions._Pieces(1024, 256)
        first, _ = pieces.take(1024, 1)
        pieces.give(first, 1024, 1)
        self.assertEqual(pieces.take(256, 1), (0, False))
        self.assertEqual(pieces.take(256, 2), (256, True))
        self.assertEqual(pieces.take(256, 3), (512, False))  # all was waited for
        self.assertEqual(pieces.take(512, 3), (None, False))
        pieces.give(256, 256)
        pieces.give(0, 256)
        self.assertEqual(pieces.take(512), (0, False))


class OfHandles(OfRegions):
    """Tensors of one's own in the midst of an allocation, by handles of CUDA IPC."""

    ALLOCATION, FIRST, BYTES = 4 << 20, 1 << 20, 2 << 20  # of the allocation: where what is registered begins, and its bytes

    @classmethod
    def setUpClass(cls):
        cls.daemon = daemon_of(trust_clients='on')
        cls.addClassCleanup(cls.daemon.end)

    def setUp(self):
        super().setUp()
        self.memory = Memory()
        self.ids = self.client.create(), self.client.create()
        self.base = self.memory.take(self.ALLOCATION)
        self.addCleanup(self.memory.give, self.base)
        self.at = self.FIRST
        self.tensor = Elsewhere(self.memory, numpy.zeros(self.BYTES, numpy.uint8), at=self.base + self.FIRST)
        self.region = self.client.register_ipc(self.tensor)

    def tearDown(self):
        for id in self.ids:
            self.client.delete(id)
        self.client.close()  # which the memory outlives

    def part(self, array):
        """A view of the tensor."""
        there = Elsewhere(self.memory, array, at=self.base + self.at)
        self.at += (array.nbytes + 255) // 256 * 256
        return there

    def test_views_are_used_where_they_are(self):
        self.assertEqual((self.region.address, self.region.bytes), (self.base, self.FIRST + self.BYTES))
        self.assertEqual(transport_of(self.client)['gpu_bytes'], self.FIRST + self.BYTES)
        for rows in (1, 5):
            q, k, v = self.call_of(rows)
            views, out = [self.part(x) for x in (q, k, v)], self.part(numpy.zeros_like(q))
            for layer in range(LAYERS):
                self.assertIs(self.client.attend(self.ids[0], views[0], k=views[1], v=views[2], layer=layer, out=out, stream=0), out)
                put = self.puts[-1]
                self.assertEqual([put[x] for x in 'qkvo'], [x.data_ptr() - self.base for x in (*views, out)])
                self.assertEqual(put['tensors'], self.region.number + 1)
                o = self.client.attend(self.ids[1], q, k=k, v=v, layer=layer)
                if not STUB:
                    self.assertEqual(out.read(), o.tobytes())
        k, v = (self.values(LAYERS, 3, KV_HEADS, DIM) for _ in range(2))
        self.client.append(self.ids[0], self.part(k), self.part(v), stream=0)
        self.assertEqual((self.puts[-1]['tensors'], self.puts[-1]['k'] % 256), (self.region.number + 1, 0))
        self.assertEqual(self.client._rings.gpu_regions, [])  # none was wanted

    def test_what_has_not_all_there_is_copied(self):
        q, k, v = self.call_of(2)
        views, out = [self.part(x) for x in (q, k, v)], self.part(numpy.zeros_like(q))
        beside = Elsewhere(self.memory, v, at=self.base)  # in the allocation, and not in the tensor
        odd = Elsewhere(self.memory, v, at=self.base + self.FIRST + self.BYTES // 2 + 2)
        for v_, of in ((views[2], {}), (views[2], {'out': out, 'lse': True}), (beside, {'out': out}), (odd, {'out': out}),
                       (views[2], {'out': Elsewhere(self.memory, q)}), (Elsewhere(self.memory, v), {'out': out})):
            self.client.attend(self.ids[0], views[0], k=views[1], v=v_, layer=0, stream=0, **of)
            copies, put = self.client._rings.gpu_regions[0], self.puts[-1]
            self.assertEqual(put['tensors'], copies.number + 1)
            for name, x in zip('qkv', (q, k, v)):
                self.assertEqual(self.memory.read(copies.address + put[name], x.nbytes), x.tobytes())
            if 'out' in of:
                self.assertEqual(of['out'].read(), self.memory.read(copies.address + put['o'], q.nbytes))
        copies.array(copies.bytes, 'u8')  # all pieces are free again
        self.assertIsNone(self.region.take(1))

    def test_the_tensor_is_kept_until_the_daemon_has_let_go(self):
        gone, tensor = [], Elsewhere(self.memory, numpy.zeros(1 << 16, numpy.uint8))
        weakref.finalize(tensor, gone.append, 1)
        region, ask = self.client.register_ipc(tensor), self.client._rings._ask
        del tensor
        gc.collect()
        asked = []

        def see(kind, *of, **more):
            answer = ask(kind, *of, **more)
            asked.append((kind, len(gone)))
            return answer

        with unittest.mock.patch.object(self.client._rings, '_ask', see):
            region.close()
        self.assertEqual((asked, gone), ([(4, 0)], [1]))
        self.assertEqual(transport_of(self.client)['gpu_bytes'], self.FIRST + self.BYTES)
        with unittest.mock.patch.object(self.client._rings, '_ask', see):
            self.client.close()
        self.assertEqual(len(asked), 2)
        self.client.close()
        self.assert_nothing_is_left()
        self.client = attnd.Client(self.daemon.address, registered=True)

    def test_what_is_wrong_is_said(self):
        for tensor, text in ((numpy.zeros(8, numpy.uint8), 'tensor: is empty, or not on a GPU'),
                             (Elsewhere(self.memory, numpy.zeros(0, numpy.uint8)), 'tensor: is empty, or not on a GPU'),
                             ([1.0], 'tensor: wants an array that can be written'),
                             (self.client.register(2 << 20, device=DEVICE).array(8, 'u8'), r'memory of cudaMalloc\(\) alone has one')):
            with self.assertRaisesRegex(attnd.InvalidError, text):
                self.client.register_ipc(tensor)
        large = self.memory.take(160 << 20)
        self.addCleanup(self.memory.give, large)
        with self.assertRaisesRegex(attnd.Error, 'transport.gpu_bytes'):
            for _ in range(2):
                self.client.register_ipc(Elsewhere(self.memory, numpy.zeros(8, numpy.uint8), at=large + (150 << 20)))
        with attnd.Client(self.daemon.address) as http:
            with self.assertRaisesRegex(attnd.InvalidError, 'made without it'):
                http.register_ipc(self.tensor)
        suspicious = daemon_of()
        self.addCleanup(suspicious.end)
        if 'CUDA_MPS_PIPE_DIRECTORY' not in os.environ:
            with attnd.Client(suspicious.address, registered=True) as client:
                with self.assertRaisesRegex(attnd.Error, 'a CUDA IPC handle goes only where transport.trust_clients is on'):
                    client.register_ipc(self.tensor)


@unittest.skipIf(torch is None or not STUB, 'wants PyTorch, and the stub of a driver')
class OfStubTensors(OfRegions):
    """Tensors of PyTorch's, in host memory, which a stub takes for a GPU's."""

    class Tensor(torch.Tensor if torch else object):
        is_cuda, device = True, types.SimpleNamespace(index=DEVICE)

    def setUp(self):
        super().setUp()
        self.memory = Memory()
        self.ids = self.client.create(), self.client.create()
        for of in ('tensors', 'client'):
            patch = unittest.mock.patch.object(getattr(attnd, of), 'current_stream', lambda array: 0)
            patch.start()
            self.addCleanup(patch.stop)

    def tensor(self, *shape):
        return torch.randn(shape).as_subclass(self.Tensor)

    def lies(self, name, n):
        return self.memory.read(self.client._rings.gpu_regions[0].address + self.puts[-1][name], n)

    def narrow_bytes(self, x):
        return attnd.bf16.of(x.as_subclass(torch.Tensor).numpy()).tobytes()

    def test_float32_is_narrowed_and_widened(self):
        q, k, v = self.tensor(3, QUERY_HEADS, DIM), self.tensor(3, KV_HEADS, DIM), self.tensor(3, KV_HEADS, DIM)
        half = [x.to(torch.bfloat16) for x in (q, k, v)]
        self.client.append(self.ids[0], k, v, layer=0)
        region = self.client._rings.gpu_regions[0]
        self.memory.write(region.address, self.values(region.bytes // 2))  # a stub writes no o, so that of these bits are left
        for arrays, of in (((q, k, v), {}), ((half[0], k, half[2]), {'dtype': 'f32'}), ((q, *half[1:]), {}),
                           ((q, None, None), {'out': self.tensor(3, QUERY_HEADS, DIM)}),
                           ((half[0], None, None), {'out': self.tensor(3, QUERY_HEADS, DIM)}),
                           ((q, k, v), {'out': half[0].clone()}), ((q, k, v), {'wait': False})):
            o = self.client.attend(self.ids[0], arrays[0], k=arrays[1], v=arrays[2], layer=0, counts=[3], **of)
            o = of.get('out', o.result() if 'wait' in of else o)
            for name, x, given in zip('qkv', (q, k, v), arrays):
                if given is not None:
                    self.assertEqual(self.lies(name, 2 * x.numel()), self.narrow_bytes(x), (name, of))
            self.assertEqual(o.dtype, torch.float32 if 'dtype' in of else of.get('out', arrays[0]).dtype)
            self.assertEqual(self.narrow_bytes(o.float()), self.lies('o', 2 * q.numel()))
        with self.assertRaisesRegex(attnd.InvalidError, r'out: wants bf16 \[3, 8, 64\], has bf16 \[2, 8, 64\]'):
            self.client.attend(self.ids[0], q, layer=0, out=self.tensor(2, QUERY_HEADS, DIM))
        region.array(region.bytes, 'u8')  # all pieces are free again


@unittest.skipIf(torch is None or STUB or not torch.cuda.is_available(), 'PyTorch with a GPU is not here')
class OfTensors(OfRegions):
    """PyTorch's, beside the same calls with tensors in host memory. The daemon is on the client's GPU."""

    daemon_device = DEVICE

    @classmethod
    def setUpClass(cls):
        cls.daemon = daemon_of(cls.daemon_device)
        cls.addClassCleanup(cls.daemon.end)

    def setUp(self):
        super().setUp()
        torch.manual_seed(3)
        self.ids = self.client.create(), self.client.create()

    def tearDown(self):
        for id in self.ids:
            self.client.delete(id)

    @staticmethod
    def tensor(*shape):
        return torch.randn(shape, device=f'cuda:{DEVICE}').to(torch.bfloat16)

    def call_of(self, rows):
        return self.tensor(rows, QUERY_HEADS, DIM), self.tensor(rows, KV_HEADS, DIM), self.tensor(rows, KV_HEADS, DIM)

    def same(self, a, b):
        self.assertTrue(torch.equal(a.cpu().contiguous().view(torch.uint8), b.cpu().contiguous().view(torch.uint8)))

    def region(self):
        return self.client._rings.gpu_region_of(DEVICE)

    def lies_in_region(self, x):
        return self.region().offset_of(x.data_ptr(), x.numel() * x.element_size()) is not None

    def test_histories_have_the_bits_of_host_tensors(self):
        """Random prompts, decode steps over many sequences, forks and truncations, on several streams; inputs and outputs in a region or not."""
        choose = random.Random(7)
        pairs, streams = [], [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        checked = 0
        for turn in range(80):
            action = choose.choice(['prompt', 'decode', 'decode', 'decode', 'fork', 'truncate', 'delete'])
            if action == 'prompt' and len(pairs) < 12:
                pairs.append((self.client.create(), self.client.create()))
                named, counts = pairs[-1:], [choose.randint(1, 300)]
            elif action == 'decode' and pairs:
                named = choose.sample(pairs, choose.randint(1, len(pairs)))
                counts = [choose.choice([1, 1, 1, 5]) for _ in named]
            elif action == 'fork' and pairs and len(pairs) < 12:
                a, b = choose.choice(pairs)
                pairs.append((self.client.fork(a), self.client.fork(b)))
                continue
            elif action == 'truncate' and pairs:
                a, b = choose.choice(pairs)
                length = choose.randint(1, self.client.look(b).length)
                self.client.truncate(a, length)
                self.client.truncate(b, length)
                continue
            elif action == 'delete' and len(pairs) > 3:
                for id in pairs.pop(choose.randrange(len(pairs))):
                    self.client.delete(id)
                continue
            else:
                continue
            with torch.cuda.stream(choose.choice(streams)):
                for layer in range(LAYERS):
                    self.step_on_both(choose, named, counts, layer)
                    checked += 1
        self.assertGreater(checked, 40)
        for pair in pairs:
            a, b = (self.client.look(i).lengths for i in pair)
            self.assertEqual(a, b)
            for id in pair:
                self.client.delete(id)
        gc.collect()
        self.region().array(self.region().bytes, 'u8')  # all pieces are free again

    def step_on_both(self, choose, named, counts, layer):
        of = self.call_of(sum(counts))
        on_host = [x.cpu() for x in of]
        if choose.random() < 0.5:
            of = [self.client.empty(x.shape).copy_(x) for x in of]
        out = choose.choice([None, torch.empty_like(of[0]), self.client.empty(of[0].shape)])
        o, lse = self.client.attend([a for a, _ in named], of[0], k=of[1], v=of[2], layer=layer, counts=counts, lse=True, out=out)
        self.assertTrue(out is None or o is out)
        self.assertEqual((o.device.index, lse.device.index, lse.dtype), (DEVICE, DEVICE, torch.float32))
        o2, lse2 = self.client.attend([b for _, b in named], on_host[0], k=on_host[1], v=on_host[2], layer=layer, counts=counts, lse=True)
        self.same(o, o2)
        self.same(lse, lse2)

    def test_appends_of_all_layers(self):
        k, v = (self.tensor(LAYERS, 50, KV_HEADS, DIM) for _ in range(2))
        self.client.append(self.ids[0], k, v)
        self.client.append(self.ids[1], k.cpu(), v.cpu())
        for layer in range(LAYERS):
            q = self.tensor(1, QUERY_HEADS, DIM)
            self.same(self.client.attend(self.ids[0], q, layer=layer), self.client.attend(self.ids[1], q.cpu(), layer=layer))

    def test_tensors_of_ones_own_by_a_handle(self):
        daemon = daemon_of(self.daemon_device, trust_clients='on')
        self.addCleanup(daemon.end)
        q, k, v = self.call_of(4)
        with attnd.Client(daemon.address, registered=True) as client:
            ids = client.create(), client.create()
            mine = torch.empty(3, 4, QUERY_HEADS, DIM, dtype=torch.bfloat16, device=q.device)
            with client.register_ipc(mine) as region:
                kv = mine[1].view(-1)
                views = mine[0], kv[: k.numel()].view(k.shape), kv[k.numel() : 2 * k.numel()].view(v.shape)
                for to, x in zip(views, (q, k, v)):
                    to.copy_(x)
                for layer in range(LAYERS):
                    o = client.attend(ids[0], views[0], k=views[1], v=views[2], layer=layer, out=mine[2])
                    self.assertEqual(o.data_ptr(), mine[2].data_ptr())
                    self.same(o, client.attend(ids[1], q.cpu(), k=k.cpu(), v=v.cpu(), layer=layer))
                self.assertEqual((client._rings.gpu_regions, region.offset_of(mine.data_ptr(), 1)), ([], mine.data_ptr() - region.address))
                o = client.attend(ids[0], views[0], layer=0, counts=[4])  # into a region of the daemon's
                self.same(o, client.attend(ids[1], q.cpu(), layer=0, counts=[4]))

    def test_float32(self):
        """Narrowed and widened on the stream, with the bits of float32 in host memory; outputs are complete for any stream."""
        other = torch.cuda.Stream()
        for turn, of in enumerate(({}, {'out': True}, {'lse': True}, {'wait': False}, {'stream': True}, {'stream': True, 'wait': False, 'lse': True})):
            q, k, v = (torch.randn(x.shape, device=x.device) for x in self.call_of(3))
            late = [torch.zeros_like(x) for x in (q, k, v)]
            torch.cuda.synchronize()
            stream = torch.cuda.Stream() if 'stream' in of else torch.cuda.current_stream()
            with torch.cuda.stream(stream):
                torch.cuda._sleep(BUSY_CYCLES)
                for to, x in zip(late, (q, k, v)):
                    to.copy_(x)
            more = {**of, **({'out': torch.empty_like(q)} if 'out' in of else {}), **({'stream': stream.cuda_stream} if 'stream' in of else {})}
            got = self.client.attend(self.ids[0], late[0], k=late[1], v=late[2], layer=0, **more)
            got = got.result() if 'wait' in of else got
            want = self.client.attend(self.ids[1], q.cpu(), k=k.cpu(), v=v.cpu(), layer=0, lse=True)
            with torch.cuda.stream(other):
                for a, b in zip(got if 'lse' in of else [got], want):
                    self.assertEqual(a.dtype, torch.float32)
                    self.same(a.clone(), b)
        q16 = q.to(torch.bfloat16)
        o = self.client.attend(self.ids[0], q16, k=k, v=v.to(torch.bfloat16), layer=0, dtype='f32')
        self.same(o, self.client.attend(self.ids[1], q16.cpu(), k=k.cpu(), v=v.cpu(), layer=0, dtype='f32'))
        for wrong in (float('inf'), float('nan'), 2.0**97):
            bad = v.clone()
            bad[0, 1, 3] = wrong
            length = self.client.look(self.ids[0]).lengths
            with self.assertRaisesRegex(attnd.InvalidError, 'not finite'):
                self.client.attend(self.ids[0], q, k=k, v=bad, layer=0)
            with self.assertRaises(attnd.InvalidError):
                self.client.attend(self.ids[0], q, layer=0)
            self.client.truncate(self.ids[0], 0)
            self.client.append(self.ids[0], *(torch.randn(LAYERS, length[0], KV_HEADS, DIM, device=q.device) for _ in range(2)))

    def test_empty_is_used_where_it_is(self):
        q, k, v = (self.client.empty(x.shape).copy_(x) for x in self.call_of(4))
        out = self.client.empty(q.shape, torch.bfloat16, device=f'cuda:{DEVICE}')
        self.assertEqual((q.dtype, q.device, q.is_contiguous()), (torch.bfloat16, torch.device('cuda', DEVICE), True))
        self.assertIs(self.client.attend(self.ids[0], q, k=k, v=v, layer=0, out=out), out)
        region, put = self.region(), self.puts[-1]
        self.assertEqual([put[x] for x in 'qkvo'], [x.data_ptr() - region.address for x in (q, k, v, out)])
        self.same(out, self.client.attend(self.ids[1], q.cpu(), k=k.cpu(), v=v.cpu(), layer=0))
        self.same(self.client.attend(self.ids[0], q[1:3], layer=0, counts=[2]), self.client.attend(self.ids[1], q[1:3].cpu(), layer=0, counts=[2]))
        self.assertEqual(self.puts[-2]['q'], q[1:].data_ptr() - region.address)
        with self.assertRaises(attnd.BusyError):
            self.client.empty(region.bytes, 'u8')

    def test_streams_are_waited_for(self):
        """Inputs are written late, on a stream that is not the default one, and outputs are read on another one at once."""
        late, other = torch.cuda.Stream(), torch.cuda.Stream()
        q, k, v = self.call_of(3)
        expected = self.client.attend(self.ids[1], q.cpu(), k=k.cpu(), v=v.cpu(), layer=0)
        inputs = [self.client.empty(x.shape).zero_() if i % 2 else torch.zeros_like(x) for i, x in enumerate((q, k, v))]
        torch.cuda.synchronize()
        out = torch.empty_like(q)
        with torch.cuda.stream(late):
            torch.cuda._sleep(BUSY_CYCLES)
            for to, x in zip(inputs, (q, k, v)):
                to.copy_(x)
            o = self.client.attend(self.ids[0], inputs[0], k=inputs[1], v=inputs[2], layer=0)
            self.client.attend(self.ids[0], inputs[0], layer=0, out=out)
        with torch.cuda.stream(other):
            copies = o.clone(), out.clone()
        other.synchronize()
        for x in copies:
            self.same(x, expected)

    def test_a_piece_is_not_given_while_another_stream_reads_it(self):
        self.client.append(self.ids[0], *self.call_of(30)[1:], layer=0)
        slow, q = torch.cuda.Stream(), self.call_of(1)[0]
        expected = self.client.attend(self.ids[0], q, layer=0).cpu()
        with torch.cuda.stream(slow):
            o = self.client.attend(self.ids[0], q, layer=0)
            torch.cuda._sleep(BUSY_CYCLES)
            read = o.clone()
            at = o.data_ptr()
            del o
        more = [self.client.empty((1, QUERY_HEADS, DIM)) for _ in range(4)]
        self.assertIn(at, [x.data_ptr() for x in more])
        for x in more:
            x.zero_()
        torch.cuda.synchronize()
        self.same(read, expected)

    def test_outputs_stay_what_they_are(self):
        q, k, v = self.call_of(1)
        self.client.append(self.ids[0], k, v, layer=0)
        outputs, expected = [], []
        for _ in range(50):
            q = self.call_of(1)[0]
            outputs.append(self.client.attend(self.ids[0], q, layer=0, wait=False))
            expected.append(q)
        outputs = [o.result() for o in outputs]
        self.client.append(self.ids[1], k.cpu(), v.cpu(), layer=0)
        for o, q in zip(outputs, expected):
            self.assertTrue(self.lies_in_region(o))
            self.same(o, self.client.attend(self.ids[1], q.cpu(), layer=0))
        kept = outputs[3].clone()
        self.client.close()
        self.same(outputs[3], kept)
        self.client = attnd.Client(self.daemon.address, registered=True)
        self.addCleanup(self.client.close)
        del outputs
        gc.collect()

    def test_arrays_of_dlpack(self):
        q, k, v = (self.region().array(x.shape, 'bf16') for x in self.call_of(2))
        for x in (q, k, v):
            torch.from_dlpack(x).normal_()
        torch.cuda.synchronize()
        o = torch.from_dlpack(self.client.attend(self.ids[0], q, k=k, v=v, layer=0))
        self.same(o, self.client.attend(self.ids[1], *(torch.from_dlpack(x).cpu() for x in (q,)), k=torch.from_dlpack(k).cpu(),
                                        v=torch.from_dlpack(v).cpu(), layer=0))


    def test_a_model_keeps_its_tensors_on_the_gpu(self):
        """A small random Llama through the daemon: the tokens of the same model whose tensors go by way of host memory."""
        try:
            import transformers

            import attnd.transformers
        except ImportError as e:
            self.skipTest(f'transformers is not installed: {e}')
        config = transformers.LlamaConfig(vocab_size=320, hidden_size=QUERY_HEADS * DIM, intermediate_size=96, num_hidden_layers=LAYERS,
                                          num_attention_heads=QUERY_HEADS, num_key_value_heads=KV_HEADS, head_dim=DIM,
                                          max_position_embeddings=1024, pad_token_id=0, bos_token_id=1, eos_token_id=2)
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).to(f'cuda:{DEVICE}').eval()
        prompts = torch.randint(3, 320, (3, 70), device=model.device)
        padding = torch.ones_like(prompts)
        padding[0, :30] = 0
        asked = {'attention_mask': padding, 'max_new_tokens': 24, 'do_sample': False}
        attnd.transformers.use(model, engine=self.client)
        before = len(self.puts)
        on_gpu = model.generate(prompts, **asked)
        self.assertEqual({p['tensors'] for p in self.puts[before:]}, {self.region().number + 1})
        beams = model.generate(prompts[:1], max_new_tokens=12, do_sample=False, num_beams=3)
        self.client.gpu_rows, rows = 60, self.client.gpu_rows  # prompts are cut
        self.assertEqual(model.generate(prompts, **asked).tolist(), on_gpu.tolist())
        self.client.gpu_rows = rows
        with unittest.mock.patch.object(attnd.Client, 'takes_gpu', lambda client, device: False):
            before = len(self.puts)
            self.assertEqual(model.generate(prompts, **asked).tolist(), on_gpu.tolist())
            self.assertEqual({p['tensors'] for p in self.puts[before:]}, {0})
            self.assertEqual(model.generate(prompts[:1], max_new_tokens=12, do_sample=False, num_beams=3).tolist(), beams.tolist())
        self.assertEqual(self.client.stats().sequences, len(self.ids))


@unittest.skipIf(torch is None or STUB or torch.cuda.device_count() < 2 or not torch.cuda.can_device_access_peer(0, 1),
                 'there are not two GPUs that reach each other')
class OfTensorsOfAnotherGpu(OfTensors):
    """The daemon is on the other one."""

    daemon_device = 1

    def test_several_gpus(self):
        q, k, v = (x.to('cuda:1') for x in self.call_of(2))
        with torch.cuda.device(1):
            o = self.client.attend(self.ids[0], q, k=k, v=v, layer=0)
        self.assertEqual(o.device.index, 1)
        self.same(o, self.client.attend(self.ids[1], q.cpu(), k=k.cpu(), v=v.cpu(), layer=0))
        self.same(self.client.attend(self.ids[0], q.to('cuda:0'), layer=0), o)
        with self.assertRaisesRegex(attnd.InvalidError, 'k: lies on GPU 0, and q on GPU 1'):
            self.client.attend(self.ids[0], q, k=k.to('cuda:0'), v=v, layer=0)


if __name__ == '__main__':
    unittest.main()
