"""What ranks do in test_keras.py."""

import pickle
import warnings

import keras_modes
import numpy as np
import tensorflow as tf
from harness import OUT, rank, report, size

import smddp_tf.keras as hvd

keras = tf.keras


def modes(names=None):
    """Those of keras_modes.py with these names, or all."""
    report(differences=keras_modes.run(names))


def _train_with_overflows(passes):
    """Returns the loss scale, and the number of updates."""
    sgd = keras.optimizers.SGD(0.1)
    keras.utils.set_random_seed(3)
    model = keras_modes.dense_model()
    optimizer = hvd.DistributedOptimizer(sgd, backward_passes_per_step=passes)
    model.compile(optimizer, keras_modes.loss_object())
    steps, batch = 20, 4
    rows = np.random.RandomState(rank).randn(steps * batch, keras_modes.FEATURES)
    if rank == 1:
        rows[3 * batch] = rows[11 * batch] = np.inf
    options = {"batch_size": batch, "shuffle": False, "verbose": 0}
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    y = np.arange(steps * batch) % 5
    model.fit(rows.astype("float32"), y, callbacks=[broadcast], **options)
    outer = model.optimizer
    scale = getattr(outer, "dynamic_scale", None)
    scale = outer.loss_scale if scale is None else scale
    keras_modes.assert_equal_on_all_ranks(model, passes)
    assert all(np.isfinite(w).all() for w in model.get_weights())
    return float(tf.convert_to_tensor(scale)), int(tf.convert_to_tensor(outer.iterations))


def overflows():
    keras.mixed_precision.set_global_policy("mixed_float16")
    report(scales=[_train_with_overflows(1), _train_with_overflows(2)])


def _fit(mode, model):
    first = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    mode.fit(model, keras_modes.local_slice(), keras_modes.BATCH // size, first)


def saves():
    """Leaves model.keras, and the weights that come of training on."""
    mode = keras_modes.Mode(lambda: keras.optimizers.Adam(0.01))
    model = mode.make(hvd.DistributedOptimizer(mode.optimizer()))
    _fit(mode, model)
    if rank == 0:
        model.save(str(OUT / "model.keras"))
    hvd.barrier()
    _fit(mode, model)
    if rank == 0:
        (OUT / "want.pickle").write_bytes(pickle.dumps(model.get_weights()))
    report(iterations=int(tf.convert_to_tensor(model.optimizer.iterations)))


def resumes():
    model = hvd.load_model(str(OUT / "model.keras"))
    assert int(tf.convert_to_tensor(model.optimizer.iterations)) == 12
    assert abs(float(tf.convert_to_tensor(model.optimizer.learning_rate)) - 0.01) < 1e-9
    _fit(keras_modes.Mode(), model)
    keras_modes.assert_equal_on_all_ranks(model, "resumed")
    want = pickle.loads((OUT / "want.pickle").read_bytes())
    pairs = zip(want, model.get_weights(), strict=True)
    difference = max(float(np.abs(a - b).max()) for a, b in pairs)
    assert difference < keras_modes.ADAM_TOLERANCE, difference
    report(difference=difference)


def lost_states():
    """load_model() says where a file of Keras 2 has no state of the optimizer; else it has one."""
    kinds = keras.optimizers
    scaled = keras.mixed_precision.LossScaleOptimizer
    cases = {
        "legacy.keras": (kinds.legacy.Adam(0.01), "save as .h5"),
        "legacy.h5": (kinds.legacy.Adam(0.01), ""),
        "scaled.keras": (scaled(kinds.Adam(0.01)), ""),
        "scaled.h5": (scaled(kinds.Adam(0.01)), "save as .keras"),
        "scaled_legacy.keras": (scaled(kinds.legacy.Adam(0.01)), "save as .h5"),
        "scaled_legacy.h5": (scaled(kinds.legacy.Adam(0.01)), ""),
        "plain.h5": (kinds.Adam(0.01), ""),
    }
    for name, (optimizer, advice) in cases.items():
        mode = keras_modes.Mode()
        model = mode.make(hvd.DistributedOptimizer(optimizer))
        _fit(mode, model)
        path = str(OUT / f"{rank}-{name}")
        model.save(path)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loaded = hvd.load_model(path)
        found = [str(one.message) for one in caught if "begin anew" in str(one.message)]
        assert [advice in one for one in found] == [True] * bool(advice), (name, found)
        steps = int(tf.convert_to_tensor(loaded.optimizer.iterations))
        assert (steps == 0) == bool(advice), (name, steps)
    report(done=True)
