# SPDX-License-Identifier: Apache-2.0
"""The PyTorch operators: beside double precision, beside the engine's own tables (bit for bit), by opcheck, and in CUDA graphs."""
import itertools
import unittest

try:
    import torch
except ImportError:
    raise unittest.SkipTest('torch is not installed') from None
if not torch.cuda.is_available():
    raise unittest.SkipTest('there is no GPU')

import attnd
import attnd.torch

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


if __name__ == '__main__':
    unittest.main()
