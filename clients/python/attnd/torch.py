# SPDX-License-Identifier: Apache-2.0
"""PyTorch operators over caches of one's own: attnd's native decode, bit-stable; and what vLLM's operators of these names do, with its
argument lists.

    import attnd.torch

    torch.ops.attnd.append(key, value, kv_cache, slot_mapping)
    torch.ops.attnd.decode(out, query, kv_cache, block_tables, seq_lens, max_seq_len, scale)   # query_start_loc=: several rows a sequence

    kv_cache     [blocks][2: K, V][kv_heads][block_size][head_dim], contiguous

    attnd.torch.warmup(query_heads, kv_heads, head_dim, block_size, dtype, layout='native')
    plan = attnd.torch.plan(block_tables, seq_lens, max_seq_len)
    torch.ops.attnd.decode(out, query, kv_cache, block_tables, seq_lens, max_seq_len, scale, plan)   # a layer after the other

    torch.ops.attnd.reshape_and_cache(key, value, key_cache, value_cache, slot_mapping, 'auto', k_scale, v_scale)
    torch.ops.attnd.paged_attention_v1(out, query, key_cache, value_cache, num_kv_heads, scale, block_tables, seq_lens, block_size,
                                       max_seq_len, None, 'auto', k_scale, v_scale)

    key_cache    [blocks][kv_heads][head_dim / x][block_size][x], x elements being 16 bytes
    value_cache  [blocks][kv_heads][head_dim][block_size]

All run on PyTorch's current stream, wait for nothing, and may be captured in a CUDA graph: lengths, tables and slots may change in place
between replays, lengths up to max_seq_len. A kernel is compiled as a shape is met first, in a second or two, then kept on disk; warmup()
does that ahead, which a capture wants. No compiler of one's own is needed.

Shapes, types and devices are looked at; what tables, lengths and slots hold is on the GPU, and is not.
"""
import ctypes
import threading
from typing import NamedTuple

import torch

from . import _library
from .engine import _check, _invalid
from .tensors import TORCH_TYPES, current_stream

_DTYPES = {d: TORCH_TYPES[str(d)] for d in (torch.float32, torch.float16, torch.bfloat16)}
_CACHE_DTYPES = {'fp8': (10, 8), 'fp8_e4m3': (10, 8), 'fp8_e5m2': (12, 8)}
_NOT_SPARSE = (0, 0, 64, 0, 0)  # local blocks, vertical stride, block size, tp rank, step from head to head
_PARTITION = 512  # of paged_attention_v2
_SIZES_KNOWN = 256  # of calls without a plan, whose launches are kept
_LAUNCHES_WORDS = _library.LAUNCHES_BYTES // 8

_lock = threading.Lock()
_kernels = {}  # by shape: a handle
_of_caches = {}  # by what store_tokens depends on: a handle
_own = {}  # those of the native layout: an _Own
_own_of_caches = {}
_for_append = set()  # shapes of those that append alone has asked for


class _Local(threading.local):
    """Structs of a thread, which are filled in anew for each call."""

    def __init__(self):
        self.paged, self.decode, self.cache = _library.PagedCall(), _library.PagedCall(), _library.CacheCall()
        self.known = None  # of paged_attention's latest call: the form of its arguments, and what came of looking at them


_local = _Local()


def _cache_type(kv_cache_dtype, dtype):
    if kv_cache_dtype == 'auto':
        return _DTYPES[dtype]
    if kv_cache_dtype not in _CACHE_DTYPES:
        raise _invalid(f'kv_cache_dtype: wants auto, {", ".join(_CACHE_DTYPES)}, is {kv_cache_dtype}')
    return _CACHE_DTYPES[kv_cache_dtype]


def _open(gpu, query_heads, kv_heads, head_dim, block_size, dtype, kv_type, sparse=_NOT_SPARSE, layout=_library.VLLM, softcap=0.0):
    shape = _library.Shape(
        query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim, block_size=block_size,
        dtype_code=dtype[0], dtype_bits=dtype[1], kv_dtype_code=kv_type[0], kv_dtype_bits=kv_type[1],
        local_blocks=sparse[0], vert_stride=sparse[1], sparse_block_size=sparse[2], tp_rank=sparse[3], head_sliding_step=sparse[4], gpu=gpu,
        layout=layout, softcap=softcap,
    )
    if torch.cuda.is_current_stream_capturing():
        native = " with layout='native'" if layout == _library.OWN else ''
        raise _invalid(f'kernels for {query_heads} query heads, {kv_heads} KV heads of {head_dim}, blocks of {block_size} would have to be '
                       f'compiled while a stream is being captured: call attnd.torch.warmup(){native} ahead of it')
    handle = ctypes.c_void_p()
    _check(_library.functions().kernels_open(ctypes.byref(shape), ctypes.byref(handle)))
    return handle


