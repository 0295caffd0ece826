# SPDX-License-Identifier: Apache-2.0
"""Hugging Face models whose attention and KV cache are attnd's.

    import attnd.transformers

    attnd.transformers.use(model)        # this line
    model.generate(**inputs)

use() opens an engine with the model's geometry, sets attn_implementation="attnd", and gives each generate() a cache of its own, a
sequence of the engine's a row. The cache keeps no K and no V: its layers hand them through to the attention function, which appends
them and attends in one call. Beams are forks, assisted decoding truncates, and padding is never stored.

What a model needs and attnd has not is an UnsupportedError that names it.
"""
import ctypes
import threading
import types
import weakref

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers import cache_utils
from transformers.generation import utils as generation_utils

from . import _library
from .client import Client
from .engine import Engine
from .errors import BusyError, UnsupportedError
from .tensors import TORCH_TYPES, current_stream

NAME = 'attnd'
_KINDS_KEPT = 64  # of mask functions
_DTYPES = {torch.float32: 'f32', torch.float16: 'f16', torch.bfloat16: 'bf16'}
_CACHE_NAME = 'cache' if 'cache' in getattr(generation_utils, 'ALL_CACHE_NAMES', ()) else 'past_key_values'  # of generate()'s argument
_CROP_WANTS_LENGTH = 'max_length' in cache_utils.Cache.crop.__code__.co_varnames  # of versions before 5.20


def _unsupported(detail):
    return UnsupportedError({'code': 'unsupported', 'detail': detail})


# ---- what a model's attention is


class _Layer:
    """What one attention layer computes, from its module and the configuration."""

    def __init__(self, module, config):
        name = type(module).__name__
        self.scaling = float(module.scaling)
        has_window = hasattr(module, 'sliding_window')
        self.window = (module.sliding_window if has_window else getattr(config, 'sliding_window', None)) or 0
        self.softcap = float(getattr(module, 'attn_logit_softcapping', None) or 0)
        sinks = getattr(module, 'sinks', None)
        self.sinks = None if sinks is None else sinks.detach().float().tolist()
        self.granted = None  # what a call asked for that was looked at already
        if not getattr(module, 'is_causal', True):
            raise _unsupported(f'{name}: attention that is not causal')
        if getattr(module, 'is_kv_shared_layer', False):
            raise _unsupported(f'{name}: layers that share the K and V of another layer')


def _attention_modules(model):
    """The attention modules by layer, and their configuration."""
    config = model.config.get_text_config(decoder=True)
    kinds = set(getattr(config, 'layer_types', None) or []) - {'full_attention', 'sliding_attention'}
    if kinds:
        raise _unsupported(f'{type(model).__name__}: layers of {", ".join(sorted(kinds))}')
    found = {}
    for module in model.modules():
        if hasattr(module, 'scaling') and hasattr(module, 'layer_idx') and hasattr(module, 'num_key_value_groups'):
            if found.setdefault(module.layer_idx, module) is not module:
                raise _unsupported(f'{type(module).__name__}: several attention layers with one index')
    if sorted(found) != list(range(config.num_hidden_layers)):
        raise _unsupported(f'{type(model).__name__}: layers that are not attention, or not of a kind that is known')
    return [found[i] for i in range(len(found))], config


def geometry(model):
    """The `geometry` of an engine's configuration for a model."""
    modules, config = _attention_modules(model)
    layers = [_Layer(m, config) for m in modules]
    heads = config.num_attention_heads
    dtype = next(p.dtype for p in modules[0].parameters() if p.is_floating_point())
    if dtype not in _DTYPES:
        raise _unsupported(f'attention in {dtype}')
    for what in ('scaling', 'softcap'):
        if len({getattr(layer, what) for layer in layers}) > 1:
            raise _unsupported(f'{what} that differs from layer to layer')
    head_dim = getattr(config, 'head_dim', None) or config.hidden_size // heads
    of = {
        'layers': len(layers),
        'query_heads': heads,
        'kv_heads': getattr(config, 'num_key_value_heads', None) or heads,
        'head_dim': head_dim,
        'dtype': _DTYPES[dtype],
        'kv_dtype': _DTYPES[dtype],
        'scale': layers[0].scaling,
        'softcap': layers[0].softcap,
        'window': [layer.window for layer in layers],
    }
    if head_dim % 8:
        raise _unsupported(f'heads of {head_dim} elements: attnd wants a multiple of 8')
    if layers[0].sinks is not None:
        of['sinks'] = [layer.sinks for layer in layers]
    return of


