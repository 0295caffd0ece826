#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decode attention on a GPU, by attnd's operators and by PyTorch, on the same tensors: a table, and a plot of microseconds.

    python compare_kernels.py [batch]

paged_attention_v1 and v2 read a paged cache of vLLM's layout, decode one of its own: with a plan, and without one, when the GPU finds its work
tiles at each call. PyTorch's scaled_dot_product_attention reads the same K and V laid out for it, one tensor for all sequences. Outputs are compared. Times are those of graphs of 20 calls, so that no host is in them; medians of 15.
"""
import statistics
import sys

import torch

import attnd.torch

QUERY_HEADS, KV_HEADS, DIM, BLOCK = 32, 8, 128, 16
CONTEXTS = (256, 1024, 4096, 8192)
CALLS, ROUNDS, WIDTH = 20, 15, 50


def microseconds(call):
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    times = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / CALLS * 1e3)
    return statistics.median(times)


def compare(batch, context):
    blocks = batch * context // BLOCK
    k, v = (torch.randn(batch, KV_HEADS, context, DIM, device='cuda').to(torch.bfloat16) for _ in range(2))
    key_cache = torch.empty(blocks, KV_HEADS, DIM // 8, BLOCK, 8, device='cuda', dtype=torch.bfloat16)
    value_cache = torch.empty(blocks, KV_HEADS, DIM, BLOCK, device='cuda', dtype=torch.bfloat16)
    order = torch.randperm(blocks, device='cuda').int()
    tables = order.view(batch, -1)
    slots = (tables.long()[:, :, None] * BLOCK + torch.arange(BLOCK, device='cuda')).view(-1)
    one = torch.ones(1, device='cuda')
    rows = [x.transpose(1, 2).reshape(-1, KV_HEADS, DIM).contiguous() for x in (k, v)]
    torch.ops.attnd.reshape_and_cache(*rows, key_cache, value_cache, slots, 'auto', one, one)
    kv_cache = torch.empty(blocks, 2, KV_HEADS, BLOCK, DIM, device='cuda', dtype=torch.bfloat16)
    torch.ops.attnd.append(*rows, kv_cache, slots)
    q = torch.randn(batch, QUERY_HEADS, DIM, device='cuda').to(torch.bfloat16)
    lengths = torch.full((batch,), context, dtype=torch.int32, device='cuda')
    o1, o2, o3, o4, none = *(torch.empty_like(q) for _ in range(4)), torch.empty(0, device='cuda')
    of = (q, kv_cache, tables, lengths, context, DIM**-0.5)
    plan = attnd.torch.plan(tables, lengths, context, QUERY_HEADS, KV_HEADS, DIM, BLOCK, torch.bfloat16)
    a = (q, key_cache, value_cache, KV_HEADS, DIM**-0.5, tables, lengths, BLOCK, context, None, 'auto', one, one)
    dense = lambda: torch.nn.functional.scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=True)
    times = {
        'paged v1': microseconds(lambda: torch.ops.attnd.paged_attention_v1(o1, *a)),
        'paged v2': microseconds(lambda: torch.ops.attnd.paged_attention_v2(o2, none, none, none, *a)),
        'decode': microseconds(lambda: torch.ops.attnd.decode(o3, *of, plan)),
        'no plan': microseconds(lambda: torch.ops.attnd.decode(o4, *of)),
        'sdpa': microseconds(dense),
    }
    error = max(float((o.float() - dense()[:, :, 0].float()).abs().max()) for o in (o1, o2, o3, o4))
    return times, error


def main():
    batch = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    print(f'{torch.cuda.get_device_name()}: {batch} sequences, {QUERY_HEADS} query heads, {KV_HEADS} KV heads of {DIM}, bfloat16')
    results = {context: compare(batch, context) for context in CONTEXTS}
    names = list(results[CONTEXTS[0]][0])
    print(f'{"context":>8}' + ''.join(f'{n:>12}' for n in names) + f'{"difference":>13}')
    for context, (times, error) in results.items():
        print(f'{context:8}' + ''.join(f'{times[n]:9.1f} us' for n in names) + f'{error:13.1e}')
    longest = max(max(times.values()) for times, _ in results.values())
    for context, (times, _) in results.items():
        for name in names:
            print(f'{context:8} {name:>9} |' + '#' * max(1, round(times[name] / longest * WIDTH)))
    worst = max(error for _, error in results.values())
    print('outputs agree' if worst < 2e-2 else f'outputs differ by {worst}')
    return worst >= 2e-2


if __name__ == '__main__':
    sys.exit(main())
