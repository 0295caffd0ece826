# SPDX-License-Identifier: Apache-2.0
"""What goes wrong, as exceptions: one class a kind, with the problem document."""


class Error(Exception):
    """A call failed, and has changed nothing (of an UnreachableError nobody knows). `problem` is a problem document (RFC 9457): at least `code` and `detail`."""

    def __init__(self, problem):
        super().__init__(problem.get('detail') or problem.get('title') or problem.get('code'))
        self.problem = problem

    @property
    def code(self):
        return self.problem.get('code')

    @property
    def detail(self):
        return self.problem.get('detail')


class InvalidError(Error, ValueError):
    """An argument is wrong."""


class UnsupportedError(Error, NotImplementedError):
    """This build, or this configuration, does not have it."""


class AuthError(Error, PermissionError):
    """The daemon wants a key, or another one: with this one it is not allowed."""


class NotFoundError(Error, KeyError):
    """There is no such sequence, lease or ticket, or it is gone."""

    __str__ = Exception.__str__  # KeyError's is the repr


class ExistsError(Error):
    """There is one with that id."""


class PositionError(Error):
    """The rows do not continue what stands."""


class ConflictError(Error):
    """Other content stands there."""


class BusyError(Error):
    """Calls, or memory for tensors, are used up: retry when some are done."""


class NoBlocksError(Error, MemoryError):
    """Blocks, or slots for sequences, are used up."""


class OutOfMemoryError(Error, MemoryError):
    """The machine, or the device, has no memory for it: for the pool, say."""


class DeadlineError(Error, TimeoutError):
    """The deadline passed before it was done."""


class UnreachableError(Error, ConnectionError):
    """Nobody answers at the daemon's address, or the connection broke: of a call that was sent nobody knows whether it was done.
    Of the proxies in config/, `code` says which: `node_down` and `not_ready` were not sent, and can be repeated; `node_cut` may have been done."""


class DeviceError(Error, RuntimeError):
    """The device failed; the engine is of no use any more."""


class ForkedError(Error, RuntimeError):
    """The engine belongs to the process that has forked this one."""


class InternalError(Error, RuntimeError):
    """A defect of attnd."""


# By the codes of attnd.h, and of the daemon's problems where they differ.
_CLASSES = {
    'invalid': InvalidError,
    'malformed': InvalidError,
    'unwritten': InvalidError,
    'unsupported': UnsupportedError,
    'unauthorized': AuthError,
    'forbidden': AuthError,
    'not_found': NotFoundError,
    'gone': NotFoundError,
    'moved': NotFoundError,
    'exists': ExistsError,
    'position': PositionError,
    'position_gap': PositionError,
    'conflict': ConflictError,
    'content_conflict': ConflictError,
    'changed': ConflictError,
    'parameters_fixed': ConflictError,
    'busy': BusyError,
    'quota_exceeded': BusyError,
    'no_blocks': NoBlocksError,
    'no_sequences': NoBlocksError,
    'no_memory': OutOfMemoryError,
    'blocks_exhausted': NoBlocksError,
    'host_blocks_exhausted': NoBlocksError,
    'sequences_exhausted': NoBlocksError,
    'out_of_memory': OutOfMemoryError,
    'deadline': DeadlineError,
    'unreachable': UnreachableError,
    'node_down': UnreachableError,  # these five are of proxies (config/)
    'not_ready': UnreachableError,
    'node_cut': UnreachableError,
    'no_node': NotFoundError,
    'which_node': InvalidError,
    'device': DeviceError,
    'device_failed': DeviceError,
    'forked': ForkedError,
    'internal': InternalError,
}
_OF_PROXIES = {401: AuthError, 403: AuthError}  # whose answers have no code


def error_of(problem):
    """The exception for a problem document."""
    return (_CLASSES.get(problem.get('code')) or _OF_PROXIES.get(problem.get('status'), Error))(problem)
