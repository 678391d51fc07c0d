"""The core library through its C interface, without TensorFlow: what runs on hosts starts at once.

SMDDP_LIBRARY_DIR names another folder of the libraries, as for the package.
"""

import ctypes
import os
import pathlib

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
ALLREDUCE, BROADCAST, ALLGATHER, BARRIER, ALLTOALL, REDUCESCATTER = range(6)
AVERAGE, SUM, _, MIN, MAX, PRODUCT = range(6)
BFLOAT16 = 14
DTYPES = {"float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int8": 6, "int64": 9, "float16": 19}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("input", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("ndim", ctypes.c_int32),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    ]


class _Request(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("kind", "dtype", "op", "root", "process_set")),
        ("matching", ctypes.c_int32),
        ("prescale", ctypes.c_double),
        ("postscale", ctypes.c_double),
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("num_tensors", ctypes.c_int32),
        ("tensors", ctypes.POINTER(_Tensor)),
        ("part_bytes", ctypes.POINTER(ctypes.c_int64)),
        ("memory", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
        ("timeout_seconds", ctypes.c_double),
        ("outputs", ctypes.POINTER(ctypes.c_void_p)),
        ("inputs", ctypes.POINTER(ctypes.c_void_p)),
    ]


class CoreError(RuntimeError):
    """A call failed; the message is the library's."""


class Core:
    """The library of this process, initialized."""

    def __init__(self):
        folder = pathlib.Path(os.environ.get("SMDDP_LIBRARY_DIR") or ROOT / "smddp_tf" / "lib")
        self._library = ctypes.CDLL(str(folder / "libsmddp.so"))
        self._library.smddp_last_error.restype = ctypes.c_char_p
        self._library.smddp_own_rows.restype = ctypes.c_int64
        self._library.smddp_own_rows.argtypes = [ctypes.c_int, ctypes.c_int64]
        self._check(self._library.smddp_init())
        self.rank, self.size = self._library.smddp_rank(), self._library.smddp_size()
        self.local_rank = self._library.smddp_local_rank()
        self.node, self.nodes = self._library.smddp_cross_rank(), self._library.smddp_cross_size()

    def _check(self, code) -> None:
        if code != 0:
            raise CoreError(self._library.smddp_last_error().decode())

    def run(self, kind, tensor, out=None, *, op=SUM, dtype=None, root=0, parts=None, name="x"):
        """One collective of one tensor; `parts` as the C interface's part_bytes."""
        dims = (ctypes.c_int64 * tensor.ndim)(*tensor.shape)
        out = tensor if out is None else out
        one = _Tensor(tensor.ctypes.data, out.ctypes.data, tensor.ndim, dims)
        request = _Request(kind=kind, dtype=dtype or DTYPES[tensor.dtype.name], op=op, root=root)
        request.prescale = request.postscale = 1.0
        request.name = name.encode()
        request.num_tensors, request.tensors = 1, ctypes.pointer(one)
        if parts is not None:
            request.part_bytes = (ctypes.c_int64 * len(parts))(*parts)
        self._check(self._library.smddp_run(ctypes.byref(request)))
        return out

    def allreduce(self, tensor, out=None, **options):
        return self.run(ALLREDUCE, tensor, out, **options)

    def allgather(self, tensor):
        """Parts of equal size, of all ranks."""
        out = np.empty((self.size, *tensor.shape), tensor.dtype)
        return self.run(ALLGATHER, tensor, out, parts=[tensor.nbytes] * self.size)

    def alltoall(self, tensor):
        """tensor[r] goes to rank r."""
        out = np.empty_like(tensor)
        each = tensor.nbytes // self.size
        return self.run(ALLTOALL, tensor, out, parts=[each] * self.size**2)

    def reducescatter(self, tensor, **options):
        rows = self._library.smddp_own_rows(0, tensor.shape[0])
        out = np.empty((rows, *tensor.shape[1:]), tensor.dtype)
        return self.run(REDUCESCATTER, tensor, out, **options)

    def join(self) -> None:
        self._check(self._library.smddp_join(ctypes.byref(ctypes.c_int())))

    def barrier(self) -> None:
        self._check(self._library.smddp_barrier(b"barrier"))

    def shutdown(self, failed=False) -> None:
        self._check(self._library.smddp_shutdown(int(failed)))
