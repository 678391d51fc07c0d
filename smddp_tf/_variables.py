"""Variables and Python objects from one rank to all."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

from smddp_tf import _collectives, _native, _ops, _order, _runtime
from smddp_tf._runtime import ProcessSet
from smddp_tf._types import Variable

tf = _native.tensorflow()

# Types that only travel, under the name of one of equal size that the engine knows.
_CARRIED_AS = {"uint32": "int32", "uint64": "int64", "complex64": "int64"}


def _payload(variable):
    """The variable's value in a dtype that can be sent."""
    tensor = tf.convert_to_tensor(variable)
    carried = _CARRIED_AS.get(tensor.dtype.base_dtype.name)
    if carried is not None:
        return tf.bitcast(tensor, carried)
    _collectives.check_dtype(tensor, _collectives.MOVABLE, "broadcast of a variable")
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
    distance = (_runtime.rank() - root_rank) % _runtime.size()
    keras3 = "seed_generator_state" in variable.name
    at = tf.one_hot(0 if keras3 else state.shape[0] - 1, state.shape[0], dtype=tf.int64)
    seed = tf.cast(state, tf.int64) + at * ((distance * _SEED_STEP) % (1 << 30))
    return tf.cast(seed % (1 << 31) if keras3 else seed, state.dtype)


def broadcast_(
    variables: Iterable[Variable],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = _runtime.global_process_set,
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
    number = _runtime.check_process_set(process_set)
    root_rank = _collectives.check_root(root_rank, process_set)
    variables = list(variables)
    if process_set.size() == 1 or not variables:
        return variables
    payloads = [_payload(variable) for variable in variables]
    name = name or _order.site_name("broadcast_variables")
    by_dtype: dict = {}
    for i, payload in enumerate(payloads):
        by_dtype.setdefault(payload.dtype.base_dtype, []).append(i)
    for dtype, indices in by_dtype.items():
        group = [payloads[i] for i in indices]
        title = f"{name}.{dtype.name}"
        received = _ops.broadcast(group, root_rank, title, number)
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
    process_set: ProcessSet = _runtime.global_process_set,
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
            variable.assign(_collectives.broadcast(variable, root_rank, name=variable.name))
            for variable in variables
        ]
    )


def _pickled(obj) -> tuple:
    """(bytes, True), or the reason why obj cannot be pickled and False.

    cloudpickle, where it is installed, takes what pickle does not: lambdas, local classes. It is
    not asked first, because it would send classes of the script as copies of themselves.
    """
    try:
        return pickle.dumps(obj), True
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    try:
        import cloudpickle
    except ImportError:
        return f"{problem} (cloudpickle, if it is installed, may take it)".encode(), False
    try:
        return cloudpickle.dumps(obj), True
    except Exception as error:
        return f"{type(error).__name__}: {error}".encode(), False


def _refuse_unpickled(reasons: dict) -> None:
    """Raises, on all ranks, for the ranks whose object could not be pickled."""
    if reasons:
        text = "; ".join(f"rank {rank}: {reason.decode()}" for rank, reason in reasons.items())
        raise pickle.PicklingError(f"an object cannot be pickled, so no rank gets it: {text}")


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = _runtime.global_process_set,
):
    """Gives every rank the root's Python object.

    Args:
      obj: anything that pickle takes, or cloudpickle if that is installed; only the root's is
        looked at.
      root_rank: the rank whose object all get: its number in the job, not in the set.
      session: accepted for old scripts.
      name: for messages; must be the same on all ranks.
      process_set: the ranks that take part; this rank must be one of them.

    Returns:
      The root's object (on the root, obj itself).

    Raises:
      pickle.PicklingError: the root's object cannot be pickled; on all ranks.
    """
    del session
    _runtime.check_process_set(process_set)
    root_rank = _collectives.check_root(root_rank, process_set)
    if process_set.size() == 1:
        return obj
    name = name or _order.site_name("broadcast_object")
    is_root = _runtime.rank() == root_rank
    own, fine = _pickled(obj) if is_root else (b"", True)
    size = tf.constant(len(own) if fine else -len(own), tf.int64)  # negative: the reason's
    length = int(_collectives.broadcast(size, root_rank, name + ".size", process_set=process_set))
    data = tf.io.decode_raw(own, tf.uint8) if is_root else tf.zeros([abs(length)], tf.uint8)
    received = _collectives.broadcast(data, root_rank, name, process_set=process_set)
    if length < 0:
        _refuse_unpickled({root_rank: received.numpy().tobytes()})
    return obj if is_root else pickle.loads(received.numpy().tobytes())


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = _runtime.global_process_set,
):
    """Returns a function of one argument: broadcast_object with these arguments."""

    def call(obj):
        return broadcast_object(obj, root_rank, session, name, process_set)

    return call


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = _runtime.global_process_set,
):
    """Returns the list of the set's objects, in rank order.

    Each must be what pickle takes, or cloudpickle if that is installed.

    Raises:
      pickle.PicklingError: a rank's object cannot be pickled; on all ranks.
    """
    del session
    _runtime.check_process_set(process_set)
    if process_set.size() == 1:
        return [obj]
    name = name or _order.site_name("allgather_object")
    own, fine = _pickled(obj)
    size = tf.constant([len(own) if fine else -len(own)], tf.int64)  # negative: the reason's
    sizes = _collectives.allgather(size, name + ".sizes", process_set=process_set)
    own = tf.io.decode_raw(own, tf.uint8)
    data = _collectives.allgather(own, name, process_set=process_set).numpy().tobytes()
    parts, reasons, at = [], {}, 0
    # Not strict: a rank that waits in join() has no object.
    for rank, size in zip(process_set.ranks, sizes.numpy(), strict=False):
        parts.append(data[at : at + abs(size)])
        at += abs(int(size))
        if size < 0:
            reasons[rank] = parts[-1]
    _refuse_unpickled(reasons)
    return [pickle.loads(part) for part in parts]
