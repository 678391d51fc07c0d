"""Computes the metrics of all ranks together by reducing the states of Keras metrics.

The average of the ranks' AUCs is not the AUC. But the state of a metric consists of sums (a total
and a count, or the four counts of a confusion matrix for each threshold), and summing these over
the ranks gives the state of a single process.
"""

import numbers

import numpy as np

from smddp_tf._src.collectives.allreduce import allreduce, grouped_allreduce
from smddp_tf._src.collectives.checks import REDUCIBLE
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job.process_sets import global_process_set
from smddp_tf._src.job.reduce_op import Average, Max, Min, Sum

tf = tensorflow()

_RULES = {"sum": Sum, "mean": Average, "max": Max, "min": Min}


def _metrics_of(model) -> list:
    """The model's metrics, including those in Keras 3's CompileMetrics container."""
    found: list = []
    for metric in model.metrics:
        found += metric.metrics if type(metric).__name__ == "CompileMetrics" else [metric]
    return found


def _rule(metric, variable) -> str:
    """How this state variable is reduced; "" if it cannot be."""
    aggregation = getattr(metric, "across_ranks", None)
    if aggregation is not None and aggregation not in (*_RULES, "average"):
        raise ValueError(
            f"metric {metric.name!r} has across_ranks={aggregation!r}; it is one of "
            f'{", ".join(_RULES)} (of its state) or "average" (of its results)'
        )
    if aggregation is None:
        aggregation = getattr(variable, "aggregation", None)
        aggregation = str(getattr(aggregation, "name", aggregation)).lower()
    dtype = tf.as_dtype(variable.dtype).base_dtype.name
    known = aggregation in _RULES and dtype in REDUCIBLE
    return aggregation if known else ""


def _states(model) -> dict:
    """State variables by rule. Excludes metrics with some state that cannot be reduced."""
    states: dict = {rule: [] for rule in _RULES}
    seen = set()
    for metric in _metrics_of(model):
        own = [v for v in metric.variables if id(v) not in seen]
        rules = [_rule(metric, variable) for variable in own]
        if all(rules):
            seen |= {id(variable) for variable in own}
            for rule, variable in zip(rules, own, strict=True):
                states[rule].append(variable)
    return {rule: variables for rule, variables in states.items() if variables}


def _results(model) -> dict:
    results = {name: _numbers(value) for name, value in model.get_metrics_result().items()}
    return {name: value for name, value in results.items() if value is not None}


def _numbers(value):
    """A number as a float, an array (F1Score's, by class) as a numpy array; None if neither."""
    is_number = isinstance(value, numbers.Number)
    if is_number:
        return float(value)
    if not hasattr(value, "shape"):
        return None
    # numpy() first: NumPy cannot take a scalar bfloat16 tensor.
    array = np.asarray(value.numpy() if tf.is_tensor(value) else value)
    if array.dtype.kind in "OSU":
        return None
    return float(array) if array.shape == () else array.astype(np.float64)


def of_all_ranks(model, process_set=global_process_set) -> dict:
    """Computes the model's metrics for this rank and for all ranks together.

    Collective. The state of the metrics is left unchanged.

    Args:
      model: a compiled Keras model.
      process_set: the ranks that take part.

    Returns:
      A dict: name -> (this rank's result, the result of all ranks).

    Raises:
      ValueError: a metric's across_ranks is invalid.
      tf.errors.FailedPreconditionError: the ranks have different metrics.
    """
    states = _states(model)
    before = _results(model)
    own = {rule: [tf.convert_to_tensor(v) for v in variables] for rule, variables in states.items()}
    names = ", ".join(sorted(before))
    reduced = {
        rule: grouped_allreduce(
            values, op=_RULES[rule], name=f"metrics ({rule}) {names}", process_set=process_set
        )
        for rule, values in own.items()
    }

    try:
        _assign(states, reduced)
        after = _results(model)
    finally:
        _assign(states, own)
    return {name: (before[name], after[name]) for name in before}


def _assign(states: dict, values: dict) -> None:
    for rule, variables in states.items():
        for variable, value in zip(variables, values[rule], strict=True):
            variable.assign(value)


def replace(logs, results: dict, prefix="") -> None:
    """Replaces this rank's results in the logs by those of all ranks.

    Only values that equal this rank's result are replaced: a custom train_step may log other
    numbers under a metric's name.
    """
    for name, (own, joined) in results.items():
        value = _numbers(logs.get(prefix + name))
        if value is None or np.shape(value) != np.shape(own):
            continue
        # Both come from the same state, but one may have been computed inside a tf.function.
        if np.allclose(value, own, rtol=1e-5, atol=1e-7, equal_nan=True):
            logs[prefix + name] = joined


def average(logs, process_set=global_process_set) -> None:
    """Averages the numbers and arrays of a dict over all ranks, in place.

    Raises:
      tf.errors.FailedPreconditionError: the ranks' names or shapes differ.
    """
    own = {name: _numbers(logs[name]) for name in sorted(logs)}
    own = {name: value for name, value in own.items() if value is not None}
    shapes = {name: np.shape(value) for name, value in own.items()}
    titles = [name + (str(list(shape)) if shape else "") for name, shape in shapes.items()]
    reduced = allreduce(
        tf.constant(np.concatenate([[], *map(np.ravel, own.values())]), tf.float64),
        op=Average,
        name="metrics " + ", ".join(titles),
        process_set=process_set,
    ).numpy()
    for name, shape in shapes.items():
        count = int(np.prod(shape))
        value, reduced = reduced[:count].reshape(shape), reduced[count:]
        logs[name] = value if shape else float(value)
