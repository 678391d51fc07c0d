"""Refuses a Keras that does not compute with TensorFlow, before anything is built with it."""

from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job import config

tf = tensorflow()


def require_tensorflow() -> None:
    """Raises an ImportError if TensorFlow's Keras has another backend.

    Raises:
      ImportError: Keras 3's backend is jax, torch, numpy or another one.
    """
    wanted = config.keras_backend()
    cause: ImportError | None = None
    try:
        found = tf.keras.backend.backend()
    except ImportError as error:
        if wanted == "tensorflow":
            raise
        found, cause = wanted, error  # a backend that is not installed either
    if found == "tensorflow":
        return
    where = "KERAS_BACKEND" if wanted == found else '"backend" in ~/.keras/keras.json'
    other = '; or train with smddp_tf.torch and init_process_group("smddp"), see docs/pytorch.md'
    raise ImportError(
        f"smddp_tf.keras reduces gradients in TensorFlow, but Keras computes with {found!r} "
        f"({where}); set KERAS_BACKEND=tensorflow before Keras is imported, also in the "
        f"environment of the ranks{other if found == 'torch' else ''}"
    ) from cause
