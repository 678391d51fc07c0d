"""load_model: a saved model whose optimizer goes on distributed."""

from smddp_tf import _native, _runtime
from smddp_tf._compression import Compression
from smddp_tf.keras._optimizer import DistributedOptimizer

tf = _native.tensorflow()


def load_model(
    filepath,
    custom_optimizers=None,
    custom_objects=None,
    compression=Compression.none,
    legacy_opts=False,
    **options,
):
    """Loads a model and makes its optimizer distributed; iterations, slots and rate are kept.

    Args:
      filepath: what tf.keras.models.load_model takes. Every rank reads it.
      custom_optimizers: optimizer classes of your own that the file names.
      custom_objects: a dict of further classes and functions that the file names.
      compression: as for DistributedOptimizer.
      legacy_opts: accepted for old scripts; both styles of optimizer are recognised.
      **options: further arguments of DistributedOptimizer.

    Returns:
      The compiled model.

    Raises:
      ValueError: before init(), or the file has no optimizer.
    """
    del legacy_opts
    _runtime.size()
    objects = {kind.__name__: kind for kind in custom_optimizers or []}
    objects.update(custom_objects or {})
    model = tf.keras.models.load_model(filepath, custom_objects=objects or None)
    if getattr(model, "optimizer", None) is None:
        raise ValueError(
            f"{filepath} was saved without an optimizer (not compiled, or weights only); load it "
            "with tf.keras and compile it with hvd.DistributedOptimizer(...)"
        )
    DistributedOptimizer(model.optimizer, compression=compression, **options)
    return model
