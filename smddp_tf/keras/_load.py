"""load_model(): loads a saved model and makes its optimizer distributed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from typing import Any

from smddp_tf._src.compression import Compression
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job import basics
from smddp_tf._src.types import Compressor
from smddp_tf.keras import _distribution, _hooks
from smddp_tf.keras._optimizer import DistributedOptimizer

tf = tensorflow()


def _warn_if_state_is_lost(filepath: str | os.PathLike[str], optimizer: Any) -> None:
    """Warns where Keras 2's files have the optimizer's configuration, but not its state."""
    inner = _distribution.innermost(optimizer)
    if hasattr(inner, "apply"):  # Keras 3
        return
    legacy, path = hasattr(inner, "_aggregate_gradients"), os.fspath(filepath)
    if path.endswith(".keras") and legacy:
        kind, advice = "a legacy optimizer", "save as .h5 instead"
    elif not path.endswith(".keras") and inner is not optimizer and not legacy:
        kind, advice = "an optimizer in a LossScaleOptimizer", "save as .keras instead"
    else:
        return
    warnings.warn(
        f"{path} has no state of {type(inner).__name__}, as this Keras does not save that of "
        f"{kind} there: iterations and slots begin anew; {advice}",
        RuntimeWarning,
        stacklevel=3,
    )


def load_model(
    filepath: str | os.PathLike[str],
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Compressor = Compression.none,
    legacy_opts: bool = False,
    compile: bool = True,
    safe_mode: bool = True,
    **options: Any,
) -> Any:
    """Loads a model and makes its optimizer distributed, keeping its iterations, slots and rate.

    Args:
      filepath: same as for tf.keras.models.load_model. Every rank reads it.
      custom_optimizers: custom optimizer classes that the file refers to.
      custom_objects: a dict of further custom classes and functions that the file refers to.
      compression: same as for DistributedOptimizer.
      legacy_opts: ignored, accepted for compatibility; both styles of optimizer are recognised.
      compile: False: load the model alone, without an optimizer.
      safe_mode: False: also load objects that execute code (Lambda layers), as in Keras.
      **options: further arguments of DistributedOptimizer. backward_passes_per_step and
        average_aggregated_gradients are restored from the file; pass them to override it (Keras 3
        does not allow another number of passes).

    Returns:
      The model, compiled unless compile=False.

    Raises:
      ValueError: init() was not called, or the file has no optimizer.

    Examples:
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
      >>> model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), loss="mse")
      >>> _ = model.fit(tf.ones([8, 2]), tf.ones([8, 1]), verbose=0)
      >>> model.save("model.keras")
      >>> model = hvd.load_model("model.keras")  # every rank
      >>> int(model.optimizer.iterations)
      1
    """
    del legacy_opts
    basics.size()
    objects = {kind.__name__: kind for kind in custom_optimizers or []}
    objects.update(custom_objects or {})
    model = tf.keras.models.load_model(
        filepath, custom_objects=objects or None, compile=compile, safe_mode=safe_mode
    )
    if not compile:
        return model
    if getattr(model, "optimizer", None) is None:
        raise ValueError(
            f"{filepath} was saved without an optimizer (not compiled, or weights only); load it "
            "with tf.keras and compile it with hvd.DistributedOptimizer(...)"
        )
    _warn_if_state_is_lost(filepath, model.optimizer)
    if "backward_passes_per_step" in options:
        _hooks.restore_accumulation(_distribution.innermost(model.optimizer))
    DistributedOptimizer(model.optimizer, compression=compression, **options)
    distribution = _distribution.of(model.optimizer)
    if distribution.is_local_steps and os.fspath(filepath).endswith(".keras"):
        distribution.ensure_state(model.optimizer, model.trainable_variables)
        model.load_weights(filepath)  # again, now that there is where to put the outer state
    return model
