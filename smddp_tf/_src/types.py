"""Type aliases for type checkers; TensorFlow is not imported at run time."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    import numpy as np
    import tensorflow as tf

    Tensor: TypeAlias = tf.Tensor
    TensorLike: TypeAlias = (
        tf.Tensor | tf.Variable | tf.IndexedSlices | np.ndarray | Sequence[Any] | float | bool
    )
    GradientTape: TypeAlias = tf.GradientTape
    # A TensorFlow or a Keras variable.
    Variable: TypeAlias = Any
    # A class or object with compress() and decompress(), or with reduce().
    Compressor: TypeAlias = Any
    # A class of the TensorFlow or Keras that is loaded, for a name from which classes derive.
    LoadedClass: TypeAlias = Any
else:
    Tensor = TensorLike = GradientTape = Variable = Compressor = LoadedClass = Any
