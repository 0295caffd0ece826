# SPDX-License-Identifier: Apache-2.0
"""shared_prefix.py - many questions about one document: its K and V are stored once and read once a step.

    pip install attnd-*.whl && python shared_prefix.py
"""
import time

import numpy

import attnd

DOCUMENT, QUESTIONS, STEPS = 4096, 32, 20
GEOMETRY = {'layers': 1, 'query_heads': 8, 'kv_heads': 2, 'head_dim': 64, 'block_size': 16}

rng = numpy.random.default_rng(0)


def random(*shape):
    return attnd.bf16.of(rng.standard_normal(shape))


def decode(engine, sequences):
    """Seconds a step takes, and the outputs."""
    outputs, began = [], time.perf_counter()
    for q, k, v in steps:
        outputs.append(engine.attend(sequences, q, k=k, v=v))
    return (time.perf_counter() - began) / STEPS, b''.join(o.tobytes() for o in outputs)


k, v = random(DOCUMENT, 2, 64), random(DOCUMENT, 2, 64)
steps = [(random(QUESTIONS, 8, 64), random(QUESTIONS, 2, 64), random(QUESTIONS, 2, 64)) for _ in range(STEPS)]
with attnd.Engine({'geometry': GEOMETRY, 'pool': {'blocks': 2 * QUESTIONS * DOCUMENT // 16}}) as engine:
    document = engine.create()
    engine.append(document, k, v)
    shared = engine.fork(document, QUESTIONS)
    seconds, bits = decode(engine, shared)
    held = engine.stats()
    print(f'shared: {held.tokens_logical} tokens in {held.blocks_held} blocks, {seconds * 1e3:.2f} ms a step')
    for sequence in [document, *shared]:
        engine.delete(sequence)

    apart = [engine.create() for _ in range(QUESTIONS)]
    for sequence in apart:
        engine.append(sequence, k, v)
    seconds_apart, bits_apart = decode(engine, apart)
    print(f'apart:  {engine.stats().tokens_logical} tokens in {engine.stats().blocks_held} blocks, {seconds_apart * 1e3:.2f} ms a step')
    engine.audit()
    print(f'{seconds_apart / seconds:.1f} times as fast, ' + ('the same bits' if bits == bits_apart else 'other bits'))
    raise SystemExit(0 if bits == bits_apart else 1)
