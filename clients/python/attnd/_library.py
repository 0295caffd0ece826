# SPDX-License-Identifier: Apache-2.0
"""The structs and functions of attnd.h, by ctypes."""
import ctypes
import os
import pathlib
import sys
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

ALL_LAYERS = 0xFFFFFFFF
PENDING, BUSY = 1, -8
HOST, CUDA, PINNED = 1, 2, 3  # DLPack's device types
NVRTC_NAMES = ('libnvrtc.so.13', 'libnvrtc.so.12', 'libnvrtc.so', '/usr/local/cuda/lib64/libnvrtc.so')


class Tensor(ctypes.Structure):
    """struct attnd_tensor, which is DLPack's DLTensor."""

    _fields_ = [
        ('data', c_void_p),
        ('device_type', c_int32),
        ('device_id', c_int32),
        ('ndim', c_int32),
        ('dtype_code', c_uint8),
        ('dtype_bits', c_uint8),
        ('dtype_lanes', c_uint16),
        ('shape', POINTER(c_int64)),
        ('strides', POINTER(c_int64)),
        ('byte_offset', c_uint64),
    ]


class Sized(ctypes.Structure):
    """A struct that begins with its size."""

    def __init__(self, **members):
        super().__init__(size=ctypes.sizeof(type(self)), **members)


def _struct(name, *fields):
    return type(name, (Sized,), {'_fields_': [('size', c_size_t), *fields]})


Options = _struct(
    'Options',
    ('configuration', c_char_p),
    ('configuration_file', c_char_p),
    ('settings', POINTER(c_char_p)),
    ('setting_count', c_size_t),
    ('thread', c_int),
)
Description = _struct(
    'Description',
    *[(n, c_uint32) for n in ('layers', 'query_heads', 'kv_heads', 'head_dim', 'block_size', 'blocks', 'sequence_tokens',
                              'rows_per_call', 'calls')],
    *[(n, c_uint8) for n in ('dtype_code', 'dtype_bits', 'kv_dtype_code', 'kv_dtype_bits')],
    ('bit_stable', c_uint32),
    ('threads', c_uint32),
    *[(n, c_char_p) for n in ('backend', 'isa', 'device', 'kernel')],
    ('gpu', c_int32),
    ('stream_rows', c_uint32),
)
Creation = _struct(
    'Creation',
    ('id', c_uint64),
    ('token_ids', POINTER(c_uint32)),
    ('token_count', c_uint32),
    ('max_tokens', c_uint32),
    ('priority', c_int32),
    ('length', c_uint32),
    ('salt', c_char_p),
)
Op = _struct(
    'Op',
    ('kind', c_uint32),
    ('length', c_uint32),
    ('id', c_uint64),
    ('ids', POINTER(c_uint64)),
    ('count', c_uint32),
    ('creation', POINTER(Creation)),
)
Sequence = _struct(
    'Sequence',
    ('parent', c_uint64),
    ('length', c_uint32),
    ('blocks', c_uint32),
    ('shared_blocks', c_uint32),
    ('lengths', POINTER(c_uint32)),
)
_FIVE = [(n, POINTER(Tensor)) for n in ('q', 'k', 'v', 'o', 'lse')]
Rows = _struct(
    'Rows',
    ('layer', c_uint32),
    ('sequence_count', c_uint32),
    ('sequences', POINTER(c_uint64)),
    ('counts', POINTER(c_uint32)),
    ('positions', POINTER(c_int64)),
    ('token_ids', POINTER(c_uint32)),
    ('token_count', c_uint32),
    ('kernel', c_uint32),
    *_FIVE,
    ('stream', c_void_p),
    ('retry', c_uint32),
)
PagedRows = _struct(
    'PagedRows',
    ('lease', c_uint64),
    ('layer', c_uint32),
    ('kernel', c_uint32),
    ('sequences', c_uint32),
    ('columns', c_uint32),
    ('block_tables', POINTER(c_int32)),
    ('context_lens', POINTER(c_int32)),
    ('indptr', POINTER(c_int32)),
    ('slot_mapping', POINTER(c_int64)),
    ('tokens', c_uint32),
    *_FIVE,
    ('stream', c_void_p),
)
States = _struct('States', *[(n, POINTER(Tensor)) for n in ('o', 'lse', 'merged_o', 'merged_lse')], ('stream', c_void_p))
Result = _struct(
    'Result',
    ('failed', c_uint32),
    ('rows_in_step', c_uint32),
    ('queue_us', c_double),
    ('step_us', c_double),
    ('bytes_read', c_uint64),
)
Stats = _struct(
    'Stats',
    *[(n, c_uint32) for n in ('blocks_free', 'blocks_cached', 'blocks_held', 'blocks_fenced', 'blocks_shared', 'sequences')],
    *[(n, c_uint64) for n in ('tokens_logical', 'tokens_physical', 'forks', 'copies_on_write', 'steps')],
    ('roof_gb_per_s', c_double),
    ('voided', c_uint64),
)
Shape = _struct(
    'Shape',
    *[(n, c_uint32) for n in ('query_heads', 'kv_heads', 'head_dim', 'block_size')],
    *[(n, c_uint8) for n in ('dtype_code', 'dtype_bits', 'kv_dtype_code', 'kv_dtype_bits')],
    *[(n, c_uint32) for n in ('local_blocks', 'vert_stride', 'sparse_block_size', 'tp_rank')],
    ('head_sliding_step', c_int32),
    ('gpu', c_uint32),
    ('cache', c_char_p),
    ('v1_max_length', c_uint32),
    ('layout', c_uint32),
    ('softcap', c_float),
)
VLLM, OWN = range(2)
LAUNCHES_BYTES = 512
Plan = _struct(
    'Plan',
    ('block_tables', c_void_p),
    ('seq_lens', c_void_p),
    ('table_row', c_uint64),
    *[(n, c_uint32) for n in ('sequences', 'max_seq_len', 'window', 'zero')],
    ('launches', c_void_p),
    ('lists', c_void_p),
    ('lists_bytes', c_uint64),
    ('workspace_bytes', c_uint64),
    ('query_start_loc', c_void_p),
    ('rows', c_uint32),
    ('zero_too', c_uint32),
)
PagedCall = _struct(
    'PagedCall',
    *[(n, c_void_p) for n in ('query', 'out', 'key_cache', 'value_cache', 'block_tables', 'seq_lens', 'alibi_slopes', 'k_scale',
                              'v_scale', 'workspace')],
    *[(n, c_uint64) for n in ('query_row', 'table_row', 'block_bytes')],
    *[(n, c_uint32) for n in ('sequences', 'max_seq_len', 'v2')],
    ('scale', c_float),
    ('stream', c_void_p),
    ('launches', c_void_p),
    ('lists', c_void_p),
    ('find', c_uint32),
    ('attend', c_uint32),
    ('blocks', c_uint64),
    ('lse', c_void_p),
    ('sinks', c_void_p),
    ('query_start_loc', c_void_p),
    ('rows', c_uint32),
    ('zero', c_uint32),
)
STORE, COPY, SWAP = range(3)
CacheCall = _struct(
    'CacheCall',
    ('kind', c_uint32),
    ('count', c_uint32),
    ('key', c_void_p),
    ('value', c_void_p),
    ('key_row', c_uint64),
    ('value_row', c_uint64),
    ('slots', c_void_p),
    ('k_scale', c_void_p),
    ('v_scale', c_void_p),
    ('dtype_code', c_uint8),
    ('dtype_bits', c_uint8),
    ('pairs', c_void_p),
    ('key_caches', POINTER(c_void_p)),
    ('value_caches', POINTER(c_void_p)),
    ('layers', c_uint32),
    ('block_bytes', c_uint64),
    ('stream', c_void_p),
)
LOG_WRITE = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)

