# SPDX-License-Identifier: Apache-2.0
"""attnd: a paged KV cache and attention over it.

    import attnd, numpy

    with attnd.Engine({'geometry': {'layers': 1, 'query_heads': 4, 'kv_heads': 2, 'head_dim': 16}, 'pool': {'blocks': 64}}) as engine:
        sequence = engine.create()
        engine.append(sequence, k, v)                  # [tokens][kv_heads][head_dim]
        o = engine.attend(sequence, q)                 # [rows][query_heads][head_dim]
        child = engine.fork(sequence)                  # shares its blocks
"""
from .client import Client, Report
from .engine import Description, Engine, Lease, SequenceId, SequenceInfo, Stats, Ticket, backends, log, version
from .errors import (
    AuthError,
    BusyError,
    ConflictError,
    DeadlineError,
    DeviceError,
    Error,
    ExistsError,
    ForkedError,
    InternalError,
    InvalidError,
    NoBlocksError,
    NotFoundError,
    OutOfMemoryError,
    PositionError,
    UnreachableError,
    UnsupportedError,
)
from .regions import GpuArray, GpuRegion, IpcRegion, Region
from .tensors import bf16

__all__ = [name for name in dir() if not name.startswith('_')
           and name not in ('client', 'engine', 'errors', 'gpu', 'regions', 'registered', 'tensors')]


def __getattr__(name):
    if name == '__version__':
        return version().split()[1]  # "attnd 0.1.0 (commit)"
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
