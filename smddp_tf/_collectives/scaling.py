"""Pre- and postscaling that the engine does not fuse into the reduction."""

import math

import numpy as np

from smddp_tf._graph.framework import tensorflow
from smddp_tf._job.reduce_op import Average, Sum

tf = tensorflow()


def factor(value) -> float:
    """A scale factor, rounded to float32: the precision of the op's attribute, as in Horovod.

    Raises:
      TypeError: it is not a number that is known now.
    """
    if type(value) is float and value == 1.0:  # nearly always
        return value
    try:
        number = float(np.float32(value))
    except (TypeError, ValueError, NotImplementedError):
        number = math.nan
    if isinstance(value, str) or math.isnan(number):  # numpy makes None a NaN
        raise TypeError(f"a prescale or postscale factor is {value!r}, which is not a number")
    return number


def scaled(tensor, factor: float):
    """The tensor times a number; integers are multiplied as float64 and truncated."""
    if factor == 1.0:
        return tensor
    if tensor.dtype.is_integer:
        return tf.cast(tf.cast(tensor, tf.float64) * factor, tensor.dtype)
    return tensor * tf.cast(factor, tensor.dtype)


def scale_apart(reduce, tensors: list, op: int, prescale: float, postscale: float):
    """Reduces tensors of one dtype, scaling separately where the engine cannot fuse it.

    Integers are scaled and truncated on each rank before and after the sum, as Horovod does; the
    engine sums an average wider than the dtype, scales it, and truncates once. A prescaled minimum,
    maximum or product is scaled before the reduction.

    Args:
      reduce: reduce(tensors, op, prescale, postscale) returns the reduced tensors.
      tensors: the inputs, all of one dtype.
      op: the reduce operation.
      prescale: multiplies the inputs.
      postscale: multiplies the results.
    """
    if tensors[0].dtype.is_integer and (prescale, postscale) != (1.0, 1.0):
        tensors = [scaled(tensor, prescale) for tensor in tensors]
        if op == Average:
            return reduce(tensors, op, 1.0, postscale)
        return [scaled(result, postscale) for result in reduce(tensors, op, 1.0, 1.0)]
    if op not in (Average, Sum):
        tensors, prescale = [scaled(tensor, prescale) for tensor in tensors], 1.0
    return reduce(tensors, op, prescale, postscale)
