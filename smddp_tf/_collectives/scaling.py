"""Scaling before and after a reduction, where the engine does not do it while it reduces."""

import numpy as np

from smddp_tf._graph.framework import tensorflow
from smddp_tf._job.reduce_op import Average, Sum

tf = tensorflow()


def factor(value) -> float:
    """A scale in the precision that it has as an attribute of an op, in Horovod's ops too."""
    return float(np.float32(value))


def scaled(tensor, factor: float):
    """The tensor times a number; integers are multiplied as doubles and truncated, one by one."""
    if factor == 1.0:
        return tensor
    if tensor.dtype.is_integer:
        return tf.cast(tf.cast(tensor, tf.float64) * factor, tensor.dtype)
    return tensor * tf.cast(factor, tensor.dtype)


def scale_apart(reduce, tensors: list, op: int, prescale: float, postscale: float, ranks: int):
    """Reduces tensors of one dtype whose scaling the engine does not do while it reduces.

    That is so for integers, which Horovod scales and truncates on each rank before the sum and
    after it, and for a prescaled minimum, maximum or product.

    Args:
      reduce: reduce(tensors, op, prescale, postscale) returns the reduced tensors.
      tensors: of one dtype.
      op: the operation.
      prescale: multiplies the inputs.
      postscale: multiplies the results.
      ranks: how many ranks an average divides by.
    """
    if tensors[0].dtype.is_integer and (prescale, postscale) != (1.0, 1.0):
        tensors = [scaled(tensor, prescale) for tensor in tensors]
        if op == Average:
            op, postscale = Sum, postscale / ranks
        return [scaled(result, postscale) for result in reduce(tensors, op, 1.0, 1.0)]
    if op not in (Average, Sum):
        tensors, prescale = [scaled(tensor, prescale) for tensor in tensors], 1.0
    return reduce(tensors, op, prescale, postscale)
