# SPDX-License-Identifier: Apache-2.0
"""generate.py - a tiny random Llama decodes by itself and through attnd: the same tokens, and the block table as it grows.

    pip install attnd-*.whl torch transformers && python generate.py
"""
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import attnd.transformers

PROMPT, TOKENS, BLOCK = 12, 24, 8

torch.manual_seed(0)
config = LlamaConfig(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=8,
                     num_key_value_heads=2, max_position_embeddings=256)
model = LlamaForCausalLM(config).eval()
prompt = torch.randint(3, 512, (1, PROMPT))
how = {'max_new_tokens': TOKENS, 'do_sample': False, 'eos_token_id': None, 'pad_token_id': 0}

model.set_attn_implementation('eager')
expected = model.generate(prompt, **how)

engine = attnd.transformers.use(model, tokens=1024, block_size=BLOCK)  # the one line
print(f'{attnd.version()}, {engine.description.backend} ({engine.description.isa})')
cache = attnd.transformers.Cache(engine)
tokens, shown = prompt, []
with torch.no_grad():
    for step in range(TOKENS):
        new = tokens if step == 0 else tokens[:, -1:]
        logits = model(new, **{attnd.transformers._CACHE_NAME: cache}).logits
        tokens = torch.cat([tokens, logits[:, -1:].argmax(dim=-1)], dim=1)
        table = engine.blocks(cache.ids[0])
        if table != shown:
            print(f'{engine.look(cache.ids[0]).length:3} tokens in blocks {table}')
            shown = table
same = tokens.tolist() == expected.tolist()
same &= model.generate(prompt, **how).tolist() == expected.tolist()
engine.audit()
print('tokens identical' if same else f'tokens differ:\n{expected}\n{tokens}')
raise SystemExit(0 if same else 1)
