"""Variables from one rank to all."""

from __future__ import annotations

from collections.abc import Iterable

from smddp_tf._collectives.broadcast import broadcast
from smddp_tf._collectives.checks import MOVABLE, check_dtype, check_root
from smddp_tf._graph import ops, order
from smddp_tf._graph.framework import tensorflow
from smddp_tf._job import basics
from smddp_tf._job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._types import Variable

tf = tensorflow()

# Types that only travel, under the name of one of equal size that the engine knows.
_CARRIED_AS = {"uint32": "int32", "uint64": "int64", "complex64": "int64"}


def _payload(variable):
    """The variable's value in a dtype that can be sent."""
    tensor = tf.convert_to_tensor(variable)
    carried = _CARRIED_AS.get(tensor.dtype.base_dtype.name)
    if carried is not None:
        return tf.bitcast(tensor, carried)
    check_dtype(tensor, MOVABLE, "broadcast of a variable")
    return tensor


# Odd, so that ranks' seeds differ, and large, so that they are not those of other layers.
_SEED_STEP = 0x1E3779B1


def is_seed(variable) -> bool:
    """Whether it is the state of a random generator, of Keras 3 or of TensorFlow."""
    name = (getattr(variable, "path", None) or variable.name).split("/")[-1].split(":")[0]
    return name.startswith(("seed_generator_state", "StateVar")) and variable.dtype in _SEED_DTYPES


_SEED_DTYPES = ("int32", "uint32", "int64", tf.int32, tf.uint32, tf.int64)


def _own_seed(variable, state, root_rank: int):
    """The root's generator state with this rank's number in the seed; the root keeps its own."""
    distance = (basics.rank() - root_rank) % basics.size()
    keras3 = "seed_generator_state" in variable.name
    at = tf.one_hot(0 if keras3 else state.shape[0] - 1, state.shape[0], dtype=tf.int64)
    seed = tf.cast(state, tf.int64) + at * ((distance * _SEED_STEP) % (1 << 30))
    return tf.cast(seed % (1 << 31) if keras3 else seed, state.dtype)


def broadcast_(
    variables: Iterable[Variable],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
):
    """Assigns the root's values to the variables of every rank, in place.

    Seeds of Keras 3's dropout and the like (SeedGenerator) and states of tf.random.Generator get
    the root's value changed by the rank's number, so that each rank draws numbers of its own.

    Args:
      variables: a list of tf.Variable or Keras variables, the same on all ranks.
      root_rank: the rank whose values all get: its number in the job, not in the set.
      name: for messages; must be the same on all ranks.
      process_set: the ranks that take part; this rank must be one of them.

    Returns:
      The variables. In a tf.function the assignments happen when it runs.

    Raises:
      ValueError: root_rank is not in the set.
      TypeError: a variable's dtype cannot be sent.
      tf.errors.FailedPreconditionError and others: as allreduce().
    """
    number = check_process_set(process_set)
    root_rank = check_root(root_rank, process_set)
    variables = list(variables)
    if process_set.size() == 1 or not variables:
        return variables
    payloads = [_payload(variable) for variable in variables]
    name = name or order.site_name("broadcast_variables")
    by_dtype: dict = {}
    for i, payload in enumerate(payloads):
        by_dtype.setdefault(payload.dtype.base_dtype, []).append(i)
    for dtype, indices in by_dtype.items():
        group = [payloads[i] for i in indices]
        title = f"{name}.{dtype.name}"
        received = ops.broadcast(group, root_rank, title, number)
        for i, value in zip(indices, received, strict=True):
            wanted = tf.as_dtype(variables[i].dtype).base_dtype
            value = value if value.dtype == wanted else tf.bitcast(value, wanted)
            if is_seed(variables[i]):
                value = _own_seed(variables[i], value, root_rank)
            variables[i].assign(value)
    return variables


def broadcast_variables(
    variables: Iterable[Variable],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
):
    """Assigns the root's values to the variables of every rank; see broadcast_().

    Works eagerly and inside tf.function. inplace is accepted for old scripts: it is always so.
    """
    del inplace
    return broadcast_(variables, root_rank, process_set=process_set)


def broadcast_global_variables(root_rank: int):
    """Broadcasts all global variables of the default TF1 graph.

    Raises:
      RuntimeError: in eager execution, where there is no such list; use broadcast_variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables() works on TF1 graphs only; use "
            "broadcast_variables(model.variables, root_rank) in eager execution"
        )
    variables = tf.compat.v1.global_variables()
    return tf.group(
        *[
            variable.assign(broadcast(variable, root_rank, name=variable.name))
            for variable in variables
        ]
    )
