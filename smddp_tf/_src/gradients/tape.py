"""DistributedGradientTape: a tf.GradientTape whose gradient() is reduced over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smddp_tf._src.collectives.checks import ignore_devices
from smddp_tf._src.compression import Compression
from smddp_tf._src.gradients.marks import marked
from smddp_tf._src.gradients.options import ReduceOptions
from smddp_tf._src.gradients.reduce import (
    identity,
    kept_by_libraries,
    local_source,
    reduce_all_but_local,
)
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.ops.ranks import set_is_alone
from smddp_tf._src.job.process_sets import (
    ProcessSet,
    check_process_set,
    global_process_set,
    is_outside,
)
from smddp_tf._src.job.reduce_op import Average, ReduceOp
from smddp_tf._src.types import Compressor, GradientTape, Tensor

tf = tensorflow()


class _Distribution:
    """Mixin of a distributed tape; combined with the wrapped tape's class."""

    def __init__(
        self, tape: GradientTape, options: ReduceOptions, scale_local_gradients: bool
    ) -> None:
        # The wrapped tape does the recording, so it can be wrapped at any time.
        self._inner = tape
        self._options = options
        self._scale_local_gradients = scale_local_gradients
        self._local_sources: set[Any] = set()

    def __enter__(self) -> Any:
        self._inner.__enter__()
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> Any:
        return self._inner.__exit__(kind, value, traceback)

    def watch(self, tensor: Tensor) -> None:
        """Starts recording operations on a tensor."""
        self._inner.watch(tensor)

    def watched_variables(self) -> Any:
        """The variables watched by the tape, in order of first use."""
        return self._inner.watched_variables()

    def stop_recording(self) -> Any:
        """A context manager that pauses recording."""
        return self._inner.stop_recording()

    def reset(self) -> None:
        """Clears the recording."""
        self._inner.reset()

    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """The local jacobian; nothing is reduced."""
        return self._inner.jacobian(*args, **kwargs)

    def batch_jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """The local jacobian; nothing is reduced."""
        return self._inner.batch_jacobian(*args, **kwargs)

    def register_local_source(self, source: Any) -> None:
        """Keeps this source's gradients local; scale_local_gradients divides them by size()."""
        self._local_sources.add(local_source(source))

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> Any:
        """Computes the gradients of target and reduces them over all ranks.

        Args:
          target: same as for tf.GradientTape.gradient.
          sources: a variable or tensor, or any nest of them, in the same order on all ranks.
          output_gradients: same as for tf.GradientTape.gradient.
          unconnected_gradients: same as for tf.GradientTape.gradient.
          use_generic_names: ignored, accepted for compatibility.

        Returns:
          Gradients in the structure of sources; None for unconnected sources, by default.

        Raises:
          tf.errors.FailedPreconditionError: the ranks' gradients do not match.
        """
        del use_generic_names
        unconnected = unconnected_gradients or tf.UnconnectedGradients.NONE
        grads = self._inner.gradient(target, sources, output_gradients, unconnected)
        process_set = self._options.process_set
        if is_outside(process_set) or set_is_alone(process_set):
            return grads

        flat_sources = tf.nest.flatten(sources)
        flat_grads = self._flatten(grads, flat_sources)
        reduced = self._reduce(flat_grads, flat_sources)
        if not tf.nest.is_nested(sources):
            return reduced[0]
        return tf.nest.pack_sequence_as(sources, reduced)

    @staticmethod
    def _flatten(grads: Any, flat_sources: Any) -> list[Any]:
        # nest.flatten keeps IndexedSlices whole: it does not expand composites by default.
        flat = tf.nest.flatten(grads)
        assert len(flat) == len(flat_sources)
        return flat

    def _reduce(self, grads: list[Any], sources: list[Any]) -> list[Any]:
        if is_outside(self._options.process_set):
            return grads
        self._local_sources |= kept_by_libraries(sources)
        reduced = reduce_all_but_local(
            grads, sources, self._options, self._local_sources, self._scale_local_gradients
        )
        return marked(reduced, grads, self._options.process_set)

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[Any, ...]:
        """Computes gradients as gradient() does, those of local sources apart from the others.

        Args:
          target: same as for gradient().
          sources: a list of variables or tensors.
          output_gradients: same as for gradient().
          use_generic_names: ignored, accepted for compatibility.

        Returns:
          Two lists of (source, gradient): the local ones, and those that were reduced.
        """
        del use_generic_names
        sources = tf.nest.flatten(sources)
        pairs = list(zip(sources, self.gradient(target, sources, output_gradients), strict=True))
        local = [identity(source) in self._local_sources for source in sources]
        return (
            [pair for pair, is_local in zip(pairs, local, strict=True) if is_local],
            [pair for pair, is_local in zip(pairs, local, strict=True) if not is_local],
        )


def DistributedGradientTape(  # noqa: N802 - Horovod's name
    gradtape: GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp | int | None = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Any] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wraps a tf.GradientTape, before or after recording, so that gradient() reduces gradients.

    Args:
      gradtape: the tape to wrap.
      device_dense: ignored, accepted for compatibility; reductions run on the CPU.
      device_sparse: same as device_dense.
      compression: Compression.none, .fp16, .bf16, .int8 or .topk(ratio), or a compressor of your
        own.
      sparse_as_dense: reduce tf.IndexedSlices as dense tensors instead of gathering rows.
      op: Average (the default), Sum, Adasum, Min, Max or Product.
      gradient_predivide_factor: with Average: divide gradients by this factor before the sum, and
        by size() / factor after it.
      num_groups: if > 0, the number of groups to reduce in, instead of buckets by size.
      groups: a list of lists of variables to reduce together, or a number, same as num_groups.
      process_set: the ranks whose gradients are reduced; on other ranks they stay as they are.
      scale_local_gradients: divide the gradients of registered local sources by size().

    Returns:
      A tape whose class derives from gradtape's, and whose gradient() reduces over all ranks.

    Raises:
      ValueError: init() was not called, the tape is already distributed, or arguments contradict
        each other.
      TypeError: gradtape is not a tape, or an argument has the wrong type.

    Examples:
      >>> weight = tf.Variable(3.0)
      >>> with tf.GradientTape() as tape:
      ...     loss = weight * weight
      >>> tape = hvd.DistributedGradientTape(tape)
      >>> float(tape.gradient(loss, weight))  # the average over the ranks
      6.0
    """
    ignore_devices(device_dense=device_dense, device_sparse=device_sparse)
    if not is_outside(process_set):
        check_process_set(process_set)
    options = ReduceOptions(
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        name="DistributedGradientTape",
        process_set=process_set,
    )

    base = type(gradtape)
    if not isinstance(gradtape, tf.GradientTape):
        hint = "; make one: tf.GradientTape()" if isinstance(gradtape, type) else ""
        raise TypeError(f"DistributedGradientTape takes a tf.GradientTape, not {gradtape!r}{hint}")
    if isinstance(gradtape, _Distribution):
        # Not a TypeError: the type is right, but the script wraps the tape twice.
        raise ValueError(  # noqa: TRY004
            "this tape is distributed already; its gradients would be reduced twice"
        )

    distributed = type(base.__name__, (_Distribution, base), {})
    return distributed(gradtape, options, scale_local_gradients)
