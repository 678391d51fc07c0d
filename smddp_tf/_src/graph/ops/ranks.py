"""The number of ranks in graphs that may outlive their job, and whether they do.

A traced function keeps Python's numbers. In a job that others can follow in the process (see
basics.is_last_job), graphs ask for the size and the rank when they run instead.
"""

from __future__ import annotations

from typing import Any

from smddp_tf._src.graph import queries, xla
from smddp_tf._src.graph.framework import tensorflow
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


def rank_in(group: ProcessGroup, what: str) -> int | Tensor:
    """This process's rank in the group; outside of fixed groups an int32 scalar.

    Args:
      group: the ranks.
      what: needs it, in the error.

    Raises:
      tf.errors.UnimplementedError: inside jit, if the group is not fixed.
    """
    if is_fixed(group):
        return group.rank
    require_fixed_in_jit(group, what)
    return queries.rank_op()  # only the group of all ranks is not fixed


def require_fixed_in_jit(group: ProcessGroup, what: str) -> None:
    """Rejects, inside jit, what depends on the number of ranks when it is compiled.

    Raises:
      tf.errors.UnimplementedError: the group is not fixed.
    """
    if xla.inside_jit() and not is_fixed(group):
        raise tf.errors.UnimplementedError(
            None,
            None,
            f"{what} is not available inside tf.function(jit_compile=True) in a job that another "
            "one can follow in this process, with other ranks: XLA compiles for one number of "
            "them. Compile that function with jit_compile=False, or let init() begin MPI",
        )
