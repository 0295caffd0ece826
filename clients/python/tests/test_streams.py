# SPDX-License-Identifier: Apache-2.0
"""Calls with tensors on the GPU, ordered on PyTorch's streams: beside the same calls with tensors in host memory, whose bits they have."""
import contextlib
import random
import time
import unittest

try:
    import torch
except ImportError:
    raise unittest.SkipTest('torch is not installed') from None
if not torch.cuda.is_available():
    raise unittest.SkipTest('there is no GPU')

import attnd

LAYERS, QUERY_HEADS, KV_HEADS, DIM, BLOCK = 4, 8, 2, 64, 16
GEOMETRY = {'layers': LAYERS, 'query_heads': QUERY_HEADS, 'kv_heads': KV_HEADS, 'head_dim': DIM, 'block_size': BLOCK,
            'dtype': 'bf16', 'kv_dtype': 'bf16'}
CONFIG = {'geometry': GEOMETRY, 'pool': {'blocks': 4096}, 'backend': {'name': 'cuda'}, 'limits': {'sequence_tokens': 8192}}
BUSY_CYCLES = 200_000_000  # a tenth of a second


def values(*shape):
    return torch.randn(shape, device='cuda').to(torch.bfloat16)


def same(a, b):
    return torch.equal(a.cpu().contiguous().view(torch.uint8), b.cpu().contiguous().view(torch.uint8))


class OfStreams(unittest.TestCase):
    config = CONFIG

    def setUp(self):
        torch.manual_seed(11)
        self.engine, self.host = attnd.Engine(self.config), attnd.Engine(self.config)

    def tearDown(self):
        for engine in (self.engine, self.host):
            engine.audit()
            engine.close()

    def kv(self, n):
        return values(n, KV_HEADS, DIM), values(n, KV_HEADS, DIM)