_FUNCTIONS = {
    'error': (c_char_p,),
    'code_name': (c_char_p, c_int),
    'version': (c_char_p,),
    'backends': (c_char_p,),
    'log': (None, LOG_WRITE, c_void_p),
    'open': (c_int, POINTER(Options), POINTER(c_void_p)),
    'close': (None, c_void_p),
    'describe': (c_int, c_void_p, POINTER(Description)),
    'create': (c_int, c_void_p, POINTER(Creation)),
    'fork': (c_int, c_void_p, c_uint64, c_uint32, POINTER(c_uint64), c_uint32),
    'truncate': (c_int, c_void_p, c_uint64, c_uint32),
    'delete': (c_int, c_void_p, c_uint64),
    'batch': (c_int, c_void_p, POINTER(Op), c_uint32),
    'look': (c_int, c_void_p, c_uint64, POINTER(Sequence)),
    'blocks': (c_int, c_void_p, c_uint64, c_uint32, POINTER(c_uint32), POINTER(c_uint32)),
    'lease': (c_int, c_void_p, c_uint32, POINTER(c_uint64), POINTER(c_uint32)),
    'append': (c_int, c_void_p, POINTER(Rows), c_uint32, POINTER(c_uint64)),
    'attend': (c_int, c_void_p, POINTER(Rows), c_uint32, POINTER(c_uint64)),
    'paged': (c_int, c_void_p, POINTER(PagedRows), POINTER(c_uint64)),
    'merge': (c_int, c_void_p, POINTER(States)),
    'poll': (c_int, c_void_p, c_uint64, POINTER(Result)),
    'await': (c_int, c_void_p, c_uint64, c_double, POINTER(Result)),
    'turn': (c_int, c_void_p),
    'kernels_open': (c_int, POINTER(Shape), POINTER(c_void_p)),
    'kernels_close': (None, c_void_p),
    'kernels_plan': (c_int, c_void_p, POINTER(Plan)),
    'kernels_paged': (c_int, c_void_p, POINTER(PagedCall)),
    'kernels_cache': (c_int, c_void_p, POINTER(CacheCall)),
    'stats': (c_int, c_void_p, POINTER(Stats)),
    'audit': (c_int, c_void_p),
}


def _find():
    """The library in the wheel, or the one that ATTND_LIBRARY names."""
    named = os.environ.get('ATTND_LIBRARY')
    return named or str(pathlib.Path(__file__).with_name('libattnd.so'))


_loaded = None


def _opens(name):
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def find_nvrtc(folders):
    """The newest NVRTC among packages of PyPI's, as torch brings them: nvidia/*/lib/libnvrtc.so.N."""
    found = []
    for folder in folders:
        found += pathlib.Path(folder).glob('nvidia/*/lib/libnvrtc.so.[0-9]*')
    return max(found, key=lambda f: int(f.name.split('.')[2]) if f.name.split('.')[2].isdigit() else 0, default=None)


def _bring_nvrtc():
    """The CUDA backend opens NVRTC by name. Where there is a driver, and the system has none, open the one beside torch: then it has
    that name."""
    if not _opens('libcuda.so.1') or any(_opens(name) for name in NVRTC_NAMES):
        return
    found = find_nvrtc(sys.path)
    if found is not None:
        _opens(str(found))


class _Functions:
    def __init__(self):
        _bring_nvrtc()
        library = ctypes.CDLL(_find())
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = library['attnd_' + name]
            function.restype = result
            function.argtypes = arguments
            setattr(self, name, function)


def functions():
    """The functions of attnd.h, without their prefix. The library is loaded as the first one is wanted."""
    global _loaded
    if _loaded is None:
        _loaded = _Functions()
    return _loaded
