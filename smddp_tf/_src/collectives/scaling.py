"""Pre- and postscaling that the engine does not fuse into the reduction."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job.reduce_op import Average, Sum
from smddp_tf._src.job.reduction import Reduction
from smddp_tf._src.types import Tensor

tf = tensorflow()


def factor(value: Any) -> float:
    """A scale factor as a Python number.

    Raises:
      TypeError: it is not a number that is known now.
    """
    if type(value) is float and value == 1.0:  # nearly always
        return value
    try:
        number = float(value)
    except (TypeError, ValueError, NotImplementedError):
        number = math.nan
    if isinstance(value, str) or math.isnan(number):  # numpy makes None a NaN
        raise TypeError(f"a prescale or postscale factor is {value!r}, which is not a number")
    return number


def _of_integers(factor: float, dtype: Any) -> float:
    """A factor of integers, rounded to float32 as by Horovod: truncation shows the difference.

    Raises:
      ValueError: it is infinite.
    """
    with np.errstate(over="ignore"):  # the refusal says it
        rounded = float(np.float32(factor))
    if math.isinf(rounded):
        raise ValueError(
            f"a prescale or postscale factor is {factor}, of {dtype.base_dtype.name}: integers "
            "cannot be infinite; give a finite factor, or cast the tensor to a floating type"
        )
    return rounded


def scaled(tensor: Tensor, factor: float) -> Tensor:
    """The tensor times a number; integers are multiplied as float64 and truncated."""
    if factor == 1.0:
        return tensor
    if tensor.dtype.is_integer:
        product = tf.cast(tensor, tf.float64) * _of_integers(factor, tensor.dtype)
        return tf.cast(product, tensor.dtype)
    return tensor * tf.constant(factor, tensor.dtype)  # a cast would round it to float32 first


def factors_text(prescale: float, postscale: float) -> str:
    """Factors that a rank multiplies by itself, for the ranks to compare; "" if they are 1."""
    if (prescale, postscale) == (1.0, 1.0):
        return ""
    return f"prescale_factor={prescale} postscale_factor={postscale}"


def reduce_with_unfused_scaling(
    op: Callable[[list[Tensor], Reduction], list[Tensor]],
    tensors: list[Tensor],
    reduction: Reduction,
) -> list[Tensor]:
    """Reduces tensors of one dtype, scaling separately where the engine cannot fuse it.

    Integers are scaled and truncated on each rank before and after the sum, as Horovod does; the
    engine sums an average wider than the dtype, scales it, and truncates once. A prescaled minimum,
    maximum or product is scaled before the reduction. Ranks compare the factors that they apply by
    themselves.

    Args:
      op: op(tensors, reduction) returns the reduced tensors.
      tensors: the inputs, all of one dtype.
      reduction: how to reduce them.
    """
    prescale, postscale = reduction.prescale, reduction.postscale
    apart = reduction.comparing(factors_text(prescale, postscale))
    if tensors[0].dtype.is_integer and reduction.scales:
        tensors = [scaled(tensor, prescale) for tensor in tensors]
        if reduction.op == Average:
            postscale = _of_integers(postscale, tensors[0].dtype)
            return op(tensors, apart.scaled_by(postscale=postscale))
        return [scaled(result, postscale) for result in op(tensors, apart.scaled_by())]
    if reduction.op not in (Average, Sum) and prescale != 1.0:
        tensors = [scaled(tensor, prescale) for tensor in tensors]
        return op(tensors, apart.scaled_by(postscale=postscale))
    return op(tensors, reduction)