# ---- cache


class Layer(cache_utils.CacheLayerMixin):
    """One layer of a Cache: it has no K and no V, and hands on what it is given."""

    is_croppable = True
    is_sliding = False
    supports_early_init = False

    def __init__(self, cache, index):
        super().__init__()
        self._cache = weakref.ref(cache)
        self.index = index
        self.seen = 0  # tokens of a row, padding included

    def lazy_initialization(self, key_states, value_states=None):
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        cache = self._cache()
        self.is_initialized = True
        cache._begin(key_states.shape[0])
        self.seen += key_states.shape[-2]
        _here.handed = (cache, self.index, key_states)
        return key_states, value_states

    def get_mask_sizes(self, query_length):
        # transformers before 5.10 gives positions
        return self.seen + (query_length if isinstance(query_length, int) else query_length.shape[0]), 0

    def get_seq_length(self):
        return self.seen

    def get_max_length(self):
        return -1

    def get_max_cache_shape(self):
        return -1

    def offload(self):
        pass

    def prefetch(self):
        pass


class Cache(cache_utils.Cache):
    """A sequence of an engine's for each row of a batch. close(), or the end of the object, deletes them."""

    def __init__(self, engine):
        super().__init__(layers=[])
        self.engine = engine
        self.ids = []
        self._closed, self._right_padded = False, False
        self._step = None
        self.layers = [Layer(self, i) for i in range(engine.description.layers)]
        self._finalizer = weakref.finalize(self, engine.orphans.extend, self.ids)  # at any time: only noted

    def close(self):
        """Delete its sequences. It cannot be used any more."""
        self._closed = True
        _delete_all(self.engine, self.ids)

    def _check_open(self):
        if self._closed:
            raise ValueError('the cache is closed')

    def _begin(self, batch):
        self._check_open()
        if not self.ids:
            self.ids += self.engine.batch([{'op': 'create'}] * batch)
        if len(self.ids) != batch:
            raise ValueError(f'the cache has {len(self.ids)} rows, and the batch {batch}')

    @property
    def batch_size(self):
        return len(self.ids) or -1

    def _select(self, parents):
        """Row i becomes what row parents[i] is. The first to want a row keeps its sequence, others get a fork."""
        self._check_open()
        kept, ops, places = {}, [], []
        ids = [None] * len(parents)
        for i, parent in enumerate(parents):
            if parent not in kept:
                kept[parent] = ids[i] = self.ids[parent]
            else:
                ops.append({'op': 'fork', 'id': self.ids[parent]})
                places.append(i)
        ops += [{'op': 'delete', 'id': id} for row, id in enumerate(self.ids) if row not in kept]
        if ops:
            for i, made in zip(places, self.engine.batch(ops)):
                ids[i] = made[0]
        self.ids[:] = ids
        self._step = None

    def step(self, query, key, value):
        """The call of a decode step, of a token a row, whose tensors are on the engine's GPU: made once, filled in for each layer. None:
        the tensors are others."""
        form = _form(query, key, value)
        if self._step is None or self._step.form != form:
            fits = (query.shape[2] == 1 and _takes(self.engine, query.device)
                    and key.shape == value.shape and query.dtype == key.dtype == value.dtype
                    and _is_dense(query) and _is_dense(key) and _is_dense(value))
            kind = _Step if isinstance(self.engine, Engine) else _StepOfADaemon
            self._step = kind(self.engine, self.ids, query, key, form) if fits else None
        return self._step

    def _note_padding(self, attention_mask, first, tokens):
        """Whether a row has padding elsewhere than ahead of its tokens: then its last tokens are not the last stored."""
        if attention_mask is not None and tokens and attention_mask.dim() == 2:
            if tokens == 1 and _padding(attention_mask, attention_mask.shape[0], 1, first)[0] is None:
                return  # a token in each row is behind whatever was
            mask = attention_mask[:, : first + tokens].bool()
            self._right_padded |= not bool(mask[:, -1].all() & (mask[:, 1:] >= mask[:, :-1]).all())

    def reorder_cache(self, beam_idx):
        self._select(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats):
        self._select([i for i in range(len(self.ids)) for _ in range(repeats)])

    def batch_select_indices(self, indices):
        rows = torch.arange(len(self.ids))[indices.cpu()]
        self._select(rows.tolist())

    def crop(self, tokens):
        """Remove tokens from the end: -n of them, or, for transformers that say it so, all but the first n."""
        seen = self.get_seq_length()
        removed = seen - tokens if tokens > 0 or (_CROP_WANTS_LENGTH and tokens == 0) else -tokens
        if removed <= 0:
            return
        self._check_open()
        if self._right_padded:
            raise _unsupported('cropping rows that are padded on the right, or between their tokens')
        for id in self.ids:
            self.engine.truncate(id, max(self.engine.look(id).length - removed, 0))
        for layer in self.layers:
            layer.seen = max(layer.seen - removed, 0)

    def reset(self):
        self._check_open()
        _delete_all(self.engine, self.ids)
        self._step = None
        for layer in self.layers:
            layer.seen = 0


