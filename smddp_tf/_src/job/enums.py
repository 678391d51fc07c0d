"""The enums of the C API. ops/capi/smddp.h is their source; tests/python/test_enums.py compares."""

import enum


class Code(enum.IntEnum):
    """The outcome of a call: smddp_code."""

    OK = 0
    USAGE = 1
    MISMATCH = 2
    TIMEOUT = 3
    REMOTE = 4
    SYSTEM = 5
    NOT_INITIALIZED = 6


class Kind(enum.IntEnum):
    """A kind of collective: smddp_kind."""

    ALLREDUCE = 0
    BROADCAST = 1
    ALLGATHER = 2
    BARRIER = 3
    ALLTOALL = 4
    REDUCESCATTER = 5


class Matching(enum.IntEnum):
    """How ranks match their operations: smddp_matching."""

    IN_ORDER = 0
    IN_ORDER_OR_BY_NAME = 1
    BY_NAME = 2
    SEVERAL_IN_ORDER = 3


class Memory(enum.IntEnum):
    """Where the tensors of a request are: smddp_memory."""

    HOST = 0
    CUDA = 1
