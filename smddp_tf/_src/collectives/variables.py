"""Broadcast of variables."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from smddp_tf._src.collectives.broadcast import broadcast
from smddp_tf._src.collectives.carried import (
    CARRIED,
    carried,
    carried_text,
    dtype_name,
    received,
)
from smddp_tf._src.collectives.checks import MOVABLE, check_root, list_of, resolve_name
from smddp_tf._src.collectives.objects import broadcast_object
from smddp_tf._src.graph import ops
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.ops.ranks import is_alone, set_is_alone
from smddp_tf._src.graph.order import in_session
from smddp_tf._src.job import basics
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._src.types import Tensor, Variable

tf = tensorflow()


def _payload(variable: Variable) -> Tensor:
    """The variable's value, in a dtype that the engine supports."""
    name = dtype_name(variable)
    if name not in (*MOVABLE, *CARRIED):
        sent = ", ".join((*MOVABLE, *CARRIED))
        raise TypeError(
            f"variable {variable.name!r} is of {name}, which cannot be broadcast; it takes {sent}, "
            "and strings outside of tf.function"
        )
    return carried(tf.convert_to_tensor(variable))


def is_movable(variable: Variable) -> bool:
    """Whether its dtype can be sent."""
    return dtype_name(variable) in (*MOVABLE, *CARRIED, "string")


# Odd, so that the ranks' seeds differ; large, so that they do not collide with other layers' seeds.
_SEED_STEP = 0x1E3779B1


def seed_of_rank(seed: int, rank: int) -> int:
    """The seed of a rank's random generator, given that of rank 0."""
    return (seed + rank * _SEED_STEP % (1 << 30)) % (1 << 31)


def is_seed(variable: Variable) -> bool:
    """Whether the variable is the state of a Keras 3 or TensorFlow random generator."""
    name = (getattr(variable, "path", None) or variable.name).split("/")[-1].split(":")[0]
    return name.startswith(("seed_generator_state", "StateVar")) and variable.dtype in _SEED_DTYPES


_SEED_DTYPES = ("int32", "uint32", "int64", tf.int32, tf.uint32, tf.int64)


def own_seed(variable: Variable, state: Any, root_rank: int) -> Tensor:
    """The root's generator state with a rank-dependent seed; the root's own is unchanged."""
    distance = (basics.rank() - root_rank) % basics.size()
    keras3 = "seed_generator_state" in variable.name
    rows = state.shape.num_elements()
    at = tf.one_hot(0 if keras3 else rows - 1, rows, dtype=tf.int64)
    # Constants are typed, and below 2^31: a script can enable NumPy's rules for the others.
    step = tf.constant(distance * _SEED_STEP % (1 << 30), tf.int64)
    seed = tf.cast(state, tf.int64) + at * step
    if keras3:
        seed = tf.bitwise.bitwise_and(seed, tf.constant((1 << 31) - 1, tf.int64))
    return tf.cast(seed, state.dtype)


def checked(variables: Any) -> list[Variable]:
    """The variables as a list.

    Raises:
      TypeError: they are no list of variables.
    """
    variables = list_of(variables, "broadcast_variables", "variables")
    for one in variables:
        if not hasattr(one, "assign"):
            raise TypeError(
                f"broadcast_variables got {type(one).__name__}, which is no variable, in its list; "
                "hvd.broadcast(value, root_rank) returns the root's value"
            )
    return variables


def broadcast_(
    variables: Iterable[Variable],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Variable]:
    """Sends a list of variables alone; _src/state/variables.py has the public function."""
    group = check_process_set(process_set)
    root_rank = check_root(root_rank, process_set)
    variables = checked(variables)
    for_session = in_session()
    if is_alone(group) or not variables:
        return [tf.identity(one) for one in variables] if for_session else variables

    eager = tf.executing_eagerly()
    texts = [i for i, one in enumerate(variables) if eager and dtype_name(one) == "string"]
    payloads = {i: _payload(one) for i, one in enumerate(variables) if i not in texts}
    name = resolve_name(name, "broadcast_variables", group)

    assigned = list(variables)
    by_dtype: dict[Any, list[int]] = {}
    for i in texts:
        own = variables[i].numpy()
        variables[i].assign(broadcast_object(own, root_rank, None, f"{name}.{i}", process_set))
    for i, payload in payloads.items():
        by_dtype.setdefault(payload.dtype.base_dtype, []).append(i)
    for dtype, indices in by_dtype.items():
        title = f"{name}.{dtype.name}"
        names = {i: carried_text(dtype_name(variables[i])) for i in indices}
        compared = " ".join(f"place {i} {text}" for i, text in names.items() if text)
        sent = [payloads[i] for i in indices]
        values = ops.broadcast(sent, root_rank, title, group, compared)
        for i, value in zip(indices, values, strict=True):
            value = received(value, dtype_name(variables[i]))
            if is_seed(variables[i]):
                value = own_seed(variables[i], value, root_rank)
            done = variables[i].assign(value)
            if for_session:
                assigned[i] = tf.identity(done)
    return assigned


def broadcast_variables(
    variables: Iterable[Variable],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """As broadcast_(), with a warning if there are none; public in _src/state/variables.py."""
    variables = checked(variables)
    if not variables and not set_is_alone(process_set):
        warnings.warn(
            "broadcast_variables() got no variables, so nothing is broadcast: models and "
            "optimizers have theirs once they are built; call it after model.build(...) or after "
            "the first step",
            RuntimeWarning,
            stacklevel=3,
        )
    assigned = broadcast_(variables, root_rank, process_set=process_set)
    return tf.group(*assigned) if in_session() else assigned


def broadcast_global_variables(root_rank: int) -> Any:
    """Broadcasts all global variables of the default TF1 graph.

    Raises:
      RuntimeError: in eager execution, which has no global list; use broadcast_variables.

    Examples:
      >>> with tf.Graph().as_default():
      ...     counter = tf.compat.v1.get_variable("counter", initializer=hvd.rank())
      ...     start_equal = hvd.broadcast_global_variables(root_rank=0)
      ...     with tf.compat.v1.Session() as session:
      ...         _ = session.run(tf.compat.v1.global_variables_initializer())
      ...         _ = session.run(start_equal)
      ...         value = session.run(counter)
      >>> int(value)
      0
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
