"""NCCL alone, to compare with: an allreduce of one array, by calls that do not block."""

import ctypes
import os
import time

import cuda_driver as cuda

_IN_PROGRESS = 7  # ncclInProgress
_FLOAT32, _SUM = 7, 0
_MAGIC, _VERSION = 0xCAFEBEEF, 21800


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


class _Config(ctypes.Structure):
    """ncclConfig_t of 2.18."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int),
        ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int),
        ("net_name", ctypes.c_char_p),
        ("split_share", ctypes.c_int),
        ("traffic_class", ctypes.c_int),  # padding until 2.26
    )


class Nccl:
    """A communicator of all ranks.

    Args:
      gpu: of this rank.
      rank, size: of the job.
      gather: returns the values that all ranks give, by rank.
    """

    def __init__(self, gpu: cuda.Gpu, rank: int, size: int, gather):
        self._library = ctypes.CDLL(os.environ.get("SMDDP_NCCL_LIBRARY") or "libnccl.so.2")
        self._gpu, self._comm, unique = gpu, ctypes.c_void_p(), _UniqueId()
        if rank == 0:
            self._check(self._library.ncclGetUniqueId(ctypes.byref(unique)), "ncclGetUniqueId")
        text = gather(bytes(unique).hex())[0]
        ctypes.memmove(ctypes.byref(unique), bytes.fromhex(text), ctypes.sizeof(unique))
        default = -(2**31)
        limits, sharing = 3 * [default], 2 * [default]
        config = _Config(ctypes.sizeof(_Config), _MAGIC, _VERSION, 0, *limits, None, *sharing)
        init = self._library.ncclCommInitRankConfig
        init.argtypes = [ctypes.c_void_p, ctypes.c_int, _UniqueId, ctypes.c_int, ctypes.c_void_p]
        result = init(ctypes.byref(self._comm), size, unique, rank, ctypes.byref(config))
        self._settle(result, "ncclCommInitRankConfig")

    def allreduce(self, array: cuda.Array, count: int) -> None:
        """Enqueues a sum of floats in the GPU's stream."""
        address = ctypes.c_void_p(array.address)
        arguments = (address, address, ctypes.c_size_t(count), _FLOAT32, _SUM, self._comm)
        self._check(self._library.ncclGroupStart(), "ncclGroupStart")
        result = self._library.ncclAllReduce(*arguments, self._gpu.stream)
        self._check(0 if result == _IN_PROGRESS else result, "ncclAllReduce")
        self._settle(self._library.ncclGroupEnd(), "ncclGroupEnd")

    def close(self) -> None:
        self._settle(self._library.ncclCommFinalize(self._comm), "ncclCommFinalize")
        self._check(self._library.ncclCommDestroy(self._comm), "ncclCommDestroy")

    def _settle(self, result: int, function: str) -> None:
        deadline = time.monotonic() + 60
        state = ctypes.c_int(_IN_PROGRESS)
        if result in (0, _IN_PROGRESS):
            while state.value == _IN_PROGRESS and time.monotonic() < deadline:
                asked = self._library.ncclCommGetAsyncError(self._comm, ctypes.byref(state))
                self._check(asked, "ncclCommGetAsyncError")
            result = state.value
        self._check(result, function)

    def _check(self, result: int, function: str) -> None:
        if result != 0:
            self._library.ncclGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(f"{function}: {self._library.ncclGetErrorString(result).decode()}")
