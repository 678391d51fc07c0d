"""Top-k compression with error feedback."""

import warnings
from collections.abc import Callable
from typing import Any

from smddp_tf._src.graph.framework import ops_of, tensorflow
from smddp_tf._src.types import Tensor


class TopKCompressor:
    """Sends only the largest elements of a gradient and keeps the rest for the next step.

    Lin et al., "Deep Gradient Compression" (2018), without its momentum correction. The residual,
    which a rank did not send, is added to its next gradient, so nothing is lost: after any number
    of steps, the sum of the sent values plus the residual equals the sum of the gradients, up to
    float32 rounding. The error of one step is the residual; none of its elements is larger than the
    smallest one sent. A step in which some rank's gradient has inf or nan leaves the residual as it
    was. Sends 8 bytes per selected element.

    One object is to serve all steps: make it before the loop. A RuntimeWarning says so to a script
    that makes another one in each step, and so loses what was not sent.

    Args:
      ratio: the fraction of elements to send, in (0, 1]; at least one element is sent.

    Raises:
      ValueError: ratio is out of range.
    """

    _dropped = 0  # objects that ended after one step

    def __init__(self, ratio: float = 0.01) -> None:
        if not 0 < ratio <= 1:
            raise ValueError(f"ratio={ratio} must be more than 0 and at most 1")
        self.ratio = ratio
        self.kept: dict[str, Any] = {}  # key -> residual, a float32 tf.Variable
        self._added = False  # whether a residual was added to a later gradient

    def __del__(self) -> None:
        if getattr(self, "kept", None) and not self._added:
            type(self)._dropped += 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies start without residuals, which belong to the original's gradients."""
        return TopKCompressor, (self.ratio,)

    def _kept(self, key: Any, size: int) -> Any:
        tf = tensorflow()
        self._added |= key in self.kept
        if key not in self.kept:
            if not self.kept:
                self._warn_of_others()
            with tf.init_scope():
                self.kept[key] = tf.Variable(tf.zeros([size]), trainable=False)
        return self.kept[key]

    @classmethod
    def _warn_of_others(cls) -> None:
        if cls._dropped < 2:  # a script may well have tried one
            return
        cls._dropped = 0
        warnings.warn(
            "Compression.topk(...) is made anew in each step, so what it does not send is lost; "
            "make it once, before the loop",
            RuntimeWarning,
            stacklevel=2,
        )

    def rescale(self, factor: float) -> None:
        """Multiplies what was kept, as the next gradients will be: their loss scale has changed."""
        tf = tensorflow()

        def multiply() -> None:
            for kept in self.kept.values():
                kept.assign(kept * factor)

        tf.cond(tf.equal(factor, 1.0), lambda: None, multiply)

    def reduce(
        self, tensor: Tensor, average: bool, key: Any, gather: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Sums (or averages) a floating-point tensor over the ranks; see Int8Compressor.reduce().

        key identifies the gradient, which has its own residual.

        Raises:
          ValueError: key is None (an explicit collective needs a name).
        """
        if key is None:
            raise ValueError(
                "Compression.topk keeps what it does not send for the next call with the same "
                "name; give the collective a name"
            )
        ops, size = ops_of("topk"), tensor.shape.num_elements()
        if not size:
            return tensorflow().identity(tensor)

        kept = self._kept(key, size)
        k = max(1, int(size * self.ratio))
        indices, values, rest = ops.topk_select(tensor, kept, k)

        # As float32, whose bits are not changed: a collective's int32 would be copied to the host.
        tf = tensorflow()
        indices = tf.bitcast(gather(tf.bitcast(indices, tf.float32)), tf.int32)
        values = gather(values)

        # After an overflow the script, or its loss scaling, skips the step on all ranks. Nothing of
        # it may be kept: inf and nan would never leave the residual again.
        finite = tf.reduce_all(tf.math.is_finite(values))
        kept.assign(tf.cond(finite, lambda: rest, lambda: tf.convert_to_tensor(kept)))
        divisor = indices.shape.as_list()[0] if average else 1
        return ops.topk_sum(indices, values, tensor, divisor)