def _delete_all(engine, ids):
    if not engine.is_closed and ids:
        engine.batch([{'op': 'delete', 'id': id} for id in ids])
    ids.clear()


def _form(query, key, value):
    """What of a call's tensors is the same from layer to layer, and mostly from step to step."""
    return (query.shape, query.stride(), query.dtype, key.shape, key.stride(), key.dtype, value.shape, value.stride(), value.dtype,
            query.get_device())


class _Step:
    """attnd_attend() of one token a sequence. Of size-1 dimensions strides say nothing: [batch][heads][1][dim] is [batch][heads][dim]."""

    def __init__(self, engine, ids, query, key, form):
        batch, heads, _, dim = query.shape
        self.form, self._out = form, (batch, 1, heads, dim)
        self._ids = (ctypes.c_uint64 * batch)(*ids)
        kind = TORCH_TYPES[str(query.dtype)]
        self._shapes = [(ctypes.c_int64 * 3)(batch, x.shape[1], dim) for x in (query, key)]
        self._q, self._k, self._v, self._o = [_library.Tensor(None, _library.CUDA, query.device.index, 3, *kind, 1, self._shapes[i])
                                              for i in (0, 1, 1, 0)]
        self._rows = _library.Rows(sequences=self._ids, sequence_count=batch,
                                   **{name: ctypes.pointer(getattr(self, '_' + name)) for name in 'qkvo'})
        self._call = engine.prepare_attend(self._rows)

    def __call__(self, layer, query, key, value):
        out = query.new_empty(self._out)
        self._q.data, self._k.data, self._v.data, self._o.data = query.data_ptr(), key.data_ptr(), value.data_ptr(), out.data_ptr()
        self._rows.layer, self._rows.stream = layer, current_stream(query)
        self._call()
        return out


class _StepOfADaemon:
    """The same by a Client, in regions of GPU memory."""

    def __init__(self, client, ids, query, key, form):
        batch, heads, _, dim = query.shape
        self._form, self._out = form, (batch, 1, heads, dim)
        d = client.description
        if (heads, key.shape[1], dim, _DTYPES.get(query.dtype)) != (d.query_heads, d.kv_heads, d.head_dim, d.dtype):
            raise _unsupported(f'{query.dtype} {list(query.shape)} and {list(key.shape)}: the daemon has {d.dtype}, {d.query_heads} and {d.kv_heads} heads '
                               f'of {d.head_dim}')
        self._call = client.prepare_step(ids, query.device.index)

    @property
    def form(self):
        return self._form if self._call.is_open else None

    def __call__(self, layer, query, key, value):
        o = self._call(layer, query.data_ptr(), key.data_ptr(), value.data_ptr(), current_stream(query))
        return o.torch().view(self._out)


def _is_dense(x):
    """Whether [batch][heads][1][dim] lies together."""
    _, heads, _, dim = x.shape
    return x.stride(3) == 1 and x.stride(1) == dim and x.stride(0) == heads * dim


# ---- attention


class _Here(threading.local):
    """What a cache's layer has just handed on, for the attention function that is called next; the padding of the latest mask."""

    handed, padding = None, None
    causal = frozenset()  # what mask functions are that were seen to be of the causal kind


_here = _Here()
_engines = weakref.WeakKeyDictionary()  # by attention module: (engine, layer, _Layer)


def _identity(function):
    """What a function computes, as far as that can be told: its code, and what it closes over. TypeError: it cannot."""
    if isinstance(function, (int, float, str, type(None))):
        return function
    if not isinstance(function, types.FunctionType):
        raise TypeError
    cells = function.__closure__ or ()
    return function.__code__, tuple(_identity(x) for c in cells
                                    for x in (c.cell_contents if isinstance(c.cell_contents, (tuple, list)) else [c.cell_contents]))


