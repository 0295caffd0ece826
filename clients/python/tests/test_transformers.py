# SPDX-License-Identifier: Apache-2.0
"""Hugging Face models decode token for token as they do without attnd.

Small random models of every family, in float32 beside `eager`, greedily, with padding, beams, assistance and sampling; in bfloat16 beside
the same model whose attention is computed in float64, up to the first step that it calls close. Runs where torch and transformers are installed."""
import copy
import os
import pathlib
import sys
import unittest
import unittest.mock
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).parent))

try:
    import torch
    import transformers

    import attnd
    import attnd.transformers
    import test_engine
except ImportError as e:
    raise unittest.SkipTest(f'torch and transformers are not installed: {e}')

TOKENS = 64
DEVICE = os.environ.get('DEVICE', 'cpu')  # of the models
# How far from the best logit, in standard deviations of all, the tokens are that bfloat16 may choose: of the same model with attention in
# float64, where two units in the last place of a logit are 0.025, and of a model that is float64 as a whole. For a mixture of experts there
# is no such bound: where two are close to be chosen, rounding takes another one.
MARGIN, MARGIN_OF_ALL = 0.03, 0.06
EXPERTS = ('GptOss', 'Qwen3Moe')
SMALL = {
    'vocab_size': 320,
    'hidden_size': 64,
    'intermediate_size': 96,
    'num_hidden_layers': 4,
    'num_attention_heads': 8,
    'num_key_value_heads': 2,
    'max_position_embeddings': 1024,
    'head_dim': 16,
    'pad_token_id': 0,
    'bos_token_id': 1,
    'eos_token_id': 2,
}
SLIDING = {'sliding_window': 24, 'layer_types': ['sliding_attention', 'full_attention'] * 2}
MOE = {'num_experts': 4, 'num_experts_per_tok': 2, 'moe_intermediate_size': 32}
FAMILIES = {
    'Llama': {},
    'Qwen3': {},
    'Qwen3Moe': MOE,
    'Mistral': {'sliding_window': 24},
    'Gemma2': {**SLIDING, 'attn_logit_softcapping': 5.0, 'query_pre_attn_scalar': 20},
    'Gemma3': {**SLIDING, 'query_pre_attn_scalar': 20},
    'GptOss': {**SLIDING, 'num_local_experts': 4, 'num_experts_per_tok': 2},
    'Phi3': {'sliding_window': 24},
    'Olmo2': {},
    'Cohere2': SLIDING,
    'SmolLM3': {**SLIDING, 'use_sliding_window': True},
}


