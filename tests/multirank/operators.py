"""What TensorFlow's operators have to know before several threads use them."""

import numpy as np
import tensorflow as tf


def meet_types():
    """Has TensorFlow's operators meet tensors and numbers, before several threads use them.

    An operator asks Python about an argument of a type that is new to it. Meanwhile another
    thread's call of that operator puts its arguments in their place (TensorFlow 2.21's
    python_api_dispatcher.cc, `canonicalized_args_storage_`), and ends, which can crash the first.
    """

    def use(x):
        return x * 1.0 + x * np.float32(1.0) + x * 1

    use(tf.Variable(1.0))
    use(tf.constant(1.0))
    tf.function(use, autograph=False)(tf.constant(1.0))