def _mask(*, q_length=None, kv_length=0, q_offset=None, kv_offset=0, cache_position=None, mask_function=None, attention_mask=None,
          config=None, use_vmap=False, **_):
    """AttentionMaskInterface: the mask of padding itself, [batch][tokens], or None. The rest of the mask has to be causal, with the
    configuration's window or without, over all tokens so far."""
    if cache_position is not None:  # transformers before 5.20 gives positions
        q_length, q_offset = len(cache_position), int(cache_position[0])
    if kv_offset or kv_length != q_offset + q_length:
        raise _unsupported('a cache other than attnd.transformers.Cache that has not exactly all tokens')
    if use_vmap:
        raise _unsupported("a mask of the model's own beside the causal one")
    try:
        known = _identity(mask_function), getattr(config, 'sliding_window', None), q_length > 1
    except TypeError:
        known = None
    if known in _here.causal:
        return attention_mask
    zero, keys = torch.tensor(0), torch.arange(kv_length)
    for query in {q_offset, q_offset + q_length - 1}:
        seen = mask_function(zero, zero, torch.tensor(query), keys)
        window = int(seen.sum())
        if window not in (query + 1, getattr(config, 'sliding_window', None)) or not bool(seen[query + 1 - window : query + 1].all()):
            raise _unsupported('a mask that is neither causal nor of the sliding window')
    if known is not None and kv_length > 1 and not (getattr(config, 'sliding_window', None) and kv_length <= config.sliding_window + 1):
        few = _here.causal if len(_here.causal) < _KINDS_KEPT else frozenset()
        _here.causal = few | {known}  # long enough to have shown it
    return attention_mask


# Of a call, and not of attention as attnd computes it.
_OPTIONS = frozenset(('position_bias', 'head_mask', 'alibi', 'score_mod', 'block_mask', 'output_attentions'))


def _check(of, layer, module, scaling, sliding_window, softcap, s_aux, others):
    """Whether the model asks for what the engine computes."""
    name = f'{type(module).__name__}, layer {layer}'
    if scaling is not None and abs(scaling - of.scaling) > 1e-6 * of.scaling:
        raise _unsupported(f'{name}: scaling {scaling}, and the engine has {of.scaling}')
    if (sliding_window or 0) != of.window:
        raise _unsupported(f'{name}: a window of {sliding_window or 0} tokens, and the engine has {of.window}')
    if abs((softcap or 0) - of.softcap) > 1e-6:
        raise _unsupported(f'{name}: softcap {softcap}, and the engine has {of.softcap}')
    if (s_aux is not None) != (of.sinks is not None):
        raise _unsupported(f'{name}: sinks that the engine has not')
    for what in _OPTIONS - {'output_attentions'}:
        if others.get(what) is not None:
            raise _unsupported(f'{name}: {what}')
    if others.get('output_attentions'):
        raise _unsupported(f'{name}: attention weights are never there as a whole (output_attentions)')


def _pieces(counts, most):
    """Cut rows of sequences into calls of at most `most`: lists of (sequence, first row, end)."""
    call, room, at = [], most, 0
    for i, n in enumerate(counts):
        while n:
            part = min(n, room)
            call.append((i, at, at + part))
            at, n, room = at + part, n - part, room - part
            if not room:
                yield call
                call, room = [], most
    if call:
        yield call


def _calls(engine, ids, counts, device):
    """The calls that rows of sequences take: their rows as a slice, the sequences, and rows of each."""
    most = engine.description.rows_per_call
    for call in _pieces(counts, min(most, engine.gpu_rows) if device.type == 'cuda' else most):
        yield slice(call[0][1], call[-1][2]), [ids[i] for i, _, _ in call], [end - first for _, first, end in call]


def _takes(engine, device):
    """Whether an engine takes tensors where they are; else they go by way of host memory."""
    return device.type == 'cpu' or (device.type == 'cuda' and engine.takes_gpu(device.index))


def _rows(engine, x):
    """[batch][heads][tokens][dim] as [batch * tokens][heads][dim], where the engine takes it."""
    x = x.detach().transpose(1, 2)
    x = x.reshape(-1, *x.shape[2:]).contiguous()
    return x if _takes(engine, x.device) else x.cpu()


