# SPDX-License-Identifier: Apache-2.0
"""The PyTorch operators: beside double precision, beside the engine's own tables and a daemon's (bit for bit), by opcheck, and in CUDA graphs."""
import itertools
import os
import unittest

try:
    import torch
except ImportError:
    raise unittest.SkipTest('torch is not installed') from None
if not torch.cuda.is_available():
    raise unittest.SkipTest('there is no GPU')

import attnd
import attnd.torch

import test_engine

OPS = torch.ops.attnd
BLOCKS = 64


def ones():
    return torch.ones(1, device='cuda')


class Case:
    """Caches with something in them, tables over them, and queries."""

    def __init__(self, lengths, query_heads=8, kv_heads=2, dim=64, block=16, dtype=torch.bfloat16, kind='auto', seed=1, blocks=None):
        torch.manual_seed(seed)
        self.lengths, self.kv_heads, self.dim, self.block, self.kind = lengths, kv_heads, dim, block, kind
        cache = dtype if kind == 'auto' else torch.uint8
        x = 16 // (torch.empty(0, dtype=cache).element_size())
        self.columns = -(-max(lengths) // block)
        count = blocks or sum(-(-n // block) for n in lengths) + 3
        self.key_cache = torch.zeros(count, kv_heads, dim // x, block, x, device='cuda', dtype=cache)
        self.value_cache = torch.zeros(count, kv_heads, dim, block, device='cuda', dtype=cache)
        order = torch.randperm(count).tolist()
        tables = torch.full((len(lengths), self.columns), -1, dtype=torch.int32)
        self.slots = []
        for i, n in enumerate(lengths):
            mine = [order.pop() for _ in range(-(-n // block))]
            tables[i, : len(mine)] = torch.tensor(mine, dtype=torch.int32)
            self.slots += [mine[t // block] * block + t % block for t in range(n)]
        self.tables = tables.cuda()
        self.seq_lens = torch.tensor(lengths, dtype=torch.int32, device='cuda')
        self.q = torch.randn(len(lengths), query_heads, dim, device='cuda').to(dtype)
        self.k, self.v = (torch.randn(sum(lengths), kv_heads, dim, device='cuda').to(dtype) for _ in range(2))
        self.slot_mapping = torch.tensor(self.slots, dtype=torch.int64, device='cuda')
        self.scale = dim**-0.5
        self.k_scale, self.v_scale = (ones(), ones()) if kind == 'auto' else (ones() * 0.25, ones() * 0.5)
        self.out = torch.zeros_like(self.q)

    def store(self):
        OPS.reshape_and_cache(self.k, self.v, self.key_cache, self.value_cache, self.slot_mapping, self.kind, self.k_scale, self.v_scale)

    def arguments(self, alibi=None, longest=None, sparse=()):
        return (self.q, self.key_cache, self.value_cache, self.kv_heads, self.scale, self.tables, self.seq_lens, self.block,
                longest or max(self.lengths), alibi, self.kind, self.k_scale, self.v_scale, *sparse)

    def scratch(self, longest=None):
        parts = -(-(longest or max(self.lengths)) // 512)
        n, heads, dim = self.q.shape
        return (torch.empty(n, heads, parts, device='cuda'), torch.empty(n, heads, parts, device='cuda'),
                torch.empty(n, heads, parts, dim, device='cuda', dtype=self.q.dtype))

    def run(self, v2, **options):
        out = torch.full_like(self.q, 7)
        if v2:
            OPS.paged_attention_v2(out, *self.scratch(options.get('longest')), *self.arguments(**options))
        else:
            OPS.paged_attention_v1(out, *self.arguments(**options))
        return out

    def stored(self):
        """k and v as they stand, in double precision."""
        k, v = self.k.double(), self.v.double()
        if self.kind != 'auto':
            fp8 = torch.float8_e5m2 if 'e5m2' in self.kind else torch.float8_e4m3fn
            k, v = ((t.float() / s).to(fp8).double() * s.double() for t, s in ((self.k, self.k_scale), (self.v, self.v_scale)))
        return k, v

    def expected(self, alibi=None, sees=lambda head, query, key: True):
        k, v = self.stored()
        group = self.q.shape[1] // self.kv_heads
        at, rows = 0, []
        for i, n in enumerate(self.lengths):
            ki, vi = (t[at : at + n].repeat_interleave(group, 1) for t in (k, v))
            s = torch.einsum('hd,thd->ht', self.q[i].double(), ki) * self.scale
            if alibi is not None:
                s += alibi.double()[:, None] * (torch.arange(n, device='cuda') - (n - 1))
            mask = torch.tensor([[sees(h, n - 1, t) for t in range(n)] for h in range(s.shape[0])], device='cuda') if n < 4096 else None
            s = s if mask is None else s.masked_fill(~mask, float('-inf'))
            rows.append(torch.einsum('ht,thd->hd', s.softmax(1), vi))
            at += n
        return torch.stack(rows)


class Operators(unittest.TestCase):
    def close(self, got, want, dtype):
        bound = {torch.float32: 3e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}[dtype]
        self.assertLess(float((got.double() - want).abs().max()), bound)

    def test_beside_double_precision(self):
        for dtype, (heads, kv), dim, block in itertools.product(
                (torch.bfloat16, torch.float16, torch.float32), ((8, 2), (4, 4)), (64, 128, 80), (8, 16, 32)):
            case = Case([1, 7, 16, 17, 700, 513], heads, kv, dim, block, dtype)
            case.store()
            want = case.expected()
            for v2 in (False, True):
                with self.subTest(dtype=dtype, heads=heads, dim=dim, block=block, v2=v2):
                    self.close(case.run(v2), want, dtype)

    def test_slopes_fp8_and_strides(self):
        alibi = torch.tensor([2.0 ** -(i + 1) for i in range(8)], device='cuda')
        for kind in ('auto', 'fp8', 'fp8_e5m2'):
            case = Case([33, 600, 5], kind=kind)
            case.store()
            for v2 in (False, True):
                self.close(case.run(v2, alibi=alibi), case.expected(alibi), torch.bfloat16)
        wide = torch.randn(3, 3 * 8, 64, device='cuda').to(torch.bfloat16)  # q, k and v of a model in one tensor
        case.q = wide[:, :8]
        self.close(case.run(False), case.expected(), torch.bfloat16)

    def test_block_sparse(self):
        """vLLM's rule: the latest blocks, and every vertical one, which slides from head to head."""
        case = Case([700, 64, 130], query_heads=8, kv_heads=2)
        case.store()
        local, stride, size, rank = 2, 4, 32, 1
        for step in (0, 1, -1):
            def sees(head, query, key):
                first = (rank * 8 + head) * step if step >= 0 else (rank * 2 + head // 4) * -step
                blocks_behind = query // size - key // size
                return blocks_behind < local or (key // size + first + 1) % stride == 0
            for v2 in (False, True):
                got = case.run(v2, sparse=(rank, local, stride, size, step))
                self.close(got, case.expected(sees=sees), torch.bfloat16)

    def test_bits_are_those_of_the_engines_own_tables(self):
        lengths = [1, 30, 555, 1024]
        case = Case(lengths, blocks=512)
        geometry = {'layers': 1, 'query_heads': 8, 'kv_heads': 2, 'head_dim': 64, 'block_size': 16, 'dtype': 'bf16', 'kv_dtype': 'bf16',
                    'layout': 'vllm'}
        with attnd.Engine({'geometry': geometry, 'pool': {'blocks': 512}, 'backend': {'name': 'cuda'}}) as engine:
            lease = engine.lease(512)
            tables = [[lease.blocks[b] if b >= 0 else lease.blocks[0] for b in row] for row in case.tables.tolist()]
            slots = [lease.blocks[s // 16] * 16 + s % 16 for s in case.slots]
            case.store()
            for v2 in (False, True):
                o = engine.paged(lease, case.q, tables, lengths, k=case.k, v=case.v, slot_mapping=slots, layer=0, kernel=1 + v2)
                self.assertTrue(torch.equal(o.view(torch.int16), case.run(v2).view(torch.int16)), v2)

    def test_copies_and_swaps(self):
        case = Case([500, 70])
        case.store()
        caches = [(case.key_cache.clone(), case.value_cache.clone()) for _ in range(130)]
        before = [(k.clone(), v.clone()) for k, v in caches]
        pairs = torch.tensor([[0, 5], [1, 6], [0, 7]], device='cuda')
        OPS.copy_blocks([k for k, _ in caches], [v for _, v in caches], pairs)
        for now, then in zip(caches, before):
            for a, b in zip(now, then):
                for source, target in pairs.tolist():
                    self.assertTrue(torch.equal(a[target], b[source]))
                self.assertTrue(torch.equal(a[8:], b[8:]))
        for pinned in (True, False):
            host = torch.zeros(4, *case.key_cache.shape[1:], dtype=case.key_cache.dtype, pin_memory=pinned)
            OPS.swap_blocks(case.key_cache, host, torch.tensor([[3, 0], [4, 2]]))
            torch.cuda.synchronize()
            self.assertTrue(torch.equal(host[0], case.key_cache[3].cpu()) and torch.equal(host[2], case.key_cache[4].cpu()))
            OPS.swap_blocks(host, case.key_cache, torch.tensor([[2, 1]]))
            self.assertTrue(torch.equal(case.key_cache[1], case.key_cache[4]))
        with self.assertRaises(attnd.InvalidError):
            OPS.swap_blocks(case.key_cache, host, torch.tensor([[3, 4]]))

    def test_opcheck(self):
        case = Case([33, 600, 5])
        alibi = torch.rand(8, device='cuda')
        for slopes in (None, alibi):
            torch.library.opcheck(OPS.paged_attention_v1.default, (case.out, *case.arguments(slopes)))
            torch.library.opcheck(OPS.paged_attention_v2.default, (case.out, *case.scratch(), *case.arguments(slopes)))
        torch.library.opcheck(OPS.reshape_and_cache.default, (case.k, case.v, case.key_cache, case.value_cache, case.slot_mapping, 'auto',
                                                              case.k_scale, case.v_scale))
        torch.library.opcheck(OPS.copy_blocks.default, ([case.key_cache], [case.value_cache], torch.tensor([[0, 1]], device='cuda')))
        torch.library.opcheck(OPS.swap_blocks.default, (case.key_cache, torch.zeros_like(case.key_cache), torch.tensor([[0, 1]])))

    def test_graphs_replay_with_other_lengths_tables_and_slots(self):
        longest = 1500
        case = Case([longest, 700, 3, 64])
        attnd.torch.warmup(8, 2, 64, 16, torch.bfloat16)
        case.store()
        stream = torch.cuda.Stream()
        outs = [torch.zeros_like(case.q) for _ in range(2)]
        new_k, new_v = torch.zeros_like(case.k[:4]), torch.zeros_like(case.v[:4])
        slots = torch.full((4,), -1, dtype=torch.int64, device='cuda')
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            OPS.reshape_and_cache(new_k, new_v, case.key_cache, case.value_cache, slots, 'auto', case.k_scale, case.v_scale)
            OPS.paged_attention_v1(outs[0], *case.arguments(longest=longest))
            OPS.paged_attention_v2(outs[1], *case.scratch(longest), *case.arguments(longest=longest))
        for lengths in ([1, 2, 3, 4], [longest, 1, 3, 64], [600, 700, 1, 17]):
            case.seq_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
            case.tables.copy_(case.tables[:, torch.randperm(case.columns)].clamp(min=0))
            case.q.copy_(torch.randn_like(case.q))
            new_k.copy_(torch.randn_like(new_k))
            new_v.copy_(torch.randn_like(new_v))
            tables = case.tables.tolist()
            slots.copy_(torch.tensor([tables[i][(n - 1) // 16] * 16 + (n - 1) % 16 for i, n in enumerate(lengths)]))
            graph.replay()
            for v2 in (False, True):
                self.assertTrue(torch.equal(outs[v2].view(torch.int16), case.run(v2, longest=longest).view(torch.int16)), (lengths, v2))

    @unittest.skipUnless('ATTND' in os.environ, 'ATTND names no daemon')
    def test_bits_are_those_of_a_daemons_paged(self):
        """The daemon computes with the same kernels over the same layout, in a pool of its own."""
        for dtype, heads, kv, dim, block in ((torch.bfloat16, 8, 2, 64, 16), (torch.float16, 32, 8, 128, 32), (torch.float32, 4, 4, 80, 8)):
            case = Case([1, 16, 17, 700, 513, 1500], heads, kv, dim, block, dtype)
            case.store()
            daemon = test_engine.Daemon({
                'geometry': {'layers': 1, 'query_heads': heads, 'kv_heads': kv, 'head_dim': dim, 'block_size': block, 'dtype': NAMES[dtype],
                             'kv_dtype': NAMES[dtype], 'layout': 'vllm', 'scale': case.scale},
                'pool': {'blocks': len(case.key_cache)}, 'backend': {'name': 'cuda'}})
            self.addCleanup(daemon.end)
            with attnd.Client(daemon.address) as client:
                lease = client.lease(len(case.key_cache))
                slots = [lease.blocks[s // block] * block + s % block for s in case.slots]
                tables = [[lease.blocks[max(b, 0)] for b in row] for row in case.tables.tolist()]
                client.paged(lease, k=case.k.cpu(), v=case.v.cpu(), slot_mapping=slots, layer=0)
                for v2 in (False, True):
                    got = client.paged(lease, case.q.cpu(), tables, case.lengths, layer=0, kernel=1 + v2)
                    kind = torch.int32 if dtype == torch.float32 else torch.int16
                    self.assertTrue(torch.equal(got.view(kind), case.run(v2).cpu().view(kind)), (dtype, v2))

    def test_a_capture_does_not_compile(self):
        case = Case([20], query_heads=6, kv_heads=3, dim=32)
        graph = torch.cuda.CUDAGraph()
        with self.assertRaises(attnd.InvalidError) as raised:
            with torch.cuda.graph(graph):
                OPS.paged_attention_v1(case.out, *case.arguments())
        self.assertIn('warmup()', str(raised.exception))
        torch.cuda.synchronize()
        attnd.torch.warmup(6, 3, 32, 16, torch.bfloat16)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            OPS.paged_attention_v1(case.out, *case.arguments())

    def test_what_is_wrong_is_said(self):
        case = Case([33, 600, 5])
        case.store()
        a = case.arguments()
        for change, text in (
            ({0: case.q.float()}, 'elements of 4 bytes'),
            ({1: case.key_cache.float()}, 'elements of 2 bytes'),
            ({5: case.tables.long()}, 'block_tables'),
            ({6: case.seq_lens[:2]}, 'seq_lens'),
            ({7: 32}, 'key_cache'),
            ({8: 100000}, 'max_seq_len'),
            ({10: 'int4'}, 'kv_cache_dtype'),
            ({11: ones().cpu()}, 'k_scale'),
            ({9: torch.rand(3, device='cuda')}, 'alibi_slopes'),
        ):
            with self.assertRaises(attnd.InvalidError, msg=text) as raised:
                OPS.paged_attention_v1(torch.empty_like(change.get(0, case.q)), *(change.get(i, x) for i, x in enumerate(a)))
            self.assertIn(text, str(raised.exception))
        with self.assertRaises(attnd.InvalidError) as raised:  # as attention does: the GPU cannot read it
            OPS.reshape_and_cache(case.k, case.v, case.key_cache, case.value_cache, case.slot_mapping, 'auto', ones().cpu(), ones())
        self.assertIn('k_scale', str(raised.exception))


FP8 = {'fp8': torch.float8_e4m3fn, 'fp8_e5m2': torch.float8_e5m2}
NAMES = {torch.bfloat16: 'bf16', torch.float16: 'f16', torch.float32: 'f32', 'fp8': 'e4m3', 'fp8_e5m2': 'e5m2'}


class NativeCase:
    """A cache of NaN, tables over it whose blocks lie anywhere and whose first ones are shared by all, k and v where the tables say, and
    queries: one a sequence, or so many `rows` of each."""

    def __init__(self, lengths, query_heads=8, kv_heads=2, dim=64, block=16, dtype=torch.bfloat16, kind='auto', shared=0, longest=None, spare=3,
                 rows=None):
        torch.manual_seed(len(lengths) + dim + shared)
        self.lengths, self.query_heads, self.kv_heads, self.dim, self.block, self.dtype, self.kind = (
            lengths, query_heads, kv_heads, dim, block, dtype, kind)
        self.longest = longest or max(max(lengths), 1)
        common, columns = shared // block, -(-self.longest // block) + 1
        self.count = common + sum(-(-n // block) for n in lengths) + spare
        attnd.torch.warmup(query_heads, kv_heads, dim, block, dtype, kind, layout='native')
        size = self.count, 2, kv_heads, block, dim
        if kind == 'auto':
            self.kv_cache = torch.full(size, float('nan'), dtype=dtype, device='cuda')
        else:
            self.kv_cache = torch.full(size, 0x7F, dtype=torch.uint8, device='cuda')  # NaN in both
        order = torch.randperm(self.count).tolist()
        prefix = [order.pop() for _ in range(common)]
        tables = torch.full((len(lengths), columns), -1, dtype=torch.int32)
        slots, self.tokens = [], []
        for i, n in enumerate(lengths):
            mine = (prefix + [order.pop() for _ in range(-(-n // block) - common)])[: -(-n // block)]
            tables[i, : len(mine)] = torch.tensor(mine, dtype=torch.int32)
            self.tokens.append([mine[t // block] * block + t % block for t in range(n)])
            slots += self.tokens[-1]
        self.host_tables, self.slots = tables, list(dict.fromkeys(slots))
        self.tables, self.slot_mapping = tables.cuda(), torch.tensor(self.slots, dtype=torch.int64, device='cuda')
        self.seq_lens = torch.tensor(lengths, dtype=torch.int32, device='cuda')
        self.queries = [(i, n and n - of + 1 + r) for i, (n, of) in enumerate(zip(lengths, rows or [1] * len(lengths))) for r in range(of)]
        self.q = torch.randn(len(self.queries), query_heads, dim, device='cuda').to(dtype)
        self.k, self.v = (torch.randn(len(self.slots), kv_heads, dim, device='cuda').to(dtype) for _ in range(2))
        self.scale, self.options = dim**-0.5, {}
        if kind != 'auto':
            k_scale, v_scale = (torch.rand(kv_heads, device='cuda') + 0.5 for _ in range(2))
            self.options = {'kv_cache_dtype': kind, 'k_scale': k_scale, 'v_scale': v_scale}
        self.of_append, self.of_paged = dict(self.options), {}
        if rows is not None:
            self.of_paged['indptr'] = [sum(rows[:i]) for i in range(len(rows) + 1)]
            self.options['query_start_loc'] = torch.tensor(self.of_paged['indptr'], dtype=torch.int32, device='cuda')

    def store(self):
        OPS.append(self.k, self.v, self.kv_cache, self.slot_mapping, **self.of_append)
        return self

    def plan(self, **how):
        more = {n: self.options[n] for n in ('window', 'softcap', 'query_start_loc') if n in self.options}
        if 'query_start_loc' in more and how.get('on_device'):
            more['rows'] = len(self.q)
        return attnd.torch.plan(self.tables, self.seq_lens, self.longest, self.query_heads, self.kv_heads, self.dim, self.block, self.dtype,
                                self.kind, **more, **how)

    def arguments(self, out):
        return out, self.q, self.kv_cache, self.tables, self.seq_lens, self.longest, self.scale

    def run(self, plan=None):
        out, lse = torch.full_like(self.q, 7), torch.full(self.q.shape[:2], 7.0, device='cuda')
        OPS.decode(*self.arguments(out), plan, lse, **self.options)
        return out, lse

    def config(self, **more):
        geometry = {'layers': 1, 'query_heads': self.query_heads, 'kv_heads': self.kv_heads, 'head_dim': self.dim, 'block_size': self.block,
                    'dtype': NAMES[self.dtype], 'kv_dtype': NAMES[self.dtype if self.kind == 'auto' else self.kind], 'scale': self.scale}
        for name, key in (('k_scale', 'k_scale'), ('v_scale', 'v_scale'), ('sinks', 'sinks'), ('alibi_slopes', 'alibi')):
            if name in self.options:
                geometry[key] = self.options[name].tolist()
        for name in ('softcap', 'window'):
            if name in self.options:
                geometry[name] = self.options[name]
        return {'geometry': geometry, 'pool': {'blocks': max(64, self.count)}, 'backend': {'name': 'cuda'}, **more}

    def of(self, engine, move=lambda tensor: tensor):
        """o and lse as an engine, or a daemon's client, has them of the same tables."""
        lease = engine.lease(self.count)
        tables = [[lease.blocks[b] if b >= 0 else lease.blocks[0] for b in row] for row in self.host_tables.tolist()]
        slots = [lease.blocks[s // self.block] * self.block + s % self.block for s in self.slots]
        for first in range(0, len(slots), 4096):
            part = slice(first, first + 4096)
            engine.paged(lease, k=move(self.k[part]), v=move(self.v[part]), slot_mapping=slots[part], layer=0)
        outputs = engine.paged(lease, move(self.q), tables, self.lengths, layer=0, lse=True, **self.of_paged)
        engine.delete(lease)
        return outputs

    def expected(self):
        stored = []
        for x, scale in ((self.k, 'k_scale'), (self.v, 'v_scale')):
            by = self.options.get(scale, torch.ones(self.kv_heads, device='cuda'))[:, None]
            stored.append(x.double() if self.kind == 'auto' else (x.float() / by).to(FP8[self.kind]).double() * by.double())
        at = {slot: i for i, slot in enumerate(self.slots)}
        group, rows = self.query_heads // self.kv_heads, []
        for row, (i, keys) in enumerate(self.queries):
            tokens = self.tokens[i][:keys]
            k, v = (t[[at[s] for s in tokens]].repeat_interleave(group, 1) for t in stored)
            p = (torch.einsum('hd,thd->ht', self.q[row].double(), k) * self.scale).softmax(1)
            rows.append(torch.einsum('ht,thd->hd', p, v) if tokens else torch.zeros_like(self.q[row]).double())
        return torch.stack(rows)


class Native(unittest.TestCase):
    def same(self, got, want, what=''):
        for a, b in zip(got, want):
            kind = torch.int32 if a.element_size() == 4 else torch.int16
            self.assertTrue(torch.equal(a.view(kind), b.to(a.device).view(kind)), what)

    def every_way(self, case, what=''):
        """Without a plan, with one, with one of the GPU's."""
        first = case.run()
        self.assertFalse(bool(first[0].isnan().any()), what)
        for how in ({}, {'on_device': True}):
            self.same(case.run(case.plan(**how)), first, (what, how))
        return first

    def test_beside_double_precision_and_the_engine(self):
        lengths = [1, 0, 30, 555, 63, 64, 65, 1024, 300, 2049]
        for dtype, (heads, kv), dim, block in (
                (torch.bfloat16, (8, 2), 64, 16), (torch.bfloat16, (32, 8), 128, 16), (torch.bfloat16, (4, 4), 128, 32),
                (torch.bfloat16, (16, 1), 128, 16), (torch.bfloat16, (48, 1), 64, 16), (torch.bfloat16, (80, 1), 64, 8),
                (torch.bfloat16, (150, 1), 64, 16), (torch.bfloat16, (8, 4), 256, 16),
                (torch.float16, (8, 2), 128, 64), (torch.float16, (8, 2), 80, 16), (torch.bfloat16, (8, 2), 128, 1), (torch.float32, (8, 2), 64, 16)):
            for kind in ('auto', 'fp8', 'fp8_e5m2') if (dtype, dim) == (torch.bfloat16, 128) else ('auto',):
                what = (dtype, heads, kv, dim, block, kind)
                case = NativeCase(lengths, heads, kv, dim, block, dtype, kind).store()
                got = self.every_way(case, what)
                bound = {torch.float32: 3e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}[dtype]
                self.assertLess(float((got[0].double() - case.expected()).abs().max()), bound, what)
                with attnd.Engine(case.config()) as engine:
                    self.same(case.of(engine), got, what)

    def test_models_constants(self):
        """Sinks, slopes, a soft cap and windows, as the engine has them."""
        for options in ({'sinks': torch.randn(8, device='cuda')}, {'alibi_slopes': torch.rand(8, device='cuda')}, {'softcap': 20.0}, {'window': 100},
                        {'window': 1500, 'softcap': 5.0, 'sinks': torch.randn(8, device='cuda')}):
            case = NativeCase([1, 100, 101, 3000, 5000, 700])
            case.options |= options
            got = self.every_way(case.store(), options)
            with attnd.Engine(case.config()) as engine:
                self.same(case.of(engine), got, options)

    def test_what_is_shared_is_read_once_with_the_same_bits(self):
        for count, shared in ((12, 1024), (40, 2048), (3, 4096), (150, 600)):
            lengths = [shared + (i * 37) % 500 for i in range(count)] + [7, 0]
            case = NativeCase(lengths, 32, 8, 128, shared=shared).store()
            got = self.every_way(case, (count, shared))
            alone = torch.cat([self.row(case, i)[0] for i in range(count)])
            self.same([alone], [got[0][:count]], 'rows alone')
            with attnd.Engine(case.config()) as engine:
                self.same(case.of(engine), got, (count, shared))

    def row(self, case, i):
        out, lse = torch.empty_like(case.q[i : i + 1]), torch.empty(1, case.query_heads, device='cuda')
        OPS.decode(out, case.q[i : i + 1], case.kv_cache, case.tables[i : i + 1], case.seq_lens[i : i + 1], case.lengths[i], case.scale, None, lse,
                   **case.options)
        return out, lse

    def test_long_contexts(self):
        """Over the ends of segments and spans; a batch is as its rows alone."""
        lengths = [4095, 4096, 4097, 65535, 65536, 65537, 131072, 5, 140000]
        case = NativeCase(lengths, 8, 2, 64).store()
        got = self.every_way(case)
        for i in range(len(lengths)):
            self.same(self.row(case, i), [t[i : i + 1] for t in got], lengths[i])
        alone = NativeCase([70000], 8, 2, 64).store()
        with attnd.Engine(alone.config()) as engine:
            self.same(alone.of(engine), self.every_way(alone))

    def test_several_rows_a_sequence(self):
        """With any number of rows of each: the bits of the engine's own tables, and of the rows one at a time, whatever they are planned with."""
        for lengths, rows, shape in (
                ([30, 0, 555, 64, 1024, 7, 300, 2049], [1, 2, 4, 0, 8, 7, 1, 5], {}),
                ([200, 333, 1], [200, 100, 1], {'query_heads': 32, 'kv_heads': 8, 'dim': 128}),
                ([4097, 66000], [4, 3], {'query_heads': 16, 'kv_heads': 1, 'dim': 128}),
                ([700] * 20, [4] * 20, {'query_heads': 32, 'kv_heads': 8, 'dim': 128, 'shared': 640}),
                ([500, 90], [5, 90], {'dtype': torch.float16, 'block': 32}), ([500, 90], [5, 90], {'dtype': torch.float32}),
                ([500, 90], [5, 90], {'dim': 128, 'kind': 'fp8'})):
            case = NativeCase(lengths, rows=rows, **shape).store()
            got = self.every_way(case, (lengths, rows))
            bound = {torch.float32: 3e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}[case.dtype]
            self.assertLess(float((got[0].double() - case.expected()).abs().max()), bound, (lengths, rows))
            with attnd.Engine(case.config()) as engine:
                self.same(case.of(engine), got, (lengths, rows))
            alone = self.rows_alone(case)
            self.same(alone, got, (lengths, rows, 'one at a time'))

    def rows_alone(self, case):
        """One row a sequence, with its table again for each."""
        which = torch.tensor([i for i, _ in case.queries], device='cuda')
        lengths = torch.tensor([keys for _, keys in case.queries], dtype=torch.int32, device='cuda')
        out, lse = torch.full_like(case.q, 7), torch.full(case.q.shape[:2], 7.0, device='cuda')
        options = {n: x for n, x in case.options.items() if n != 'query_start_loc'}
        OPS.decode(out, case.q, case.kv_cache, case.tables[which], lengths, case.longest, case.scale, None, lse, **options)
        return out, lse

    def test_models_constants_with_several_rows(self):
        for options in ({'sinks': torch.randn(8, device='cuda')}, {'alibi_slopes': torch.rand(8, device='cuda')}, {'softcap': 20.0}, {'window': 100},
                        {'window': 1500, 'softcap': 5.0, 'sinks': torch.randn(8, device='cuda')}):
            case = NativeCase([101, 3000, 5000, 40], rows=[101, 5, 2, 3])
            case.options |= options
            got = self.every_way(case.store(), options)
            self.same(self.rows_alone(case), got, options)
            with attnd.Engine(case.config()) as engine:
                self.same(case.of(engine), got, options)

    def test_graphs_replay_with_rows_of_other_sequences(self):
        """Rows behind the last sequence's see no keys."""
        case = NativeCase([3000, 700, 3, 64], 32, 8, 128, rows=[4, 4, 3, 5]).store()
        starts, most = case.options['query_start_loc'], len(case.q)
        outs = [(torch.zeros_like(case.q), torch.zeros(case.q.shape[:2], device='cuda')) for _ in range(2)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            OPS.decode(*case.arguments(outs[0][0]), None, outs[0][1], query_start_loc=starts)
            plan = case.plan(on_device=True)
            OPS.decode(*case.arguments(outs[1][0]), plan, outs[1][1], query_start_loc=starts)
        case.tables.copy_(torch.randint(0, case.count, case.tables.shape, dtype=torch.int32))
        case.kv_cache.copy_(torch.randn_like(case.kv_cache))
        for rows, lengths in (([4, 4, 3, 5], [3000, 700, 3, 64]), ([1, 1, 1, 1], [30, 2999, 1, 0]), ([0, 0, 16, 0], [1, 1, 2000, 1]), ([2, 0, 0, 3], [2, 0, 5, 900]),
                              ([0, 0, 0, 0], [5, 5, 5, 5])):
            case.seq_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
            starts.copy_(torch.tensor([sum(rows[:i]) for i in range(5)], dtype=torch.int32))
            case.q.copy_(torch.randn_like(case.q))
            graph.replay()
            case.queries = [(i, n and n - of + 1 + r) for i, (n, of) in enumerate(zip(lengths, rows)) for r in range(of)]
            case.queries += [(0, 0)] * (most - len(case.queries))
            want = self.rows_alone(case)
            for got in outs:
                self.same(got, want, (rows, lengths))
            spare = sum(rows)
            self.assertTrue(bool((outs[0][0][spare:] == 0).all() and (outs[0][1][spare:] == float('-inf')).all()))
            if spare == most:
                self.same(case.run(case.plan()), want, (rows, lengths))

    def test_blocks_lie_anywhere(self):
        case = NativeCase([700, 64, 3000, 1])
        first = case.store().run()
        order = torch.randperm(case.count)
        moved = torch.empty_like(case.kv_cache)
        moved[order.cuda()] = case.kv_cache
        case.kv_cache, case.tables = moved, torch.where(case.host_tables < 0, case.host_tables, order[case.host_tables.clamp(min=0)].int()).cuda()
        self.same(self.every_way(case), first)

    @unittest.skipUnless('ATTND' in os.environ, 'ATTND names no daemon')
    def test_bits_are_those_of_a_daemons_paged(self):
        case = NativeCase([1, 0, 30, 555, 1024, 3000], 32, 8, 128).store()
        daemon = test_engine.Daemon(case.config())
        self.addCleanup(daemon.end)
        with attnd.Client(daemon.address) as client:
            self.same(case.of(client, lambda tensor: tensor.cpu()), [t.cpu() for t in self.every_way(case)])
            several = NativeCase([1, 0, 30, 555, 1024, 3000], 32, 8, 128, rows=[1, 2, 30, 0, 6, 4]).store()
            self.same(several.of(client, lambda tensor: tensor.cpu()), [t.cpu() for t in self.every_way(several)])

    def test_a_plan_holds_for_every_layer(self):
        cases = [NativeCase([600, 3, 2000], 32, 8, 128).store() for _ in range(3)]
        for case in cases[1:]:
            case.k, case.v, case.q = (torch.randn_like(t) for t in (case.k, case.v, case.q))
            case.kv_cache = case.kv_cache.clone()
            case.store()
        attnd.torch._own.clear()
        attnd.torch._own_of_caches.clear()
        OPS.append(cases[0].k, cases[0].v, cases[0].kv_cache, cases[0].slot_mapping)
        case = cases[0]
        with self.assertRaisesRegex(attnd.InvalidError, 'plan: wants query_heads, .* since kernels of 0 shapes are there'):
            attnd.torch.plan(case.tables, case.seq_lens, case.longest)
        first = case.run()
        plans = [None, cases[0].plan(), cases[0].plan(on_device=True), attnd.torch.plan(case.tables, case.seq_lens, case.longest)]
        self.same(case.run(plans[3]), first)
        for case in cases:
            for plan in plans[1:]:
                self.same(case.run(plan), case.run())

    def test_opcheck(self):
        case = NativeCase([33, 600, 5]).store()
        case.kv_cache.nan_to_num_()
        out, lse = torch.zeros_like(case.q), torch.zeros(case.q.shape[:2], device='cuda')
        sinks = torch.randn(8, device='cuda')
        for plan in (None, list(case.plan()), list(case.plan(on_device=True))):
            torch.library.opcheck(OPS.decode.default, (*case.arguments(out), plan, lse), {'sinks': sinks})
            torch.library.opcheck(OPS.decode.default, (*case.arguments(out), plan))
        several = NativeCase([33, 600, 5], rows=[3, 0, 5]).store()
        several.kv_cache.nan_to_num_()
        out, lse = torch.zeros_like(several.q), torch.zeros(several.q.shape[:2], device='cuda')
        for plan in (None, list(several.plan()), list(several.plan(on_device=True))):
            torch.library.opcheck(OPS.decode.default, (*several.arguments(out), plan, lse), {'query_start_loc': several.options['query_start_loc']})
        torch.library.opcheck(OPS.append.default, (case.k, case.v, case.kv_cache.zero_(), case.slot_mapping))

    def test_graphs_replay_with_other_lengths_and_tables(self):
        longest = 9000
        case = NativeCase([longest, 700, 3, 64], 32, 8, 128).store()
        other = torch.cuda.Stream()
        outs = [(torch.zeros_like(case.q), torch.zeros(case.q.shape[:2], device='cuda')) for _ in range(3)]
        new_k, new_v = torch.zeros_like(case.k[:4]), torch.zeros_like(case.v[:4])
        slots = torch.full((4,), -1, dtype=torch.int64, device='cuda')
        fresh = case.kv_cache.clone()  # a cache that is met while the graph is captured
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=other):
            OPS.append(new_k, new_v, case.kv_cache, slots)
            OPS.decode(*case.arguments(outs[0][0]), None, outs[0][1])
            plan = case.plan(on_device=True)
            OPS.decode(*case.arguments(outs[1][0]), plan, outs[1][1])
            OPS.decode(outs[2][0], case.q, fresh, *case.arguments(None)[3:], plan, outs[2][1])
        for lengths in ([1, 2, 3, 4], [longest, 1, 3, 64], [600, 700, 0, 17], [0, 0, 0, 0], [longest] * 4, [4096, 4097, 8192, 257]):
            case.seq_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
            case.tables.copy_(torch.randint(0, case.count, case.tables.shape, dtype=torch.int32))
            case.q.copy_(torch.randn_like(case.q))
            case.kv_cache.copy_(torch.randn_like(case.kv_cache))
            fresh.copy_(torch.randn_like(case.kv_cache))
            new_k.copy_(torch.randn_like(new_k))
            tables = case.tables.tolist()
            slots.copy_(torch.tensor([tables[i][(n - 1) // 16] * 16 + (n - 1) % 16 if n else -1 for i, n in enumerate(lengths)]))
            graph.replay()
            for plan in (None, case.plan()):
                want = case.run(plan)
                self.same(outs[0], want, lengths)
                self.same(outs[1], want, lengths)
            was, case.kv_cache = case.kv_cache, fresh
            self.same(outs[2], case.run(), lengths)
            case.kv_cache = was

    def test_a_plan_is_captured(self):
        case = NativeCase([2000, 700, 3, 64], 32, 8, 128, shared=512).store()
        plan, out, lse = case.plan(), torch.zeros_like(case.q), torch.zeros(case.q.shape[:2], device='cuda')
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            OPS.decode(*case.arguments(out), plan, lse)
        for _ in range(3):
            case.q.copy_(torch.randn_like(case.q))
            graph.replay()
            self.same((out, lse), case.run())

    def test_a_capture_does_not_compile(self):
        case = NativeCase([20], query_heads=6, kv_heads=3, dim=32)
        attnd.torch._own.clear()
        attnd.torch._own_of_caches.clear()
        for call, text in ((lambda: OPS.decode(*case.arguments(torch.zeros_like(case.q))), "warmup() with layout='native'"),
                           (lambda: OPS.append(case.k, case.v, case.kv_cache, case.slot_mapping), "warmup() with layout='native'"),
                           (case.plan, 'warmup()')):
            graph = torch.cuda.CUDAGraph()
            with self.assertRaises(attnd.InvalidError) as raised:
                with torch.cuda.graph(graph):
                    call()
            self.assertIn(text, str(raised.exception))
            torch.cuda.synchronize()
        attnd.torch.warmup(6, 3, 32, 16, torch.bfloat16, layout='native')
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            OPS.append(case.k, case.v, case.kv_cache, case.slot_mapping)
            OPS.decode(*case.arguments(torch.zeros_like(case.q)))
        graph = torch.cuda.CUDAGraph()
        with self.assertRaises(attnd.InvalidError) as raised:
            with torch.cuda.graph(graph):
                case.plan()
        self.assertIn('on_device=True', str(raised.exception))

    def test_what_is_wrong_is_said(self):
        case = NativeCase([33, 600, 5]).store()
        out, plan = torch.zeros_like(case.q), case.plan()
        a = case.arguments(out)
        short = NativeCase([33, 600]).plan()
        others = NativeCase([33, 600, 5], query_heads=4).plan()
        for change, more, text in (
            ({2: case.kv_cache.half()}, {}, 'kv_cache: wants torch.bfloat16'),
            ({2: case.kv_cache[:, :1]}, {}, 'kv_cache'),
            ({3: case.tables.long()}, {}, 'block_tables'),
            ({4: case.seq_lens[:2]}, {}, 'seq_lens'),
            ({5: 100000}, {}, 'max_seq_len'),
            ({6: float('nan')}, {}, 'scale'),
            ({}, {'kv_cache_dtype': 'int4'}, 'kv_cache_dtype'),
            ({}, {'sinks': torch.rand(3, device='cuda')}, 'sinks'),
            ({}, {'k_scale': ones()}, 'k_scale'),
            ({}, {'plan': short}, 'plan: is for 2 sequences'),
            ({}, {'plan': others}, 'plan: was made for other kernels'),
            ({}, {'plan': plan, 'window': 5}, 'window 0'),
        ):
            with self.assertRaises(attnd.InvalidError, msg=text) as raised:
                OPS.decode(*(change.get(i, x) for i, x in enumerate(a)), **more)
            self.assertIn(text, str(raised.exception))
        several = NativeCase([33, 600, 5], rows=[2, 3, 1]).store()
        starts, out = several.options['query_start_loc'], torch.zeros_like(several.q)
        for more, text in (
            ({}, 'query: has 6 rows, and there are 3 sequences: query_start_loc says whose they are'),
            ({'query_start_loc': starts.long()}, 'query_start_loc: wants torch.int32'),
            ({'query_start_loc': starts[:1]}, 'query_start_loc: wants a number more than there are sequences'),
            ({'query_start_loc': starts[:3]}, 'block_tables: wants the shape [2, None]'),
            ({'query_start_loc': starts, 'plan': plan}, 'plan: is for a row a sequence (query_start_loc is None), and the call has 6 rows'),
            ({'query_start_loc': starts, 'plan': NativeCase([33, 600, 5], rows=[2, 3, 2]).plan()}, 'plan: is for 7 rows by query_start_loc'),
        ):
            with self.assertRaises(attnd.InvalidError, msg=text) as raised:
                OPS.decode(*several.arguments(out), **more)
            self.assertIn(text, str(raised.exception))
        with self.assertRaisesRegex(attnd.InvalidError, 'rows: is missing'):
            attnd.torch.plan(several.tables, several.seq_lens, 600, 8, 2, 64, 16, torch.bfloat16, query_start_loc=starts, on_device=True)
        starts[1] = 34
        starts[2:] = 40
        with self.assertRaisesRegex(attnd.InvalidError, 'query_start_loc: sequence 0 has 33 tokens, and 34 rows ask for the last of them'):
            several.plan()
        case.longest = 500
        with self.assertRaisesRegex(attnd.InvalidError, 'sequence 1 is 600, and max_seq_len is 500'):
            case.plan()
        case.longest = 600
        case.tables[1, 3] = -1
        with self.assertRaisesRegex(attnd.InvalidError, 'sequence 1 has 600 tokens, and its block 3 is -1'):
            case.plan()
        with self.assertRaisesRegex(attnd.InvalidError, 'slot_mapping'):
            OPS.append(case.k, case.v, case.kv_cache, case.slot_mapping.int())
        with self.assertRaisesRegex(attnd.InvalidError, 'layout'):
            attnd.torch.warmup(6, 3, 32, 16, torch.bfloat16, layout='nhd')


if __name__ == '__main__':
    unittest.main()