def _kernels_of(*shape):
    known = _kernels.get(shape)
    if known is None:
        with _lock:
            known = _kernels.get(shape)
            if known is None:
                known = _kernels[shape] = _open(*shape)
                gpu, _, kv_heads, head_dim, block_size, dtype, kv_type, _ = shape
                _of_caches.setdefault((gpu, kv_heads, head_dim, block_size, dtype, kv_type), known)
    return known


def _kernels_of_caches(gpu, kv_heads, head_dim, block_size, dtype, kv_type):
    known = _of_caches.get((gpu, kv_heads, head_dim, block_size, dtype, kv_type))
    return known or _kernels_of(gpu, kv_heads, kv_heads, head_dim, block_size, dtype, kv_type, _NOT_SPARSE)


class _Own:
    """Kernels of the native layout, and what goes with them."""

    def __init__(self, gpu, query_heads, kv_heads, head_dim, block_size, dtype, kv_type, softcap):
        self.handle = _open(gpu, query_heads, kv_heads, head_dim, block_size, dtype, kv_type, layout=_library.OWN, softcap=softcap)
        self.ones = torch.ones(kv_heads, dtype=torch.float32, device=torch.device('cuda', gpu))
        torch.cuda.current_stream(gpu).synchronize()  # whichever stream reads them
        self.ones_at = self.ones.data_ptr()
        self._sizes = {}

    def plan(self, launches, sequences, max_seq_len, window, rows, **tables):
        of = _library.Plan(sequences=sequences, max_seq_len=max_seq_len, window=window, launches=launches, rows=rows, **tables)
        _check(_library.functions().kernels_plan(self.handle, ctypes.byref(of)))
        return of.lists_bytes, of.workspace_bytes

    def sizes(self, *of):
        """Launches without a plan, and the bytes of lists and workspace: they depend on the numbers alone."""
        known = self._sizes.get(of)
        if known is None:
            if len(self._sizes) >= _SIZES_KNOWN:
                self._sizes.clear()
            launches = ctypes.create_string_buffer(_library.LAUNCHES_BYTES)
            known = self._sizes[of] = (launches, ctypes.addressof(launches), *self.plan(ctypes.addressof(launches), *of))
        return known


def _own_kernels_of(*shape):
    known = _own.get(shape)
    if known is None:
        with _lock:
            known = _own.get(shape)
            if known is None:
                known = _own[shape] = _Own(*shape)
                gpu, _, kv_heads, head_dim, block_size, dtype, kv_type, _ = shape
                _own_of_caches.setdefault((gpu, kv_heads, head_dim, block_size, dtype, kv_type), known)
    return known


def _own_kernels_of_caches(gpu, kv_heads, head_dim, block_size, dtype, kv_type):
    known = _own_of_caches.get((gpu, kv_heads, head_dim, block_size, dtype, kv_type))
    if known is None:
        shape = gpu, kv_heads, kv_heads, head_dim, block_size, dtype, kv_type, 0.0
        if shape not in _own:
            _for_append.add(shape)
        known = _own_kernels_of(*shape)
    return known


def _only_shape(gpu):
    """That of the kernels which decode or warmup() have asked for."""
    shapes = [shape for shape in list(_own) if shape[0] == gpu and shape not in _for_append]
    if len(shapes) != 1:
        raise _invalid(f'plan: wants query_heads, kv_heads, head_dim, block_size and dtype, since kernels of {len(shapes)} shapes are there')
    return shapes[0]


def _gpu_of(device):
    gpu = torch.device('cuda' if device is None else device).index
    return torch.cuda.current_device() if gpu is None else gpu


def warmup(query_heads, kv_heads, head_dim, block_size, dtype, kv_cache_dtype='auto', *, layout='vllm', softcap=0.0, device=None,
           local_blocks=0, vert_stride=0, sparse_block_size=64, tp_rank=0, head_sliding_step=0):
    """Compile the kernels of a shape, or find them on disk: layout='native' for append and decode, which alone has softcap."""
    if layout not in ('vllm', 'native'):
        raise _invalid(f'layout: wants vllm or native, is {layout}')
    shape = (_gpu_of(device), query_heads, kv_heads, head_dim, block_size, _DTYPES[dtype], _cache_type(kv_cache_dtype, dtype))
    if layout == 'native':
        _for_append.discard((*shape, float(softcap)))
        _own_kernels_of(*shape, float(softcap))
        return
    sparse = (local_blocks, vert_stride, sparse_block_size, tp_rank, head_sliding_step) if vert_stride > 1 else _NOT_SPARSE
    _kernels_of(*shape, sparse)


