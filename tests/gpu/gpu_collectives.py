"""Collectives on tensors of a GPU through the C API: no framework is needed."""

import ctypes

from smddp_tf._src.job import basics, native
from smddp_tf._src.job.enums import Kind, Memory
from smddp_tf._src.job.process_sets import check_status

# smddp_dtype by numpy's names; bfloat16 is that of ml_dtypes.
DTYPES = {
    "float32": 1,
    "float64": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 5,
    "int8": 6,
    "int64": 9,
    "bool": 10,
    "bfloat16": 14,
    "uint16": 17,
    "float16": 19,
}


class Collective:
    """A request that can be run any number of times.

    Args:
      gpu: whose stream computes the inputs.
      kind: a Kind.
      pairs: of cuda.Array, an input and an output each; they may be the same.
      name: of the tensor.
      op: a smddp_op.
      dims: of each tensor; by default the shapes of the inputs.
      part_bytes: see smddp_request.
    """

    def __init__(self, gpu, kind, pairs, name, op=1, dims=None, part_bytes=None, **fields):
        shapes = dims or [source.shape for source, _ in pairs]
        self._dims = [(ctypes.c_int64 * len(shape))(*shape) for shape in shapes]
        tensors = [
            native.Tensor(source.address, target.address, len(shape), shape_of)
            for (source, target), shape, shape_of in zip(pairs, shapes, self._dims, strict=True)
        ]
        self._tensors = (native.Tensor * len(tensors))(*tensors)
        self._parts = part_bytes and (ctypes.c_int64 * len(part_bytes))(*part_bytes)
        self._request = native.Request(
            kind=kind,
            dtype=DTYPES[pairs[0][0].dtype.name],
            op=op,
            prescale=fields.pop("prescale", 1.0),
            postscale=fields.pop("postscale", 1.0),
            name=name.encode(),
            num_tensors=len(tensors),
            tensors=self._tensors,
            part_bytes=self._parts,
            memory=Memory.CUDA,
            stream=gpu.stream,
            **fields,
        )
        self._by_reference = ctypes.byref(self._request)

    def run(self) -> None:
        """JobError or ValueError if it fails."""
        check_status(native.core().smddp_run(self._by_reference))

    def post(self, done) -> None:
        """Starts it; `done`, of DONE, is called once, on any thread."""
        native.core().smddp_post(self._by_reference, done, None)


DONE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)


def own_rows(rows: int, rank: int) -> slice:
    """The rows that a rank gets of a reducescatter."""
    each, more = divmod(rows, basics.size())
    begin = rank * each + min(rank, more)
    return slice(begin, begin + each + (rank < more))


__all__ = ["DONE", "DTYPES", "Collective", "Kind", "own_rows"]