def _output(engine, q):
    """An array for o: in the memory of a daemon's GPU if q is small, so that it is not copied out of there."""
    if isinstance(engine, Client) and q.is_cuda and len(q) <= engine.gpu_rows:
        try:
            return engine.empty(q.shape, q.dtype, device=q.device)
        except BusyError:
            pass
    return torch.empty_like(q)


def _attend(engine, layer, ids, counts, q, k, v, out):
    for rows, sequences, of_each in _calls(engine, ids, counts, q.device):
        engine.attend(sequences, q[rows], k=k[rows], v=v[rows], layer=layer, counts=of_each, out=out[rows])


def _once(engine, layer, query, key, value, attention_mask, position_ids):
    """Attention without a Cache of ours: all K and V are there."""
    batch, _, new, _ = query.shape
    total = key.shape[2]
    if position_ids is not None and new > 1 and not bool((position_ids[..., 1:] - position_ids[..., :-1] <= 1).all()
                                                        and (position_ids[..., 1:] >= position_ids[..., :-1]).all()):
        raise _unsupported('several sequences packed into one row')
    ids = engine.batch([{'op': 'create'}] * batch)
    try:
        if total > new:
            k, v = (_rows(engine, x[:, :, : total - new]) for x in (key, value))
            keep, counts = _padding(attention_mask, batch, total - new, 0)
            k, v = (x if keep is None else x[keep.to(x.device)] for x in (k, v))
            for rows, sequences, of_each in _calls(engine, ids, counts, k.device):
                engine.append(sequences, k[rows], v[rows], layer=layer, counts=of_each)
        return _compute(engine, layer, ids, query, key[:, :, total - new :], value[:, :, total - new :], attention_mask, total - new)
    finally:
        engine.batch([{'op': 'delete', 'id': id} for id in ids])


def _padding(attention_mask, batch, tokens, first):
    """Which of the rows are no padding (None: all), and how many there are of each sequence."""
    if attention_mask is None:
        return None, [tokens] * batch
    if attention_mask.dim() != 2:
        raise _unsupported('a mask that is not one of padding')
    known = _here.padding  # layer after layer the same one, and on a GPU it is waited for
    if known is None or known[0] is not attention_mask or known[1] != (attention_mask._version, first, tokens):
        keep = attention_mask[:, first : first + tokens].bool().cpu()
        padding = (None, [tokens] * batch) if bool(keep.all()) else (keep.reshape(-1), keep.sum(dim=1).tolist())
        known = _here.padding = attention_mask, (attention_mask._version, first, tokens), padding
    return known[2]


def _compute(engine, layer, ids, query, key, value, attention_mask, first):
    batch, heads, tokens, dim = query.shape
    q, k, v = _rows(engine, query), _rows(engine, key), _rows(engine, value)
    keep, counts = _padding(attention_mask, batch, tokens, first)
    if keep is None:
        out = _output(engine, q)
        _attend(engine, layer, ids, counts, q, k, v, out)
        return out.view(batch, tokens, heads, dim).to(query.device)
    keep = keep.to(q.device)
    out = torch.empty((sum(counts), heads, dim), dtype=q.dtype, device=q.device)
    if len(out):
        _attend(engine, layer, ids, counts, q[keep], k[keep], v[keep], out)
    all_rows = torch.zeros_like(q)
    all_rows[keep] = out
    return all_rows.view(batch, tokens, heads, dim).to(query.device)


def attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, sliding_window=None, softcap=None, s_aux=None,
              position_ids=None, **others):
    """AttentionInterface: o [batch][tokens][heads][dim] of q, k, v [batch][heads][tokens][dim], whose k and v are appended."""
    handed, _here.handed = _here.handed, None
    known = _engines.get(module)
    if known is None:
        raise _unsupported(f'{type(module).__name__}: attnd.transformers.use(model) opens its engine')
    engine, layer, of = known
    if dropout:
        raise _unsupported(f'{type(module).__name__}: dropout')
    if query.requires_grad and torch.is_grad_enabled():
        raise _unsupported('gradients: attnd computes attention for inference (torch.no_grad())')
    asked = scaling, sliding_window, softcap, s_aux is None
    if asked != of.granted or not _OPTIONS.isdisjoint(others):
        _check(of, layer, module, scaling, sliding_window, softcap, s_aux, others)
        of.granted = asked
    if handed and handed[1] == layer:
        cache, _, handed_key = handed
        if handed_key is not key:
            raise _unsupported(f'{type(module).__name__}: K that is changed behind the cache')
        if cache.engine is not engine:
            raise ValueError('the cache is of another engine than the model')
        tokens = key.shape[2]
        first = cache.layers[layer].seen - tokens
        if layer == 0:
            cache._note_padding(attention_mask, first, tokens)
        if tokens == 1 and query.is_cuda and (attention_mask is None or _padding(attention_mask, len(cache.ids), 1, first)[0] is None):
            step = cache.step(query, key, value)
            if step is not None:
                return step(layer, query, key, value), None
        return _compute(engine, layer, cache.ids, query, key, value, attention_mask, first), None
    return _once(engine, layer, query, key, value, attention_mask, position_ids), None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, _mask)


