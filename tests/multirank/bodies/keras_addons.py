"""What ranks do in test_keras_features.py with tensorflow-addons."""

import importlib
import os
import sys
import warnings

import keras_modes
import tensorflow as tf
from harness import report

keras = tf.keras


def _prepare():
    """Addons look for Keras's engine where Keras 2 had it."""
    for name in ("base_layer", "keras_tensor"):
        importlib.import_module(f"tf_keras.src.engine.{name}")
    sys.modules["keras.src.engine"] = sys.modules["tf_keras.src.engine"]
    importlib.import_module("keras")
    for name in [n for n in sys.modules if n.startswith("tf_keras.src.engine.")]:
        sys.modules[name.removeprefix("tf_")] = sys.modules[name]


def optimizers():
    if os.environ.get("TF_USE_LEGACY_KERAS"):
        _prepare()
    warnings.simplefilter("ignore")
    o = importlib.import_module("tensorflow_addons").optimizers

    def sgd():
        return keras.optimizers.legacy.SGD(0.1, momentum=0.5)

    cases = {
        "LAMB": lambda: o.LAMB(0.01),
        "NovoGrad": lambda: o.NovoGrad(0.01),
        "LazyAdam": lambda: o.LazyAdam(0.01),
        "AdamW": lambda: o.AdamW(0.01, 0.01),
        "SGDW": lambda: o.SGDW(0.01, 0.1, momentum=0.5),
        "MovingAverage": lambda: o.MovingAverage(sgd()),
        "SWA": lambda: o.SWA(sgd()),
        "Lookahead": lambda: o.Lookahead(sgd()),
        "RectifiedAdam": lambda: o.RectifiedAdam(0.01),
        "Yogi": lambda: o.Yogi(0.01),
    }
    tolerance = keras_modes.ADAM_TOLERANCE
    modes = {name: keras_modes.Mode(make, tolerance=tolerance) for name, make in cases.items()}
    report(differences=keras_modes.check(modes))
