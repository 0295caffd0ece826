#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a token takes a Hugging Face model: sdpa with DynamicCache, sdpa with StaticCache, attnd.

A Llama-3-8B of random weights in bfloat16. Its caches are filled once each; then each decodes TOKENS tokens greedily, by turns, ROUNDS
times, and is cropped again: medians of milliseconds a token, and of the host's time, which ends when the last kernel of a token is
launched. The first round of each is not counted: DynamicCache allocates what it grows into then. Wants a GPU, torch and transformers.

    bench_models.py [BATCHxCONTEXT ...]
    LAYERS=8 bench_models.py 1x1024     fewer layers"""
import os
import statistics
import sys
import time

import torch
import transformers

import attnd
import attnd.transformers

TOKENS, ROUNDS = 24, 6  # the first round is not counted
SHAPES = ('1x1024', '1x8192', '1x32768', '16x1024', '16x8192')
PART = 2048  # tokens of a prompt that are computed at once
GAP = '  '


def make_model():
    config = transformers.LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=int(os.environ.get('LAYERS', 32)),
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=131072, rope_theta=500000.0)
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device('cuda'):
        model = transformers.LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return model.eval()


class Decoder:
    """A model with one of the caches, which has the context of all rows."""

    def __init__(self, model, name, batch, context):
        self.model, self.name, self.at, self.times, self.host = model, name, context, [], []
        self.attention = 'attnd' if name == 'attnd' else 'sdpa'
        room = context + ROUNDS * TOKENS
        if name == 'DynamicCache':
            self.cache = transformers.DynamicCache(config=model.config)
        elif name == 'StaticCache':
            self.cache = transformers.StaticCache(config=model.config, max_cache_len=room)
        else:
            self.engine = attnd.transformers.use(model, tokens=batch * (room + 16))
            self.cache = attnd.transformers.Cache(self.engine)
        model.set_attn_implementation(self.attention)
        ids = torch.randint(3, model.config.vocab_size, (batch, context), device='cuda',
                            generator=torch.Generator('cuda').manual_seed(2))
        rows = max(1, PART // batch)
        for first in range(0, context, rows):
            self.token = self.forward(ids[:, first : first + rows], first)

    def forward(self, ids, first):
        positions = torch.arange(first, first + ids.shape[1], device='cuda')
        out = self.model(ids, past_key_values=self.cache, position_ids=positions[None].expand(len(ids), -1), use_cache=True,
                         logits_to_keep=1)
        return out.logits[:, -1:].argmax(-1)

    def decode(self, tokens):
        for _ in range(tokens):
            self.token = self.forward(self.token, self.at)
            self.at += 1

    def measure(self):
        self.model.set_attn_implementation(self.attention)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        self.decode(TOKENS)
        self.host.append((time.perf_counter() - begin) / TOKENS * 1e3)
        torch.cuda.synchronize()
        self.times.append((time.perf_counter() - begin) / TOKENS * 1e3)
        if self.name != 'StaticCache':  # which cannot, and has room
            self.cache.crop(-TOKENS)
            self.at -= TOKENS

    def close(self):
        if self.name == 'attnd':
            self.cache.close()
            self.engine.close()
        self.cache = None


def measure(model, batch, context):
    decoders = [Decoder(model, name, batch, context) for name in ('DynamicCache', 'StaticCache', 'attnd')]
    for _ in range(ROUNDS):
        for decoder in decoders:
            decoder.measure()
    print(f'{batch:2} x {context:6}:', *(f'{d.name} {statistics.median(d.times[1:]):6.2f} ms a token ({statistics.median(d.host[1:]):6.2f} of '
                                         "the host's)" for d in decoders), sep=GAP, flush=True)
    for decoder in decoders:
        decoder.close()
    torch.cuda.empty_cache()


def main():
    if not torch.cuda.is_available():
        print('skip: there is no GPU here')
        return
    model = make_model()
    print(torch.cuda.get_device_name(), 'torch', torch.__version__, 'transformers', transformers.__version__, attnd.version(), sep=', ')
    with torch.no_grad():
        for shape in sys.argv[1:] or SHAPES:
            measure(model, *(int(n) for n in shape.split('x')))


if __name__ == '__main__':
    main()