# ---- a model


def use(model, *, tokens=32768, block_size=16, config=None, engine=None):
    """Have a model's attention computed by attnd from now on. Returns the engine.

    tokens: that the pool has room for, of all sequences together. config: more keys of the engine's configuration. engine: one that is
    there, or a Client, with geometry(model) as its geometry. generate() gets a Cache of its own unless one is given; its sequences are deleted with it."""
    modules, text_config = _attention_modules(model)
    if engine is None:
        longest = getattr(text_config, 'max_position_embeddings', None) or tokens
        defaults = {
            'geometry': {**geometry(model), 'block_size': block_size},
            'pool': {'blocks': -(-tokens // block_size)},
            'limits': {'sequence_tokens': max(min(longest, tokens), block_size)},
        }
        for section, values in (config or {}).items():
            defaults[section] = {**defaults.get(section, {}), **values} if isinstance(values, dict) else values
        engine = Engine(defaults)
    _check_geometry(engine, geometry(model))
    for layer, module in enumerate(modules):
        _engines[module] = engine, layer, _Layer(module, text_config)
    model.set_attn_implementation(NAME)
    model.generate = types.MethodType(generate, model)
    return engine


def _check_geometry(engine, wants):
    """Whether an engine computes what a model wants."""
    has = engine.geometry
    if has is None:
        raise _unsupported('an engine whose geometry is not known: open it with a dictionary that has geometry(model)')
    for name in ('layers', 'query_heads', 'kv_heads', 'head_dim', 'dtype'):
        of = getattr(engine.description, name)
        if of != wants[name]:
            raise _unsupported(f'{name} is {wants[name]} in the model, and {of} in the engine')
    scale = has.get('scale') or wants['head_dim'] ** -0.5
    windows = has.get('window') or 0
    windows = windows if isinstance(windows, list) else [windows]
    windows = [windows[i % len(windows)] for i in range(wants['layers'])]
    if abs(scale - wants['scale']) > 1e-6 * scale:
        raise _unsupported(f'scale is {wants["scale"]} in the model, and {scale} in the engine')
    if abs((has.get('softcap') or 0) - wants['softcap']) > 1e-6:
        raise _unsupported(f'softcap is {wants["softcap"]} in the model, and {has.get("softcap") or 0} in the engine')
    if windows != wants['window']:
        raise _unsupported(f'windows are {wants["window"]} in the model, and {windows} in the engine')
    if bool(has.get('sinks')) != ('sinks' in wants) or bool(has.get('alibi')):
        raise _unsupported('sinks or slopes of the engine are others than the model\'s')


def _asks(model, kwargs, name):
    """What a call of generate() asks for: as an argument, or by a configuration."""
    if kwargs.get(name) is not None:
        return kwargs[name]
    of_call = getattr(kwargs.get('generation_config'), name, None)
    return of_call if of_call is not None else getattr(model.generation_config, name, None)


def generate(self, *args, **kwargs):
    """A model's generate() with a Cache of its own, where it has none."""
    of_class = type(self).generate
    known = next((_engines[m] for m in self.modules() if m in _engines), None)
    has_cache = kwargs.get('past_key_values') is not None or kwargs.get('cache') is not None
    if (known is None or has_cache or self.config._attn_implementation != NAME or _asks(self, kwargs, 'use_cache') is False
            or _asks(self, kwargs, 'cache_implementation')):
        return of_class(self, *args, **kwargs)
    cache = Cache(known[0])
    try:
        return of_class(self, *args, **{_CACHE_NAME: cache}, **kwargs)
    finally:
        if not _asks(self, kwargs, 'return_dict_in_generate'):
            cache.close()
