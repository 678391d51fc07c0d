"""What a process does in test_keras.py that has TensorFlow, but not this library."""

import sys

sys.modules["smddp_tf"] = None

import tensorflow as tf  # noqa: E402
from harness import OUT, without_init  # noqa: E402


@without_init
def loads_a_model():
    model = tf.keras.models.load_model(str(OUT / "model.keras"))
    assert type(model.optimizer).__module__.split(".")[0] in ("keras", "tf_keras")
    model.fit(tf.zeros([4, 12]), tf.zeros([4]), verbose=0)
    if hasattr(model, "export"):
        model.export(str(OUT / "served"))
    else:
        model.save(str(OUT / "served"))
    served = tf.saved_model.load(str(OUT / "served"))
    call = getattr(served, "serve", served)
    print("output", call(tf.zeros([2, 12])).shape)
