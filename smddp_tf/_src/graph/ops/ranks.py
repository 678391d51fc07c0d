"""The number of ranks in graphs that may outlive their job, and whether they do.

A traced function keeps Python's numbers. In a job that others can follow in the process (see
basics.is_last_job), graphs ask for the size and the rank when they run instead, or compare them
with what they were built for where shapes depend on them.
"""

from __future__ import annotations

from typing import Any

from smddp_tf._src.graph import queries, xla
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.ops.allgather import allgather
from smddp_tf._src.graph.ops.allreduce import allreduce
from smddp_tf._src.job.process_sets import ProcessGroup, ProcessSet, check_process_set
from smddp_tf._src.job.reduce_op import Sum
from smddp_tf._src.job.reduction import Reduction
from smddp_tf._src.types import Tensor

tf = tensorflow()


def is_fixed(group: ProcessGroup) -> bool:
    """Whether what is built now runs with this group only, so that its numbers are constants."""
    return group.fixed or tf.executing_eagerly()


def is_alone(group: ProcessGroup) -> bool:
    """Whether what is built now never has another rank to talk to."""
    return group.size == 1 and is_fixed(group)


def set_is_alone(process_set: ProcessSet) -> bool:
    """is_alone() of a set that is in the job."""
    return process_set.size() == 1 and is_alone(check_process_set(process_set))


def size_in(group: ProcessGroup, name: str) -> Any:
    """The number of ranks: an int, or an int32 or float32 scalar that is evaluated at each run.

    Args:
      group: the ranks.
      name: of the collective that counts them inside jit, where nothing else can.
    """
    if is_fixed(group):
        return group.size
    if xla.inside_jit():
        return allreduce([tf.ones([])], Reduction(Sum, f"{name}.ranks", group))[0]
    return queries.size_op(group.id)


def rank_in(group: ProcessGroup, name: str) -> int | Tensor:
    """This process's rank in the group: an int, or an int32 scalar evaluated at each run.

    Args:
      group: the ranks.
      name: of a collective that fails inside jit, where the rank is a constant, if it is another.
    """
    if is_fixed(group):
        return group.rank
    if xla.inside_jit():
        allgather(tf.zeros([1]), f"{name}.rank", group)
        return group.rank
    return queries.rank_op()  # only the group of all ranks is not fixed


def with_fixed_size(gathered: Tensor, group: ProcessGroup, name: str) -> Tensor:
    """What was gathered of all ranks, with their number as its first dimension.

    Args:
      gathered: a tensor with a row of each rank.
      group: the ranks.
      name: of the reduction, for the error.

    Raises:
      tf.errors.InvalidArgumentError: when it runs in a job of another size.
    """
    if not (xla.inside_jit() or is_fixed(group)):  # jit's allgather compares it
        message = (
            f"{name!r} was traced in a job of {group.size} ranks and runs in one of another size; "
            "make the tf.function anew after init()"
        )
        same = tf.debugging.assert_equal(tf.shape(gathered)[0], group.size, message)
        with tf.control_dependencies([same]):
            gathered = tf.identity(gathered)
    gathered.set_shape([group.size, *gathered.shape.as_list()[1:]])
    return gathered