class Streams(OfStreams):
    def test_histories_have_the_bits_of_host_tensors(self):
        """Random prompts, decode steps over many sequences, forks and truncations, on the default stream and on others."""
        choose = random.Random(3)
        pairs, streams = [], [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        outputs = []
        for turn in range(60):
            action = choose.choice(['prompt', 'decode', 'decode', 'decode', 'fork', 'truncate', 'delete'])
            stream = choose.choice(streams)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                if action == 'prompt' and len(pairs) < 12:
                    pairs.append((self.engine.create(), self.host.create()))
                    named, counts = pairs[-1:], [choose.randint(1, 300)]
                elif action == 'decode' and pairs:
                    named = choose.sample(pairs, choose.randint(1, len(pairs)))
                    counts = [choose.choice([1, 1, 1, 5]) for _ in named]
                elif action == 'fork' and pairs and len(pairs) < 12:
                    a, b = choose.choice(pairs)
                    pairs.append((self.engine.fork(a), self.host.fork(b)))
                    continue
                elif action == 'truncate' and pairs:
                    a, b = choose.choice(pairs)
                    length = choose.randint(1, self.host.look(b).length)
                    self.engine.truncate(a, length)
                    self.host.truncate(b, length)
                    continue
                elif action == 'delete' and len(pairs) > 3:
                    a, b = pairs.pop(choose.randrange(len(pairs)))
                    self.engine.delete(a)
                    self.host.delete(b)
                    continue
                else:
                    continue
                for layer in range(LAYERS):
                    q, (k, v) = values(sum(counts), QUERY_HEADS, DIM), self.kv(sum(counts))
                    o, lse = self.engine.attend([a for a, _ in named], q, k=k, v=v, layer=layer, counts=counts, lse=True)
                    o2, lse2 = self.host.attend([b for _, b in named], q.cpu(), k=k.cpu(), v=v.cpu(), layer=layer, counts=counts, lse=True)
                    outputs.append((turn, layer, o, o2, lse, lse2))
            torch.cuda.current_stream().wait_stream(stream)
        for turn, layer, o, o2, lse, lse2 in outputs:
            self.assertTrue(same(o, o2), (turn, layer))
            self.assertTrue(same(lse, lse2), (turn, layer))
        for a, b in pairs:
            self.assertEqual(self.engine.look(a).lengths, self.host.look(b).lengths)

    def test_no_call_waits_for_the_device(self):
        """While the GPU is busy with something else for a tenth of a second, two tokens' layers are submitted; one more is too many."""
        id = self.engine.create()
        for layer in range(LAYERS):
            self.engine.append(id, *self.kv(100), layer=layer)
        torch.cuda.synchronize()
        self.assertEqual(self.engine.look(id).length, 100)
        q, (k, v) = values(1, QUERY_HEADS, DIM), self.kv(1)
        out = [torch.empty_like(q) for _ in range(2 * LAYERS)]
        torch.cuda._sleep(BUSY_CYCLES)
        event = torch.cuda.Event()
        event.record()
        for i in range(2 * LAYERS):
            self.engine.attend(id, q, k=k, v=v, layer=i % LAYERS, out=out[i])
        with self.assertRaises(attnd.BusyError) as raised:
            self.engine.attend(id, q, k=k, v=v, layer=0, wait=False)
        self.assertFalse(event.query(), 'the calls have waited for the GPU')
        self.assertIn('queue', str(raised.exception))
        self.engine.attend(id, q, k=k, v=v, layer=0)  # which waits for room
        self.assertTrue(event.query())
        self.assertEqual(self.engine.look(id).lengths, [103, 102, 102, 102])

    def test_work_of_others_on_the_stream_comes_before_and_behind(self):
        """k is made, and o is used, on the stream without a wait between."""
        id, of_host = self.engine.create(), self.host.create()
        for _ in range(20):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                torch.cuda._sleep(BUSY_CYCLES // 100)
                q, (k, v) = values(1, QUERY_HEADS, DIM), self.kv(1)
                for layer in range(LAYERS):
                    o = self.engine.attend(id, q, k=k, v=v, layer=layer)
                    doubled = o * 2
                    o.zero_()
                    o2 = self.host.attend(of_host, q.cpu(), k=k.cpu(), v=v.cpu(), layer=layer)
                    self.assertTrue(same(doubled, o2 * 2))

    def test_states_are_merged_on_the_stream(self):
        """Of halves of a sequence, made on the same stream; a state without keys counts for nothing, whatever its o is."""
        whole, halves = self.engine.create(), [self.engine.create() for _ in range(2)]
        k, v = self.kv(200)
        self.engine.append(whole, k, v, layer=0)
        for id, first, end in zip(halves, (0, 120), (120, 200)):
            self.engine.append(id, k[first:end].contiguous(), v[first:end].contiguous(), layer=0)
        q = values(1, QUERY_HEADS, DIM)
        event = torch.cuda.Event()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            for busy in 0, BUSY_CYCLES:  # the first time PyTorch takes memory and loads kernels, for which it may wait itself
                if busy:
                    torch.cuda._sleep(busy)
                event.record()
                expected, expected_lse = self.engine.attend(whole, q, layer=0, lse=True)
                states = [self.engine.attend(id, q, layer=0, lse=True) for id in halves]
                nothing = torch.full_like(q, 7), torch.full((1, QUERY_HEADS), float('-inf'), device='cuda')
                nan = torch.full_like(q, 7), torch.full((1, QUERY_HEADS), float('nan'), device='cuda')
                all_ = [*states, nothing, nan]
                merged, lse = self.engine.merge(torch.stack([s[0] for s in all_]), torch.stack([s[1] for s in all_]))
                self.assertFalse(busy and event.query(), 'merge() has waited for the GPU')
                torch.cuda.current_stream().synchronize()
        torch.testing.assert_close(merged, expected, atol=2e-2, rtol=2e-2)
        torch.testing.assert_close(lse, expected_lse, atol=1e-4, rtol=1e-4)
        host, host_lse = self.host.merge(torch.stack([s[0] for s in states]).cpu(), torch.stack([s[1] for s in states]).cpu())
        self.assertTrue(same(merged, host))
        self.assertTrue(same(lse, host_lse))

    def test_what_is_not_finite_is_void_with_all_that_followed(self):
        id, other = self.engine.create(), self.engine.create()
        for layer in range(LAYERS):
            self.engine.append([id, other], *self.kv(40), layer=layer, counts=[20, 20])
        q, (k, v) = values(2, QUERY_HEADS, DIM), self.kv(2)
        tickets, outputs = [], []
        for layer in range(LAYERS):
            bad = v.clone()
            if layer == 2:
                bad[0, 1, 5] = float('inf')
            tickets.append(self.engine.attend([id, other], q, k=k, v=bad, layer=layer, wait=False))
        for layer in range(LAYERS):
            outputs.append(tickets[layer]._outputs)
        for layer in range(2):
            tickets[layer].result()
        for layer in (2, 3):
            with self.assertRaises(attnd.InvalidError) as raised:
                tickets[layer].result()
            self.assertIn('v of tokens 20..20 at layer 2', str(raised.exception))
        for layer in range(LAYERS):
            self.assertEqual(bool(outputs[layer][0].isnan().all()), layer >= 2)
            self.assertFalse(bool(outputs[layer][1].isnan().any()), layer)
        self.assertEqual(self.engine.look(id).lengths, [20] * LAYERS)
        self.assertEqual(self.engine.look(other).lengths, [21] * LAYERS)
        self.assertEqual(self.engine.stats().voided, 2)
        with self.assertRaises(attnd.InvalidError):  # the next call is told, once
            self.engine.attend(id, q[:1], k=k[:1], v=v[:1], layer=0)
        of_host = self.host.create()
        for layer in range(LAYERS):  # and the sequence goes on as if nothing had been
            o = self.engine.attend(id, q[:1], k=k[:1], v=v[:1], layer=layer)
            self.assertFalse(bool(o.isnan().any()))
        self.assertEqual(self.engine.look(id).length, 21)
        del of_host

    def test_a_call_that_nobody_waits_for_is_told_by_the_next_one(self):
        id = self.engine.create()
        k, v = self.kv(8)
        k[3, 0, 0] = float('nan')
        self.engine.append(id, k, v, layer=0)
        torch.cuda.synchronize()
        with self.assertRaises(attnd.InvalidError) as raised:
            for layer in range(1, LAYERS):
                self.engine.append(id, *self.kv(8), layer=layer)
                self.engine.stats()
        self.assertIn('k of tokens 0..7 at layer 0', str(raised.exception))
        self.assertEqual(self.engine.look(id).lengths, [0] * LAYERS)

    def test_nothing_of_a_void_append_stays_in_blocks_of_others(self):
        """Blocks that had NaN given to them serve another sequence, whose last block they are."""
        id = self.engine.create()
        k, v = (torch.full((BLOCK * 4096 - BLOCK, KV_HEADS, DIM), float('nan'), device='cuda', dtype=torch.bfloat16) for _ in range(2))
        for at in range(0, 4096, 1024):
            self.engine.append(id, k[at : at + 1024], v[at : at + 1024], layer=0, positions=[at])
        torch.cuda.synchronize()
        self.engine.delete(id)
        id, of_host = self.engine.create(), self.host.create()
        q, (k, v) = values(1, QUERY_HEADS, DIM), self.kv(1)
        for layer in range(LAYERS):
            o = self.engine.attend(id, q, k=k, v=v, layer=layer)
            self.assertTrue(same(o, self.host.attend(of_host, q.cpu(), k=k.cpu(), v=v.cpu(), layer=layer)))

    def test_positions(self):
        id = self.engine.create()
        k, v = self.kv(5)
        self.engine.append(id, k, v, layer=0, positions=[0])
        with self.assertRaises(attnd.ConflictError):
            self.engine.append(id, k, v, layer=0, positions=[0])
        self.engine.append(id, k, v, layer=0, positions=[0], retry=True)
        with self.assertRaises(attnd.ConflictError):
            self.engine.append(id, v, k, layer=0, positions=[0], retry=True)
        with self.assertRaises(attnd.PositionError):
            self.engine.append(id, k, v, layer=0, positions=[6])
        self.assertEqual(self.engine.look(id).lengths, [5, 0, 0, 0])

    def test_a_pause_between_two_calls_is_no_device_that_hangs(self):
        config = {**self.config, 'backend': {'name': 'cuda', 'step_timeout_s': 1}}
        with attnd.Engine(config) as engine:
            id = engine.create()
            q, (k, v) = values(1, QUERY_HEADS, DIM), self.kv(1)
            engine.attend(id, q, k=k, v=v, layer=0)
            engine.attend(id, q, k=k, v=v, layer=1)
            time.sleep(2.5)
            for layer in (2, 3):
                engine.attend(id, q, k=k, v=v, layer=layer)
            self.assertEqual(engine.look(id).length, 1)

    def test_tables_of_ones_own(self):
        lease, of_host = self.engine.lease(8), self.host.lease(8)
        for _ in range(3):
            q, (k, v) = values(2, QUERY_HEADS, DIM), self.kv(40)
            outputs = []
            for engine, l, where in ((self.engine, lease, 'cuda'), (self.host, of_host, 'cpu')):
                slots = [l.blocks[i // BLOCK] * BLOCK + i % BLOCK for i in range(20)] + [l.blocks[4 + i // BLOCK] * BLOCK + i % BLOCK for i in range(20)]
                tables = [l.blocks[:2], l.blocks[4:6]]
                outputs.append(engine.paged(l, q.to(where), tables, [20, 20], k=k.to(where), v=v.to(where), slot_mapping=slots, layer=1))
            self.assertTrue(same(*outputs))
        k[0, 0, 0] = float('nan')
        self.engine.paged(lease, k=k, v=v, slot_mapping=slots, layer=1)
        torch.cuda.synchronize()
        self.engine.stats()
        with self.assertRaises(attnd.InvalidError):
            self.engine.paged(lease, q, tables, [20, 20], layer=1)
        self.engine.paged(lease, q, tables, [20, 20], layer=1)

    def test_what_is_wrong_is_said(self):
        id = self.engine.create()
        q, (k, v) = values(1, QUERY_HEADS, DIM), self.kv(1)
        for arguments, text in (
            (dict(k=k.cpu(), v=v), 'is not on the GPU'),
            (dict(k=k.half(), v=v.half()), 'wants bf16'),
            (dict(k=k, v=v, out=torch.empty(q.shape, dtype=q.dtype)), 'is not on the GPU'),
        ):
            with self.assertRaises(attnd.InvalidError) as raised:
                self.engine.attend(id, q, layer=0, **arguments)
            self.assertIn(text, str(raised.exception))
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        with torch.cuda.graph(graph, stream=stream):
            with self.assertRaises(attnd.InvalidError) as raised:
                self.engine.attend(id, q, k=k, v=v, layer=0, out=torch.empty_like(q))
        self.assertIn('captured', str(raised.exception))
        with attnd.Engine(self.config, thread=True) as engine:
            with self.assertRaises(attnd.UnsupportedError):
                engine.attend(engine.create(), q, k=k, v=v, layer=0)
        self.assertEqual(self.engine.look(id).length, 0)

    def test_blocks_that_are_swapped_come_back(self):
        config = {**self.config, 'pool': {'blocks': 64, 'host_blocks': 64}}
        with attnd.Engine(config) as engine:
            ids = [engine.create() for _ in range(3)]
            kv = [[self.kv(30 * BLOCK) for _ in range(LAYERS)] for _ in ids]
            of_host = [self.host.create() for _ in ids]
            for id, host, given in zip(ids, of_host, kv):
                for layer, (k, v) in enumerate(given):
                    engine.append(id, k, v, layer=layer)
                    self.host.append(host, k.cpu(), v.cpu(), layer=layer)
            for _ in range(3):
                for id, host in zip(ids, of_host):
                    q, (k, v) = values(1, QUERY_HEADS, DIM), self.kv(1)
                    for layer in range(LAYERS):
                        o = engine.attend(id, q, k=k, v=v, layer=layer)
                        self.assertTrue(same(o, self.host.attend(host, q.cpu(), k=k.cpu(), v=v.cpu(), layer=layer)))
            engine.audit()


class OtherThanPyTorchs:
    """A tensor that speaks DLPack alone."""

    def __init__(self, tensor):
        self._tensor, self.shape = tensor, tuple(tensor.shape)

    def __dlpack__(self, **of):
        return self._tensor.__dlpack__(**of)

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()


class Float32(OfStreams):
    """Where the geometry has 16 bits: the bits of float32 in host memory."""

    def numbers(self, *shape):
        return torch.randn(shape, device='cuda')

    def call_of(self, rows):
        return self.numbers(rows, QUERY_HEADS, DIM), self.numbers(rows, KV_HEADS, DIM), self.numbers(rows, KV_HEADS, DIM)

    @contextlib.contextmanager
    def engines_of(self, dtype, kv_dtype):
        """Others, for the time being."""
        config, were = {**CONFIG, 'geometry': {**GEOMETRY, 'dtype': dtype, 'kv_dtype': kv_dtype}}, (self.engine, self.host)
        with attnd.Engine(config) as engine, attnd.Engine(config) as host:
            self.engine, self.host = engine, host
            try:
                yield
            finally:
                self.engine, self.host = were

    def step_on_both(self, ids, arrays, **of):
        """A call with tensors on the GPU, which are written late, and the same in host memory."""
        stream = torch.cuda.ExternalStream(of['stream']) if 'stream' in of else torch.cuda.current_stream()
        late = [torch.zeros_like(x) for x in arrays]
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(BUSY_CYCLES // 100)
            for to, x in zip(late, arrays):
                to.copy_(x)
        got = self.engine.attend(ids[0], late[0], k=late[1], v=late[2], lse=True, **of)
        got = got.result() if of.get('wait') is False else got
        del late
        with torch.cuda.stream(stream):
            fill = [torch.full_like(x, 9) for x in arrays * 2]  # in the memory of what was narrowed, if that were free too early
            copies = [x.clone() for x in got]
            stream.synchronize()
        del fill
        on_host = {n: x.cpu() if n == 'out' else x for n, x in of.items() if n not in ('stream', 'wait')}
        want = self.host.attend(ids[1], arrays[0].cpu(), k=arrays[1].cpu(), v=arrays[2].cpu(), lse=True, **on_host)
        for a, b in zip(copies, want):
            self.assertEqual(a.dtype, b.dtype)
            self.assertTrue(same(a, b), of)
        return got[0]

    def test_bits_are_those_of_host_tensors(self):
        for dtype, kv_dtype in (('bf16', 'bf16'), ('f16', 'f16'), ('bf16', 'e4m3'), ('f16', 'e5m2')):
            with self.engines_of(dtype, kv_dtype):
                ids, half = (self.engine.create(), self.host.create()), torch.float16 if dtype == 'f16' else torch.bfloat16
                k, v = (self.numbers(LAYERS, 40, KV_HEADS, DIM) for _ in range(2))
                self.engine.append(ids[0], k, v)
                self.host.append(ids[1], k.cpu(), v.cpu())
                other = torch.cuda.Stream()  # `stream=` is not the current one
                for of in ({}, {'wait': False}, {'stream': other.cuda_stream}, {'stream': other.cuda_stream, 'wait': False},
                           {'out': self.numbers(3, QUERY_HEADS, DIM)}, {'out': values(3, QUERY_HEADS, DIM).to(half)}, {'dtype': dtype}):
                    for layer in range(LAYERS):
                        o = self.step_on_both(ids, list(self.call_of(3)), layer=layer, **of)
                        self.assertTrue('out' not in of or o is of['out'])
                q, k, v = self.call_of(2)
                o = self.engine.attend(ids[0], q.to(half), k=k, v=v.to(half), layer=0, dtype='f32')
                self.assertEqual(o.dtype, torch.float32)
                self.assertTrue(same(o, self.host.attend(ids[1], q.to(half).cpu(), k=k.cpu(), v=v.cpu(), layer=0, dtype='f32')))
                q, k, v = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in self.call_of(2))
                self.assertTrue(same(self.engine.attend(ids[0], q, k=k, v=v, layer=1), self.host.attend(ids[1], q.cpu(), k=k.cpu(), v=v.cpu(), layer=1)))

    def test_a_call_does_not_wait_for_the_device(self):
        id, (q, k, v) = self.engine.create(), self.call_of(1)
        event = torch.cuda.Event()
        for busy in 0, BUSY_CYCLES:  # the first time PyTorch loads kernels
            torch.cuda.synchronize()
            if busy:
                torch.cuda._sleep(busy)
            event.record()
            outputs = [self.engine.attend(id, q, k=k, v=v, layer=layer) for layer in range(LAYERS)]
            tickets = [self.engine.attend(id, q, layer=layer, wait=False) for layer in range(LAYERS)]
            self.assertFalse(busy and event.query(), 'a call has waited for the GPU')
        for o, ticket in zip(outputs, tickets):
            self.assertTrue(same(o, ticket.result()))

    def test_tables_and_merges(self):
        lease, of_host = self.engine.lease(4), self.host.lease(4)
        q, (k, v) = self.numbers(2, QUERY_HEADS, DIM), (self.numbers(40, KV_HEADS, DIM) for _ in range(2))
        outputs = []
        for engine, l, where in ((self.engine, lease, 'cuda'), (self.host, of_host, 'cpu')):
            slots = [l.blocks[i // BLOCK] * BLOCK + i % BLOCK for i in range(40)]
            outputs.append(engine.paged(l, q.to(where), [l.blocks[:3]], [40], indptr=[0, 2], k=k.to(where), v=v.to(where), slot_mapping=slots, layer=1,
                                        lse=True))
        self.assertEqual(outputs[0][0].dtype, torch.float32)
        for a, b in zip(*outputs):
            self.assertTrue(same(a, b))
        o, lse = self.numbers(3, 5, QUERY_HEADS, DIM), self.numbers(3, 5, QUERY_HEADS)
        for a, b in zip(self.engine.merge(o, lse), self.host.merge(o.cpu(), lse.cpu())):
            self.assertEqual((a.dtype, b.dtype), (torch.float32, torch.float32))
            self.assertTrue(same(a, b))

    def test_what_is_not_finite_is_found(self):
        """Finite numbers beyond the largest become that, as in host memory; what is refused there is found."""
        with self.engines_of('f16', 'f16'):
            ids = self.engine.create(), self.host.create()
            q, k, v = self.call_of(1)
            v[0, 0, :4] = torch.tensor([65536.0, -1e6, 65519.0, 65520.0])
            k[0, 1, 0] = -70000
            self.step_on_both(ids, [q, k, v], layer=0)
            for of, wrong in (('v', float('inf')), ('v', float('nan')), ('v', 2.0**97), ('k', float('-inf'))):
                arrays = {'k': k.clone(), 'v': v.clone()}
                arrays[of][0, 1, 5] = wrong
                before = self.engine.look(ids[0]).lengths[0]
                with self.assertRaises(attnd.InvalidError):
                    self.host.attend(ids[1], q.cpu(), k=arrays['k'].cpu(), v=arrays['v'].cpu(), layer=0)
                o = self.engine.attend(ids[0], q, **arrays, layer=0)
                self.assertTrue(bool(o.isnan().all()))
                torch.cuda.synchronize()
                self.engine.stats()
                with self.assertRaisesRegex(attnd.InvalidError, f'{of} of tokens {before}..{before} at layer 0 has an element that is not finite'):
                    self.engine.attend(ids[0], q, k=k, v=v, layer=0)
                self.engine.truncate(ids[0], 0)
                self.host.truncate(ids[1], 0)
                for layer in range(LAYERS):
                    self.step_on_both(ids, [q, k, v], layer=layer)

    def test_what_is_wrong_is_said(self):
        id, (q, k, v) = self.engine.create(), self.call_of(1)
        half = [x.to(torch.bfloat16) for x in (q, k, v)]
        for arguments, text in (
            (dict(q=OtherThanPyTorchs(q)), "q: is of float32 on a GPU, where only PyTorch's tensors are converted: wants bf16, or torch.from_dlpack()"),
            (dict(k=OtherThanPyTorchs(k)), 'k: is of float32 on a GPU'),
            (dict(out=OtherThanPyTorchs(q)), 'out: is of float32 on a GPU'),
            (dict(out=torch.empty_like(q, device='cpu')), 'is not on the GPU'),
            (dict(out=torch.empty(2, QUERY_HEADS, DIM, device='cuda')), 'wants the shape [1, 8, 64], has [2, 8, 64]'),
            (dict(q=q.half()), 'wants bf16'),
            (dict(dtype='f16'), 'wants bf16'),
        ):
            with self.assertRaises(attnd.InvalidError) as raised:
                self.engine.attend(id, **{**dict(zip('qkv', half)), 'layer': 0, **arguments})
            self.assertIn(text, str(raised.exception))
        self.assertEqual(self.engine.look(id).length, 0)


class Figures(OfStreams):
    def test_time_of_a_call(self):
        """Not judged: what a layer takes of the host's time, and what lies on the GPU between input and output."""
        for batch in (1, 8, 64):
            ids = self.engine.batch([{'op': 'create'}] * batch)
            for layer in range(LAYERS):
                self.engine.append(ids, *self.kv(batch * 16), layer=layer, counts=[16] * batch)
            q, (k, v) = values(batch, QUERY_HEADS, DIM), self.kv(batch)
            out = torch.empty_like(q)
            torch.cuda.synchronize()
            begin, calls = time.perf_counter(), 0
            for _ in range(50):
                for layer in range(LAYERS):
                    self.engine.attend(ids, q, k=k, v=v, layer=layer, out=out)
                    calls += 1
                torch.cuda.synchronize()
            print(f'batch {batch}: {(time.perf_counter() - begin) / calls * 1e6:.1f} us a layer, the host\'s time and the GPU\'s together')


if __name__ == '__main__':
    unittest.main()