# ---- what is looked at


def _wants(name, tensor, device, dtype, shape):
    if tensor.device != device:
        raise _invalid(f'{name}: wants {device}, is on {tensor.device}')
    if dtype is not None and tensor.dtype != dtype:
        raise _invalid(f'{name}: wants {dtype}, is {tensor.dtype}')
    if len(tensor.shape) != len(shape) or any(w is not None and w != n for w, n in zip(shape, tensor.shape)):
        raise _invalid(f'{name}: wants the shape {list(shape)}, has {list(tensor.shape)}')


def _rows(name, tensor):
    """Elements from one row of heads to the next, within which all lies together."""
    if tensor.stride(2) != 1 or tensor.stride(1) != tensor.shape[2]:
        raise _invalid(f'{name}: heads and their elements do not lie together')
    return tensor.stride(0)


def _caches(key_cache, value_cache, device, kv_type, kv_heads, head_dim, block_size):
    """Bytes from one block of the caches to the next."""
    size = kv_type[1] // 8
    x = 16 // size
    if key_cache.element_size() != size or value_cache.element_size() != size:
        raise _invalid(f'key_cache: wants elements of {size} bytes, has {key_cache.dtype}; value_cache has {value_cache.dtype}')
    _wants('key_cache', key_cache, device, None, (None, kv_heads, head_dim // x, block_size, x))
    _wants('value_cache', value_cache, device, None, (key_cache.shape[0], kv_heads, head_dim, block_size))
    block = kv_heads * head_dim * block_size
    if key_cache.stride(0) < block or value_cache.stride(0) != key_cache.stride(0) or not (
            key_cache.is_contiguous() or key_cache[0].is_contiguous()) or not (value_cache.is_contiguous() or value_cache[0].is_contiguous()):
        raise _invalid('key_cache, value_cache: the elements of a block do not lie together, or blocks not equally far apart')
    return key_cache.stride(0) * size


def _scales(device, k_scale, v_scale):
    for name, of in (('k_scale', k_scale), ('v_scale', v_scale)):
        if of.device != device or of.dtype != torch.float32 or of.numel() != 1:
            raise _invalid(f'{name}: wants one float32 on {device}')


# ---- attention


def _form(tensor):
    """What of a tensor is looked at."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _look_at_attention(out, query, key_cache, value_cache, num_kv_heads, block_tables, seq_lens, block_size, max_seq_len, alibi_slopes,
                       kv_cache_dtype, k_scale, v_scale, *sparse):
    """The kernels, and the strides of query and caches that they are told."""
    device, dtype = query.device, query.dtype
    if dtype not in _DTYPES:
        raise _invalid(f'query: wants float32, float16 or bfloat16, is {dtype}')
    _wants('query', query, device, dtype, (None, None, None))
    sequences, query_heads, head_dim = query.shape
    kv_type = _cache_type(kv_cache_dtype, dtype)
    block_bytes = _caches(key_cache, value_cache, device, kv_type, num_kv_heads, head_dim, block_size)
    _wants('out', out, device, dtype, query.shape)
    _wants('block_tables', block_tables, device, torch.int32, (sequences, None))
    _wants('seq_lens', seq_lens, device, torch.int32, (sequences,))
    if not out.is_contiguous() or not seq_lens.is_contiguous() or block_tables.stride(1) != 1:
        raise _invalid('out, block_tables or seq_lens: is not contiguous')
    if max_seq_len < 0 or max_seq_len > block_tables.shape[1] * block_size:
        raise _invalid(f'max_seq_len: {max_seq_len} tokens are more than block_tables has blocks for')
    if alibi_slopes is not None:
        _wants('alibi_slopes', alibi_slopes, device, torch.float32, (query_heads,))
    _scales(device, k_scale, v_scale)
    handle = _kernels_of(device.index, query_heads, num_kv_heads, head_dim, block_size, _DTYPES[dtype], kv_type,
                         sparse if sparse[1] > 1 else _NOT_SPARSE)
    return handle, _rows('query', query), block_bytes


def _attend(v2, out, query, key_cache, value_cache, num_kv_heads, scale, block_tables, seq_lens, block_size, max_seq_len, alibi_slopes,
            kv_cache_dtype, k_scale, v_scale, tp_rank=0, local_blocks=0, vert_stride=0, sparse_block_size=64, head_sliding_step=0):
    call, known = _local.paged, _local.known
    numbers = num_kv_heads, block_size, max_seq_len, kv_cache_dtype, local_blocks, vert_stride, sparse_block_size, tp_rank, head_sliding_step
    form = (*numbers, *_form(out), *_form(query), *_form(key_cache), *_form(value_cache), *_form(block_tables), *_form(seq_lens),
            *_form(k_scale), *_form(v_scale), None if alibi_slopes is None else _form(alibi_slopes))
    if known is None or known[0] != form:  # from layer to layer it is the same
        of = _look_at_attention(out, query, key_cache, value_cache, num_kv_heads, block_tables, seq_lens, block_size, max_seq_len,
                                alibi_slopes, kv_cache_dtype, k_scale, v_scale, *numbers[4:])
        known = _local.known = form, *of
    _, handle, query_row, block_bytes = known
    sequences, query_heads, head_dim = query.shape
    workspace = None
    if v2:
        floats = sequences * query_heads * -(-max_seq_len // _PARTITION) * (head_dim + 2)
        workspace = torch.empty(floats, dtype=torch.float32, device=query.device)  # PyTorch's own pool, so that captures keep it
    call.query, call.query_row, call.out = query.data_ptr(), query_row, out.data_ptr()
    call.key_cache, call.value_cache, call.block_bytes = key_cache.data_ptr(), value_cache.data_ptr(), block_bytes
    call.block_tables, call.table_row, call.seq_lens = block_tables.data_ptr(), block_tables.stride(0), seq_lens.data_ptr()
    call.alibi_slopes = None if alibi_slopes is None else alibi_slopes.data_ptr()
    call.k_scale, call.v_scale = k_scale.data_ptr(), v_scale.data_ptr()
    call.workspace = None if workspace is None else workspace.data_ptr()
    call.sequences, call.max_seq_len, call.v2, call.scale = sequences, max_seq_len, v2, scale
    call.stream = current_stream(query)
    _check(_library.functions().kernels_paged(handle, ctypes.byref(call)))


def _paged_attention_v1(out, query, *others):
    _attend(False, out, query, *others)


def _paged_attention_v2(out, exp_sums, max_logits, tmp_out, query, *others):
    """exp_sums, max_logits and tmp_out are vLLM's; partial outputs stay float32 here, in a workspace of their own."""
    _attend(True, out, query, *others)


# ---- attention over the native layout


class Plan(NamedTuple):
    """What plan() makes for decode(): lists on the GPU, and in host memory how they are launched."""

    lists: torch.Tensor
    launches: torch.Tensor  # int64: the library's, then _Numbers


def plan(block_tables, seq_lens, max_seq_len, query_heads=None, kv_heads=None, head_dim=None, block_size=None, dtype=None,
         kv_cache_dtype='auto', *, softcap=0.0, window=0, query_start_loc=None, rows=None, on_device=False, device=None):
    """How decode() is cut into work tiles over these tables: for as many layers as have them, until a table or a length changes. The shape
    may be left out where decode() and warmup() have been given one alone. What sequences share is found from the tables and read once.

    Reads tables and lengths on the host, which waits for the GPU if they are there. on_device=True: the GPU finds work tiles as it gets
    there, for lengths up to max_seq_len; nothing is waited for, and when this is captured, replays find those of the lengths that are there
    by then. The bits of decode() are the same.

    query_start_loc is decode()'s; it is read as lengths are, so that with on_device=True the rows of query have to be said."""
    gpu = _gpu_of(block_tables.device if device is None and block_tables.is_cuda else device)
    cuda = torch.device('cuda', gpu)
    _wants('block_tables', block_tables, block_tables.device, torch.int32, (None, None))
    sequences = block_tables.shape[0]
    _wants('seq_lens', seq_lens, block_tables.device, torch.int32, (sequences,))
    if query_heads is None:
        shape = _only_shape(gpu)
    else:
        shape = gpu, query_heads, kv_heads, head_dim, block_size, _DTYPES[dtype], _cache_type(kv_cache_dtype, dtype), float(softcap)
    kernels, block_size = _own_kernels_of(*shape), shape[4]
    if query_start_loc is not None:
        _wants('query_start_loc', query_start_loc, block_tables.device, torch.int32, (sequences + 1,))
    elif rows not in (None, sequences):
        raise _invalid(f'rows: {rows} of {sequences} sequences want query_start_loc')
    if rows is not None and rows < 1:
        raise _invalid(f'rows: wants 1 at least, has {rows}')
    launches = torch.zeros(_LAUNCHES_WORDS + len(_Numbers._fields_), dtype=torch.int64)
    if on_device:
        if query_start_loc is not None and rows is None:
            raise _invalid('rows: is missing: with on_device=True query_start_loc is not read on the host')
        rows = 0 if query_start_loc is None else rows
        lists_bytes, workspace_bytes = kernels.plan(launches.data_ptr(), sequences, max_seq_len, window, rows)
        lists = torch.empty(lists_bytes, dtype=torch.uint8, device=cuda)
        call = _library.PagedCall(launches=launches.data_ptr(), lists=lists.data_ptr(), find=1, stream=current_stream(lists))
        _put_tables(call, cuda, block_tables, seq_lens, sequences, max_seq_len, block_size)
        _put_starts(call, cuda, query_start_loc, sequences, rows)
        _check(_library.functions().kernels_paged(kernels.handle, ctypes.byref(call)))
    else:
        if torch.cuda.is_current_stream_capturing():
            raise _invalid('plan: reads lengths and tables, which a stream that is being captured does not have yet: make it ahead, or '
                           'with on_device=True')
        tables, lengths = block_tables.cpu().contiguous(), seq_lens.cpu().contiguous()
        of = {'block_tables': tables.data_ptr(), 'seq_lens': lengths.data_ptr(), 'table_row': tables.shape[1]}
        starts = None if query_start_loc is None else query_start_loc.cpu().contiguous()
        if starts is not None:
            of['query_start_loc'], rows = starts.data_ptr(), rows or max(int(starts[-1]), 0)
        rows = rows if starts is not None else 0
        lists_bytes, workspace_bytes = kernels.plan(launches.data_ptr(), sequences, max_seq_len, window, rows, **of)
        lists = torch.empty(lists_bytes, dtype=torch.uint8)
        kernels.plan(launches.data_ptr(), sequences, max_seq_len, window, rows, lists=lists.data_ptr(), lists_bytes=lists_bytes, **of)
        lists = lists.to(cuda)
    launches[_LAUNCHES_WORDS:] = torch.tensor([workspace_bytes, sequences, max_seq_len, window, rows])
    return Plan(lists, launches)


def _put_tables(call, device, block_tables, seq_lens, sequences, max_seq_len, block_size):
    """Tables and lengths as a call has them."""
    if block_tables.dtype != torch.int32 or block_tables.dim() != 2 or block_tables.shape[0] != sequences or block_tables.device != device:
        _wants('block_tables', block_tables, device, torch.int32, (sequences, None))
    if seq_lens.dtype != torch.int32 or seq_lens.shape != (sequences,) or seq_lens.device != device:
        _wants('seq_lens', seq_lens, device, torch.int32, (sequences,))
    row, step = block_tables.stride()
    if step != 1 or not seq_lens.is_contiguous():
        raise _invalid('block_tables or seq_lens: is not contiguous')
    if not 0 <= max_seq_len <= block_tables.shape[1] * block_size:
        raise _invalid(f'max_seq_len: {max_seq_len} tokens are more than block_tables has blocks for')
    call.sequences, call.block_tables, call.table_row, call.seq_lens = sequences, block_tables.data_ptr(), row, seq_lens.data_ptr()


def _put_starts(call, device, query_start_loc, sequences, rows):
    """Whose rows of query are, where they are not one a sequence."""
    if query_start_loc is None:
        call.query_start_loc, call.rows = None, 0
        return
    if query_start_loc.dtype != torch.int32 or query_start_loc.shape != (sequences + 1,) or query_start_loc.device != device:
        _wants('query_start_loc', query_start_loc, device, torch.int32, (sequences + 1,))
    if not query_start_loc.is_contiguous():
        raise _invalid('query_start_loc: is not contiguous')
    call.query_start_loc, call.rows = query_start_loc.data_ptr(), rows


def _own_cache(kv_cache, device, dtype, kv_cache_dtype, kv_heads, head_dim):
    """Its type and block size."""
    kv_type = _cache_type(kv_cache_dtype, dtype)
    if kv_cache_dtype == 'auto' and kv_cache.dtype != dtype:
        raise _invalid(f'kv_cache: wants {dtype}, as the query, or a kv_cache_dtype; is {kv_cache.dtype}')
    if kv_cache_dtype != 'auto' and kv_cache.element_size() != kv_type[1] // 8:
        raise _invalid(f'kv_cache: wants elements of {kv_type[1] // 8} bytes, has {kv_cache.dtype}')
    shape = kv_cache.shape
    if kv_cache.device != device or len(shape) != 5 or shape[1] != 2 or shape[2] != kv_heads or shape[4] != head_dim:
        _wants('kv_cache', kv_cache, device, None, (None, 2, kv_heads, None, head_dim))
    if not kv_cache.is_contiguous():
        raise _invalid('kv_cache: is not contiguous')
    return kv_type, shape[3]


def _of_heads(name, tensor, device, heads):
    """The address of a number a head."""
    _wants(name, tensor, device, torch.float32, (heads,))
    if not tensor.is_contiguous():
        raise _invalid(f'{name}: is not contiguous')
    return tensor.data_ptr()


class _Numbers(ctypes.Structure):
    """What Plan.launches has behind the library's own."""

    _fields_ = [(n, ctypes.c_int64) for n in ('workspace_bytes', 'sequences', 'longest', 'window', 'rows')]  # rows 0: one a sequence


def _planned(plan, device, sequences, window, tokens, rows):
    """The numbers of a plan that goes with a call."""
    lists, launches = plan
    if lists.device != device or launches.is_cuda or launches.shape != (_LAUNCHES_WORDS + len(_Numbers._fields_),) or launches.dtype != torch.int64:
        raise _invalid(f'plan: wants what attnd.torch.plan() makes, on {device}')
    of = _Numbers.from_address(launches.data_ptr() + _library.LAUNCHES_BYTES)
    if of.sequences != sequences or of.window != window or of.longest > tokens:
        raise _invalid(f'plan: is for {of.sequences} sequences of up to {of.longest} tokens, window {of.window}; the call has {sequences}, '
                       f'tables of {tokens} tokens, window {window}')
    if of.rows != rows:
        raise _invalid(f'plan: is for {_rows_said(of.rows)}, and the call has {_rows_said(rows)}')
    return of


def _rows_said(rows):
    return f'{rows} rows by query_start_loc' if rows else 'a row a sequence (query_start_loc is None)'


def _decode(out, query, kv_cache, block_tables, seq_lens, max_seq_len, scale, plan=None, lse=None, softcap=0.0, window=0, sinks=None,
            alibi_slopes=None, kv_cache_dtype='auto', k_scale=None, v_scale=None, query_start_loc=None):
    device, dtype, shape = query.device, query.dtype, query.shape
    if dtype not in _DTYPES:
        raise _invalid(f'query: wants float32, float16 or bfloat16, is {dtype}')
    if len(shape) != 3:
        _wants('query', query, device, dtype, (None, None, None))
    rows, query_heads, head_dim = shape
    sequences = rows if query_start_loc is None else query_start_loc.numel() - 1
    kv_heads = kv_cache.shape[2] if kv_cache.dim() == 5 else None
    kv_type, block_size = _own_cache(kv_cache, device, dtype, kv_cache_dtype, kv_heads, head_dim)
    if out.shape != shape or out.dtype != dtype or out.device != device:
        _wants('out', out, device, dtype, shape)
    if lse is not None:
        _wants('lse', lse, device, torch.float32, (rows, query_heads))
    if not out.is_contiguous() or lse is not None and not lse.is_contiguous():
        raise _invalid('out or lse: is not contiguous')
    if query_start_loc is None and seq_lens.shape != (rows,) and seq_lens.shape == block_tables.shape[:1]:
        raise _invalid(f'query: has {rows} rows, and there are {seq_lens.numel()} sequences: query_start_loc says whose they are')
    if query_start_loc is not None and sequences < 1:
        raise _invalid('query_start_loc: wants a number more than there are sequences, of which there is one at least')
    call = _local.decode
    _put_tables(call, device, block_tables, seq_lens, sequences, max_seq_len, block_size)
    _put_starts(call, device, query_start_loc, sequences, rows)
    if rows == 0:
        return
    of_kernels = device.index, query_heads, kv_heads, head_dim, block_size, _DTYPES[dtype], kv_type, softcap
    kernels = _own_kernels_of(*of_kernels)
    _for_append.discard(of_kernels)
    call.find, call.attend = plan is None, 1
    if plan is None:
        _, call.launches, lists_bytes, workspace_bytes = kernels.sizes(sequences, max(max_seq_len, 1), window, call.rows)
        memory = torch.empty(lists_bytes + workspace_bytes, dtype=torch.uint8, device=device)  # PyTorch's own pool, so that captures keep it
        call.lists = at = memory.data_ptr()
        call.workspace = at + lists_bytes
    else:
        of = _planned(plan, device, sequences, window, block_tables.shape[1] * block_size, call.rows)
        memory = torch.empty(of.workspace_bytes, dtype=torch.uint8, device=device)
        call.launches, call.lists, call.workspace = plan[1].data_ptr(), plan[0].data_ptr(), memory.data_ptr()
    if not query.is_contiguous():
        query = query.contiguous()
    call.query, call.out, call.key_cache, call.blocks = query.data_ptr(), out.data_ptr(), kv_cache.data_ptr(), kv_cache.shape[0]
    call.lse = None if lse is None else lse.data_ptr()
    call.sinks = None if sinks is None else _of_heads('sinks', sinks, device, query_heads)
    call.alibi_slopes = None if alibi_slopes is None else _of_heads('alibi_slopes', alibi_slopes, device, query_heads)
    call.k_scale = kernels.ones_at if k_scale is None else _of_heads('k_scale', k_scale, device, kv_heads)
    call.v_scale = kernels.ones_at if v_scale is None else _of_heads('v_scale', v_scale, device, kv_heads)
    call.scale, call.stream = scale, current_stream(query)
    _check(_library.functions().kernels_paged(kernels.handle, ctypes.byref(call)))


def _append(key, value, kv_cache, slot_mapping, kv_cache_dtype='auto', k_scale=None, v_scale=None):
    device, dtype = key.device, key.dtype
    if dtype not in _DTYPES:
        raise _invalid(f'key: wants float32, float16 or bfloat16, is {dtype}')
    tokens, kv_heads, head_dim = _look_at_tokens(key, value, slot_mapping)
    kv_type, block_size = _own_cache(kv_cache, device, dtype, kv_cache_dtype, kv_heads, head_dim)
    kernels = _own_kernels_of_caches(device.index, kv_heads, head_dim, block_size, _DTYPES[dtype], kv_type)
    call = _store_call(key, value, slot_mapping)
    call.k_scale = kernels.ones_at if k_scale is None else _of_heads('k_scale', k_scale, device, kv_heads)
    call.v_scale = kernels.ones_at if v_scale is None else _of_heads('v_scale', v_scale, device, kv_heads)
    call.key_caches, call.value_caches = (ctypes.c_void_p * 1)(kv_cache.data_ptr()), None
    _check(_library.functions().kernels_cache(kernels.handle, ctypes.byref(call)))


# ---- caches


def _look_at_tokens(key, value, slot_mapping):
    device, dtype = key.device, key.dtype
    _wants('key', key, device, dtype, (None, None, None))
    _wants('value', value, device, dtype, key.shape)
    _wants('slot_mapping', slot_mapping, device, torch.int64, (None,))
    if slot_mapping.shape[0] > key.shape[0] or not slot_mapping.is_contiguous():
        raise _invalid(f'slot_mapping: wants a slot a token at most ({key.shape[0]}), one behind the other')
    return key.shape


def _store_call(key, value, slot_mapping):
    call = _local.cache
    call.kind, call.count, call.layers = _library.STORE, slot_mapping.shape[0], 1
    call.key, call.value, call.key_row, call.value_row = key.data_ptr(), value.data_ptr(), _rows('key', key), _rows('value', value)
    call.slots = slot_mapping.data_ptr()
    call.dtype_code, call.dtype_bits = _DTYPES[key.dtype]
    call.stream = current_stream(key)
    return call


def _reshape_and_cache(key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale):
    device, dtype = key.device, key.dtype
    if dtype not in _DTYPES:
        raise _invalid(f'key: wants float32, float16 or bfloat16, is {dtype}')
    _, kv_heads, head_dim = _look_at_tokens(key, value, slot_mapping)
    _scales(device, k_scale, v_scale)
    block_size, kv_type = key_cache.shape[3] if key_cache.dim() == 5 else 0, _cache_type(kv_cache_dtype, dtype)
    block_bytes = _caches(key_cache, value_cache, device, kv_type, kv_heads, head_dim, block_size)
    handle = _kernels_of_caches(device.index, kv_heads, head_dim, block_size, _DTYPES[dtype], kv_type)
    call = _store_call(key, value, slot_mapping)
    call.block_bytes, call.k_scale, call.v_scale = block_bytes, k_scale.data_ptr(), v_scale.data_ptr()
    call.key_caches = (ctypes.c_void_p * 1)(key_cache.data_ptr())
    call.value_caches = (ctypes.c_void_p * 1)(value_cache.data_ptr())
    _check(_library.functions().kernels_cache(handle, ctypes.byref(call)))


def _any_kernels(gpu):
    """Those of any shape: what copies whole blocks depends on none."""
    known = next((handle for shape, handle in list(_kernels.items()) if shape[0] == gpu), None)
    return known or _kernels_of(gpu, 1, 1, 64, 16, (4, 16), (4, 16), _NOT_SPARSE)


def _copy_blocks(key_caches, value_caches, block_mapping):
    if len(key_caches) != len(value_caches):
        raise _invalid('value_caches: wants as many as key_caches')
    if not key_caches or not block_mapping.numel():
        return
    device, first = key_caches[0].device, key_caches[0]
    _wants('block_mapping', block_mapping, device, torch.int64, (None, 2))
    block_bytes = first.stride(0) * first.element_size()
    for cache in (*key_caches, *value_caches):
        if cache.device != device or cache.stride(0) * cache.element_size() != block_bytes or not cache.is_contiguous():
            raise _invalid('key_caches, value_caches: want one device, blocks of one size, and to be contiguous')
    call, layers = _local.cache, len(key_caches)
    call.kind, call.count, call.layers, call.block_bytes = _library.COPY, block_mapping.shape[0], layers, block_bytes
    call.pairs = block_mapping.contiguous().data_ptr()
    call.key_caches = (ctypes.c_void_p * layers)(*[c.data_ptr() for c in key_caches])
    call.value_caches = (ctypes.c_void_p * layers)(*[c.data_ptr() for c in value_caches])
    call.stream = current_stream(first)
    _check(_library.functions().kernels_cache(_any_kernels(device.index), ctypes.byref(call)))


def _swap_blocks(src, dst, block_mapping):
    device = src.device if src.is_cuda else dst.device
    if block_mapping.device.type != 'cpu' or block_mapping.dtype != torch.int64 or block_mapping.shape[1:] != (2,):
        raise _invalid('block_mapping: wants int64 [pairs][2] in host memory')
    if src.shape[1:] != dst.shape[1:] or src.dtype != dst.dtype or not (src.is_contiguous() and dst.is_contiguous()):
        raise _invalid('dst: wants blocks like those of src, both contiguous')
    pairs = block_mapping.contiguous()
    if pairs.numel() and (int(pairs.min()) < 0 or int(pairs[:, 0].max()) >= src.shape[0] or int(pairs[:, 1].max()) >= dst.shape[0]):
        raise _invalid('block_mapping: names a block that src or dst has not')
    call = _local.cache
    call.kind, call.count, call.layers = _library.SWAP, pairs.shape[0], 2
    call.block_bytes = src.stride(0) * src.element_size()
    call.pairs = pairs.data_ptr()
    call.key_caches = (ctypes.c_void_p * 2)(dst.data_ptr(), src.data_ptr())
    call.stream = current_stream(src if src.is_cuda else dst)
    _check(_library.functions().kernels_cache(_any_kernels(device.index), ctypes.byref(call)))


# ---- registration

_ATTENTION = ('Tensor query, Tensor key_cache, Tensor value_cache, int num_kv_heads, float scale, Tensor block_tables, Tensor seq_lens, '
              'int block_size, int max_seq_len, Tensor? alibi_slopes, str kv_cache_dtype, Tensor k_scale, Tensor v_scale, int tp_rank=0, '
              'int blocksparse_local_blocks=0, int blocksparse_vert_stride=0, int blocksparse_block_size=64, '
              'int blocksparse_head_sliding_step=0) -> ()')
_OPERATORS = {
    f'paged_attention_v1(Tensor(a!) out, {_ATTENTION}': _paged_attention_v1,
    f'paged_attention_v2(Tensor(a!) out, Tensor(b!) exp_sums, Tensor(c!) max_logits, Tensor(d!) tmp_out, {_ATTENTION}': _paged_attention_v2,
    'reshape_and_cache(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor slot_mapping, str kv_cache_dtype, '
    'Tensor k_scale, Tensor v_scale) -> ()': _reshape_and_cache,
    'decode(Tensor(a!) out, Tensor query, Tensor kv_cache, Tensor block_tables, Tensor seq_lens, int max_seq_len, float scale, '
    'Tensor[]? plan=None, Tensor(b!)? lse=None, float softcap=0.0, int window=0, Tensor? sinks=None, Tensor? alibi_slopes=None, '
    'str kv_cache_dtype="auto", Tensor? k_scale=None, Tensor? v_scale=None, Tensor? query_start_loc=None) -> ()': _decode,
    'append(Tensor key, Tensor value, Tensor(a!) kv_cache, Tensor slot_mapping, str kv_cache_dtype="auto", Tensor? k_scale=None, '
    'Tensor? v_scale=None) -> ()': _append,
    'copy_blocks(Tensor(a!)[] key_caches, Tensor(b!)[] value_caches, Tensor block_mapping) -> ()': _copy_blocks,
    'swap_blocks(Tensor src, Tensor(a!) dst, Tensor block_mapping) -> ()': _swap_blocks,
}
_definitions = torch.library.Library('attnd', 'FRAGMENT')
for _schema, _function in _OPERATORS.items():
    _name = _schema.partition('(')[0]
    _definitions.define(_schema)
    _definitions.impl(_name, _function, 'CUDA')
    torch.library.register_fake(f'attnd::{_name}', lambda *arguments: None, lib=_definitions)
