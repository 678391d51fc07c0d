"""The reduce operations, with Horovod's names and values."""

import enum


class ReduceOp(enum.IntEnum):
    """How a reduction combines the ranks' values.

    smddp_tf.Average is ReduceOp.Average, and so on. The values are smddp_op's in ops/capi/smddp.h.

    Examples:
      >>> float(hvd.allreduce(3.0, op=hvd.Max))
      3.0
      >>> hvd.Sum is hvd.ReduceOp.Sum
      True
    """

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5

    # Print the name: str() of an IntEnum is its number since Python 3.11, format() was before too.
    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(self.name, spec)


Average, Sum, Adasum, Min, Max, Product = ReduceOp