def make(family, dtype=torch.float32):
    """A random model: weights so large that its attention is far from uniform, and its choices from a loop."""
    torch.manual_seed(1)
    config_class = getattr(transformers, {'Gemma3': 'Gemma3TextConfig'}.get(family, family + 'Config'))
    config = config_class(**{**SMALL, **FAMILIES[family]})
    model = getattr(transformers, family + 'ForCausalLM')(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() >= 2 and 'embed' not in name:
                p.mul_(4)
            if name.endswith('sinks'):
                p.normal_()
    return model.to(dtype).to(DEVICE)


def prompts(batch, tokens):
    return torch.randint(3, SMALL['vocab_size'], (batch, tokens), generator=torch.Generator().manual_seed(2)).to(DEVICE)


def generate(model, implementation, inputs, **how):
    model.set_attn_implementation(implementation)
    how = {'max_new_tokens': TOKENS, 'do_sample': False, 'eos_token_id': None, 'pad_token_id': 0, **how}
    run = model.generate if implementation == 'attnd' else lambda *a, **k: type(model).generate(model, *a, **k)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return run(inputs, **how)


class Models(unittest.TestCase):
    def open(self, model, **how):
        engine = attnd.transformers.use(model, tokens=8192, block_size=8, config={'backend': {'name': test_engine.BACKEND}}, **how)
        self.addCleanup(engine.close)
        return engine

    def check_float32(self, family):
        model = make(family)
        engine = self.open(model)
        x = prompts(3, 40)
        expected = generate(model, 'eager', x)
        self.assertEqual(generate(model, 'attnd', x).tolist(), expected.tolist())
        self.assertEqual(engine.stats().sequences, 0)
        mask = torch.ones_like(x)
        mask[0, :13] = mask[1, :39] = 0
        expected = generate(model, 'eager', x, attention_mask=mask, max_new_tokens=24)
        self.assertEqual(generate(model, 'attnd', x, attention_mask=mask, max_new_tokens=24).tolist(), expected.tolist())
        model.set_attn_implementation('eager')
        with torch.no_grad():
            expected = model(x, use_cache=False).logits
            model.set_attn_implementation('attnd')
            torch.testing.assert_close(model(x, use_cache=False).logits, expected, atol=2e-3, rtol=1e-3)
        engine.audit()

    def check_bfloat16(self, family):
        """The tokens of the same model with attention in float64, and of eager, up to the first step that float64 calls close."""
        model = make(family, torch.bfloat16)
        exact = copy.deepcopy(model).double()
        exact.set_attn_implementation('eager')
        if hasattr(exact, 'set_experts_implementation'):
            exact.set_experts_implementation('eager')  # grouped products have no float64
        self.open(model)
        x = prompts(3, 40)
        eager, ours = generate(model, 'eager', x), generate(model, 'attnd', x)
        wanted = forced_logits(model, 'float64', x, ours[:, 40:])
        for row, (theirs, got) in enumerate(zip(eager, ours)):
            apart = (got[40:] != wanted[row].argmax(-1)).nonzero()
            _same_as_float64.append(not len(apart))
            if len(apart):
                self.close_to(wanted[row, int(apart[0])], got[40 + int(apart[0])], family, MARGIN)
            apart = (theirs != got).nonzero()
            if not len(apart):
                continue
            at = int(apart[0])
            with torch.no_grad():
                of_all = exact(got[None, :at], use_cache=False).logits[0, -1]
            for token in (theirs[at], got[at]):
                self.close_to(of_all, token, family, MARGIN_OF_ALL)
            _apart.append([int(token[at] == logits.argmax()) for logits in (wanted[row, at - 40], of_all) for token in (got, theirs)])

    def close_to(self, logits, token, family, margin):
        self.assertTrue(family in EXPERTS or logits.max() - logits[token] < margin * logits.std())


def eager_attention(module, q, k, v, mask, dtype, of):
    """o of the module's own eager attention, computed in a dtype."""
    forward = sys.modules[type(module).__module__].eager_attention_forward
    asks = {n: x.to(dtype) if torch.is_tensor(x) else x for n in ('scaling', 'softcap', 's_aux') if (x := of.get(n)) is not None}
    sinks = getattr(module, 'sinks', None)  # eager looks there
    if mask is not None:
        mask = mask.to(dtype).masked_fill(mask == torch.finfo(mask.dtype).min, torch.finfo(dtype).min)
    if sinks is not None:
        module.sinks = torch.nn.Parameter(sinks.to(dtype), requires_grad=False)
    o = forward(module, q.to(dtype), k.to(dtype), v.to(dtype), mask, dropout=0.0, **asks)[0]
    if sinks is not None:
        module.sinks = sinks
    return o


def attention_in_float64(module, query, key, value, attention_mask, **of):
    return eager_attention(module, query, key, value, attention_mask, torch.float64, of).to(query.dtype), None


def forced_logits(model, implementation, prompt, tokens):
    """[batch, tokens, vocabulary] in float32: what the model says before each of these tokens, fed one at a time."""
    model.set_attn_implementation(implementation)
    cache, logits, feed = transformers.DynamicCache(config=model.config), [], prompt
    with torch.no_grad():
        for i in range(tokens.shape[1]):
            logits.append(model(feed, past_key_values=cache, use_cache=True).logits[:, -1].float())
            feed = tokens[:, i:i + 1]
    return torch.stack(logits, 1)


transformers.AttentionInterface.register('float64', attention_in_float64)
transformers.AttentionMaskInterface.register('float64', transformers.masking_utils.eager_mask)

_same_as_float64 = []  # of rows of bfloat16: whether attnd's tokens are those of attention in float64 to the end
# Of rows where attnd and eager part: whether attnd's token, and eager's, is that of attention in float64; and that of a model in float64.
_apart = []


_errors = {}  # of attention in bfloat16, from float64, by who computed it: sums of squares


def tearDownModule():
    if _errors:
        print('\nbfloat16: decode steps of attention, o from float64 over the same q, k and v, root of the mean square:',
              ', '.join(f'{name} {(squares / count) ** 0.5:.3g}' for name, (squares, count) in _errors.items()))
    if not _apart:
        return
    ours, theirs, ours_of_all, theirs_of_all = (sum(column) for column in zip(*_apart))
    print(f'\nbfloat16: of {len(_same_as_float64)} rows of {TOKENS} tokens attnd has the tokens of attention in float64 in {sum(_same_as_float64)}, to the '
          f"end; where attnd and eager part, in {len(_apart)}, attnd's token is that of attention in float64 {ours} times, eager's {theirs}; that of a "
          f'model in float64 {ours_of_all} times, {theirs_of_all}')


for _family in FAMILIES:
    setattr(Models, f'test_{_family}_float32', lambda self, f=_family: self.check_float32(f))
    setattr(Models, f'test_{_family}_bfloat16', lambda self, f=_family: self.check_bfloat16(f))


class Ways(Models):
    def test_left_padded_batch_of_8(self):
        model = make('Llama')
        self.open(model)
        x, mask = prompts(8, 30), torch.ones(8, 30, dtype=torch.long, device=DEVICE)
        for row in range(8):
            mask[row, : row * 4] = 0
        expected = generate(model, 'eager', x, attention_mask=mask)
        self.assertEqual(generate(model, 'attnd', x, attention_mask=mask).tolist(), expected.tolist())

    def test_beams_are_forks(self):
        model = make('Llama')
        engine = self.open(model)
        x, how = prompts(1, 512), {'num_beams': 4, 'return_dict_in_generate': True, 'output_scores': True}
        expected, got = generate(model, 'eager', x, **how), generate(model, 'attnd', x, **how)
        self.assertEqual(got.sequences.tolist(), expected.sequences.tolist())
        torch.testing.assert_close(got.sequences_scores, expected.sequences_scores)
        self.assertLessEqual(engine.stats().tokens_physical, 512 + 4 * (TOKENS + 2 * 8))
        self.assertEqual(engine.stats().sequences, 4)
        del got
        self.assertEqual(engine.stats().sequences, 0)

    def test_sampling(self):
        model = make('Qwen3')
        self.open(model)
        x = prompts(2, 20)
        said = []
        for implementation in ('eager', 'attnd'):
            torch.manual_seed(11)
            said.append(generate(model, implementation, x, do_sample=True, top_k=20, num_return_sequences=2).tolist())
        self.assertEqual(*said)

    def test_assisted_decoding_truncates(self):
        model, assistant = make('Llama'), make('Llama')
        with torch.no_grad():
            for p in assistant.parameters():
                p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(3)).to(p) * 0.01 * p.std())
        engine = self.open(model)
        x = prompts(1, 20)
        expected = generate(model, 'eager', x)
        before = engine.stats().steps
        got = generate(model, 'attnd', x, assistant_model=assistant)
        self.assertEqual(got.tolist(), expected.tolist())
        self.assertLess(engine.stats().steps - before, 4 * TOKENS)  # some were accepted: fewer steps than tokens x layers

    def test_a_conversation_goes_on_in_its_cache(self):
        model = make('Qwen3')
        engine = self.open(model)
        x, more = prompts(2, 20), prompts(2, 9)
        cache = attnd.transformers.Cache(engine)
        first = generate(model, 'attnd', x, **{attnd.transformers._CACHE_NAME: cache})
        both = torch.cat([first, more], dim=1)
        again = generate(model, 'attnd', both, **{attnd.transformers._CACHE_NAME: cache})
        self.assertEqual(again.tolist(), generate(model, 'eager', both).tolist())
        cache.close()
        self.assertEqual(engine.stats().sequences, 0)

    def test_long_prompts_are_cut_into_calls(self):
        model = make('Mistral')
        self.open(model)
        model2 = make('Mistral')
        engine = attnd.transformers.use(model2, tokens=8192, config={'limits': {'rows_per_call': 50}, 'backend': {'name': test_engine.BACKEND}})
        self.addCleanup(engine.close)
        x = prompts(3, 70)
        self.assertEqual(generate(model2, 'attnd', x, max_new_tokens=8).tolist(), generate(model, 'attnd', x, max_new_tokens=8).tolist())

    @unittest.skipUnless('ATTND' in os.environ, 'ATTND names no daemon')
    def test_through_a_daemon(self):
        for family in FAMILIES:
            model = make(family)
            config = {'geometry': {**attnd.transformers.geometry(model), 'block_size': 8}, 'pool': {'blocks': 1024}}
            daemon = test_engine.Daemon({**config, 'backend': {'name': test_engine.BACKEND}})
            self.addCleanup(daemon.end)
            x = prompts(3, 40)
            expected = generate(model, 'eager', x)
            with attnd.Client(daemon.address) as client:
                attnd.transformers.use(model, engine=client)
                self.assertEqual(generate(model, 'attnd', x).tolist(), expected.tolist())
                beams = generate(model, 'eager', x[:1], num_beams=3)
                self.assertEqual(generate(model, 'attnd', x[:1], num_beams=3).tolist(), beams.tolist())
                self.assertEqual(client.stats().sequences, 0)
                with self.assertRaisesRegex(attnd.UnsupportedError, 'dtype is bf16 in the model, and f32'):
                    attnd.transformers.use(make(family, torch.bfloat16), engine=client)

    def test_bits_do_not_depend_on_the_batch(self):
        """q, k, v of a run, alone, in a batch of 16, and padded on the left."""
        model = make('Llama', torch.bfloat16)
        engine = self.open(model)
        recorded = []
        ask = engine.attend

        def record(ids, q, **of):
            o = ask(ids, q, **of)
            recorded.append((of['layer'], of['counts'], q.clone(), of['k'].clone(), of['v'].clone(), o.clone()))
            return o

        def record_step(step, layer, query, key, value):  # as decode steps go on a GPU
            o = compute(step, layer, query, key, value)
            recorded.append((layer, [1], *(x[:, :, 0].clone() for x in (query, key, value)), o[:, 0].clone()))
            return o

        compute = attnd.transformers._Step.__call__
        with unittest.mock.patch.object(attnd.transformers._Step, '__call__', record_step):
            engine.attend = record
            generate(model, 'attnd', prompts(1, 33), max_new_tokens=9)
            engine.attend = ask
        self.assertEqual(len(recorded), 4 * 9)
        alone = engine.create()
        others = [engine.create() for _ in range(15)]
        for n, id in enumerate(others):
            for layer in range(4):
                x = torch.randn(n * 3 + 1, 2, 16, device=recorded[0][2].device).bfloat16()
                engine.append(id, x, x, layer=layer)
        beside = engine.create()
        for layer, counts, q, k, v, o in recorded:
            n = counts[0]
            self.assertTrue(torch.equal(engine.attend(alone, q, k=k, v=v, layer=layer), o))
            company = [torch.cat([x, torch.randn(15, *x.shape[1:], device=x.device).bfloat16()]) for x in (q, k, v)]
            got = engine.attend([beside, *others], company[0], k=company[1], v=company[2], layer=layer, counts=[n] + [1] * 15)
            self.assertTrue(torch.equal(got[:n], o))

    def test_bfloat16_attention_is_nearer_to_float64_than_eagers(self):
        """What of a bfloat16 model is attnd's: o of each decode step, of the same q, k and v. The rest is the model's own rounding."""
        for family in ('Llama', 'Qwen3', 'Olmo2', 'Gemma2', 'GptOss'):
            model = make(family, torch.bfloat16)
            self.open(model)
            compute, past = attnd.transformers.attention, {}
            errors = {'attnd': 0, 'eager': 0}

            def beside(module, query, key, value, attention_mask, **of):
                o, weights = compute(module, query, key, value, attention_mask, **of)
                before = past.get(module, (key[:, :, :0], value[:, :, :0]))
                k, v = past[module] = tuple(torch.cat(x, dim=2) for x in zip(before, (key, value)))
                if query.shape[2] == 1:
                    seen = min(of.get('sliding_window') or k.shape[2], k.shape[2])
                    theirs, exact = (eager_attention(module, query, k[:, :, -seen:], v[:, :, -seen:], None, dtype, of)
                                     for dtype in (torch.bfloat16, torch.float64))
                    for name, got in (('attnd', o), ('eager', theirs)):
                        square = float((got.double() - exact).square().sum())
                        errors[name] += square
                        total = _errors.setdefault(name, [0, 0])
                        total[0] += square
                        total[1] += got.numel()
                return o, weights

            with unittest.mock.patch.dict(transformers.AttentionInterface._global_mapping, {'attnd': beside}):
                generate(model, 'attnd', prompts(3, 40))
            self.assertTrue(past)
            self.assertLess(errors['attnd'], errors['eager'], family)

    def test_what_is_not_there_is_named(self):
        model = make('Llama')
        engine = self.open(model)
        model.set_attn_implementation('attnd')
        with self.assertRaisesRegex(attnd.UnsupportedError, 'gradients'):
            model(prompts(1, 4))
        with torch.no_grad():
            with self.assertRaisesRegex(attnd.UnsupportedError, 'neither causal'):
                model(prompts(1, 8), position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]], device=DEVICE), use_cache=False)
            with self.assertRaisesRegex(attnd.UnsupportedError, 'not one of padding'):
                model(prompts(1, 4), attention_mask=torch.ones(1, 1, 4, 4, device=DEVICE), use_cache=False)
            with self.assertRaisesRegex(attnd.UnsupportedError, 'use'):
                other = make('Llama')
                other.set_attn_implementation('attnd')
                other(prompts(1, 4))
        with self.assertRaisesRegex(attnd.UnsupportedError, 'attention'):
            attnd.transformers.use(transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2)))
        self.assertEqual(engine.stats().sequences, 0)


