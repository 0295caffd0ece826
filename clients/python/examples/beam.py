# SPDX-License-Identifier: Apache-2.0
"""beam.py - beams are forks: what four beams over a long prompt hold, and what they would hold apart.

    pip install attnd-*.whl torch transformers && python beam.py
"""
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import attnd.transformers

PROMPT, TOKENS, BEAMS, BLOCK = 512, 32, 4, 16

torch.manual_seed(0)
config = LlamaConfig(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=8,
                     num_key_value_heads=2, max_position_embeddings=1024)
model = LlamaForCausalLM(config).eval()
prompt = torch.randint(3, 512, (1, PROMPT))
how = {'max_new_tokens': TOKENS, 'num_beams': BEAMS, 'do_sample': False, 'eos_token_id': None, 'pad_token_id': 0,
       'return_dict_in_generate': True, 'output_scores': True}

model.set_attn_implementation('eager')
expected = model.generate(prompt, **how)

engine = attnd.transformers.use(model, tokens=8192, block_size=BLOCK)
found = model.generate(prompt, **how)  # its cache lives as long as what it returns
stats = engine.stats()
print(f'{BEAMS} beams of {PROMPT} + {TOKENS} tokens: {stats.tokens_logical} tokens, of which {stats.tokens_physical} are stored, in '
      f'{stats.blocks_held} blocks; apart it would be {BEAMS * -(-(PROMPT + TOKENS - 1) // BLOCK)}')
print(f'{stats.forks} forks, {stats.copies_on_write} blocks copied as they were written')
same = found.sequences.tolist() == expected.sequences.tolist()
print(f'scores {found.sequences_scores.tolist()}, eager {expected.sequences_scores.tolist()}')
engine.audit()
print('tokens identical' if same else 'tokens differ')
raise SystemExit(0 if same else 1)
