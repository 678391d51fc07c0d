"""The reduce operations, with Horovod's names and numbers."""

import enum


class ReduceOp(enum.IntEnum):
    """How the ranks' values are combined.

    smddp_tf.Average is ReduceOp.Average, and so on. The numbers are those of ops/capi/smddp.h.
    """

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5

    # An IntEnum prints its number from Python 3.11 on, and is formatted as one before.
    __str__ = __repr__ = lambda self: self.name
    __format__ = lambda self, spec: format(self.name, spec)  # noqa: E731


Average, Sum, Adasum, Min, Max, Product = ReduceOp