class Bugs(Ways):
    """Each was found by a reader, with wrong tokens and no error."""

    def test_bug_shared_k_and_v_were_taken_for_all(self):
        config = transformers.Gemma3nTextConfig(**{**SMALL, 'num_hidden_layers': 6, 'num_kv_shared_layers': 2, 'hidden_size_per_layer_input': 8,
                                                   'vocab_size_per_layer_input': 320, 'intermediate_size': 96, 'laurel_rank': 8,
                                                   'layer_types': ['sliding_attention', 'full_attention'] * 3,
                                                   'activation_sparsity_pattern': [0.0] * 6})
        with self.assertRaisesRegex(attnd.UnsupportedError, 'share the K and V'):
            attnd.transformers.use(transformers.Gemma3nForCausalLM(config))

    def test_bug_chunked_attention_was_taken_for_causal(self):
        model = make('Llama')
        self.open(model)
        with self.assertRaisesRegex(attnd.UnsupportedError, 'neither causal'):
            attnd.transformers._mask(q_length=20, kv_length=20, q_offset=0, config=model.config,
                                     mask_function=lambda b, h, q, k: (k <= q) & (k // 8 == q // 8))
        model.config.layer_types = ['chunked_attention'] * 4
        with self.assertRaisesRegex(attnd.UnsupportedError, 'layers of chunked_attention'):
            attnd.transformers.use(model)

    def test_bug_other_caches_were_taken_for_all_tokens(self):
        model = make('Mistral')
        self.open(model)
        model.set_attn_implementation('attnd')
        x = prompts(1, 40)
        for cache in (transformers.StaticCache(config=model.config, max_cache_len=80), transformers.DynamicCache(config=model.config)):
            with self.assertRaisesRegex(attnd.UnsupportedError, 'a cache other than'), torch.no_grad():
                for new in (x, x[:, -1:]):
                    model(new, **{attnd.transformers._CACHE_NAME: cache})

    def test_bug_a_copy_generated_with_the_original(self):
        model = make('Llama')
        self.open(model)
        other = copy.deepcopy(model)
        with self.assertRaisesRegex(attnd.UnsupportedError, 'use'):
            generate(other, 'attnd', prompts(1, 8), max_new_tokens=2)
        attnd.transformers.use(other, engine=attnd.transformers._engines[model.model.layers[0].self_attn][0])
        with torch.no_grad():
            other.lm_head.weight.zero_()
        self.assertEqual(generate(other, 'attnd', prompts(1, 8), max_new_tokens=3)[0, 8:].tolist(), [0, 0, 0])

    def test_bug_generation_configurations_were_not_asked(self):
        model = make('Llama')
        engine = self.open(model)
        x = prompts(1, 20)
        expected = generate(model, 'eager', x, max_new_tokens=6)
        how = transformers.GenerationConfig(max_new_tokens=6, do_sample=False, use_cache=False, pad_token_id=0)
        model.set_attn_implementation('attnd')
        self.assertEqual(model.generate(x, generation_config=how).tolist(), expected.tolist())
        how = transformers.GenerationConfig(max_new_tokens=6, do_sample=False, return_dict_in_generate=True, pad_token_id=0)
        found = model.generate(x, generation_config=how)
        self.assertEqual(engine.stats().sequences, 1)
        del found
        self.assertEqual(engine.stats().sequences, 0)

    def test_bug_a_closed_cache_went_on(self):
        model = make('Llama')
        engine = self.open(model)
        model.set_attn_implementation('attnd')
        cache = attnd.transformers.Cache(engine)
        with torch.no_grad():
            model(prompts(1, 9), **{attnd.transformers._CACHE_NAME: cache})
            cache.close()
            with self.assertRaisesRegex(ValueError, 'closed'):
                model(prompts(1, 1), **{attnd.transformers._CACHE_NAME: cache})
        self.assertEqual(engine.stats().sequences, 0)

    def test_bug_a_reset_cache_asked_for_the_sequences_that_it_had(self):
        model = make('Llama')
        self.open(model)
        x = prompts(2, 20)
        cache = attnd.transformers.Cache(attnd.transformers._engines[model.model.layers[0].self_attn][0])
        model.set_attn_implementation('attnd')
        with torch.no_grad():
            for _ in range(2):
                logits = [model(part, past_key_values=cache).logits for part in (x[:, :18], x[:, 18:19], x[:, 19:])]
                expected = model(x, use_cache=False).logits
                torch.testing.assert_close(torch.cat(logits, dim=1), expected, atol=2e-3, rtol=1e-3)
                cache.reset()
        cache.close()

    def test_bug_an_engine_with_other_windows_was_taken(self):
        engine = self.open(make('Llama'))
        with self.assertRaisesRegex(attnd.UnsupportedError, 'windows are'):
            attnd.transformers.use(make('Mistral'), engine=engine)

    def test_bug_cropping_behind_padding_took_tokens(self):
        model = make('Llama')
        engine = self.open(model)
        model.set_attn_implementation('attnd')
        cache, mask = attnd.transformers.Cache(engine), torch.ones(1, 9, dtype=torch.long, device=DEVICE)
        mask[0, 6:] = 0
        with torch.no_grad():
            model(prompts(1, 9), attention_mask=mask, **{attnd.transformers._CACHE_NAME: cache})
        with self.assertRaisesRegex(attnd.UnsupportedError, 'padded on the right'):
            cache.crop(-2)


for _class in (Ways, Bugs):
    for _name in [n for n in dir(_class) if n.startswith('test_') and n not in vars(_class)]:
        setattr(_class, _name, None)
if __name__ == '__main__':
    unittest.main()
