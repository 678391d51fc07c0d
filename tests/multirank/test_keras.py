"""Keras training through mpirun: Keras 3, tf_keras on the same TensorFlow, and Keras 2."""

import textwrap

import launcher
import pytest

pytestmark = pytest.mark.tf_keras


def test_every_mode_equals_one_process(keras_job):
    """The equality test of keras_modes.py, on 2 ranks; equality.py has further features."""
    body = """
    import keras_modes
    report(differences=keras_modes.run())
    """
    results = keras_job(body, 2, timeout=240).check(2)
    assert len(results[0]["differences"]) >= 16


def test_modes_on_three_ranks(keras3_job):
    """Those modes in which the number of ranks matters."""
    body = """
    import keras_modes
    names = ["graph", "sum", "sparse", "groups and predivide", "two passes an update, summed"]
    report(differences=keras_modes.run(names))
    """
    keras3_job(body, 3, timeout=150).check(3)


def test_an_overflow_on_one_rank_is_skipped_by_all(keras_job):
    """mixed_float16, 20 steps: rank 1 alone meets inf in steps 3 and 11; also accumulating."""
    body = """
    import keras_modes
    keras.mixed_precision.set_global_policy("mixed_float16")
    def train(passes):
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.1), backward_passes_per_step=passes)
        keras.utils.set_random_seed(3)
        model = keras_modes.dense_model()
        model.compile(optimizer, keras_modes.loss_object())
        steps, batch = 20, 4
        rows = np.random.RandomState(rank).randn(steps * batch, keras_modes.FEATURES)
        if rank == 1:
            rows[3 * batch] = rows[11 * batch] = np.inf
        model.fit(rows.astype("float32"), np.arange(steps * batch) % 5, batch_size=batch,
                  shuffle=False, verbose=0,
                  callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
        outer = model.optimizer
        scale = getattr(outer, "dynamic_scale", None)
        scale = outer.loss_scale if scale is None else scale
        keras_modes.assert_equal_on_all_ranks(model, passes)
        assert all(np.isfinite(w).all() for w in model.get_weights())
        return float(tf.convert_to_tensor(scale)), int(tf.convert_to_tensor(outer.iterations))
    report(scales=[train(1), train(2)])
    """
    results = keras_job(body, 2, timeout=120).check(2)
    assert results[0] == results[1]
    for scale, _ in results[0]["scales"]:
        # Halved for each of the two overflows.
        assert scale == 2.0**15 / 4, results


def test_save_resume_and_plain_load(keras_job, tmp_path):
    """Saved on 2 ranks, continued on 1, 2 and 4; loaded in plain Keras without the library."""
    path = tmp_path / "model.keras"
    save = f"""
    import keras_modes, pickle
    mode = keras_modes.Mode(lambda: keras.optimizers.Adam(0.01))
    model = mode.make(hvd.DistributedOptimizer(mode.optimizer()))
    rows = keras_modes.own_part()
    first = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    mode.fit(model, rows, keras_modes.BATCH // size, first)
    if rank == 0:
        model.save({str(path)!r})
    hvd.barrier()
    mode.fit(model, rows, keras_modes.BATCH // size, first)
    if rank == 0:
        with open({str(tmp_path / "want.pickle")!r}, "wb") as file:
            pickle.dump(model.get_weights(), file)
    report(iterations=int(tf.convert_to_tensor(model.optimizer.iterations)))
    """
    assert keras_job(save, 2).check(2)[0]["iterations"] == 24
    resume = f"""
    import keras_modes, pickle
    model = hvd.load_model({str(path)!r})
    assert int(tf.convert_to_tensor(model.optimizer.iterations)) == 12
    assert abs(float(tf.convert_to_tensor(model.optimizer.learning_rate)) - 0.01) < 1e-9
    mode = keras_modes.Mode()
    mode.fit(model, keras_modes.own_part(), keras_modes.BATCH // size,
             [hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    keras_modes.assert_equal_on_all_ranks(model, "resumed")
    want = pickle.load(open({str(tmp_path / "want.pickle")!r}, "rb"))
    difference = max(float(np.abs(a - b).max()) for a, b in zip(want, model.get_weights()))
    assert difference < keras_modes.ADAM_TOLERANCE, difference
    report(difference=difference)
    """
    for ranks in (1, 2, 4):
        keras_job(resume, ranks).check(ranks)
    plain = f"""
    import sys
    sys.modules["smddp_tf"] = None
    import tensorflow as tf
    model = tf.keras.models.load_model({str(path)!r})
    assert type(model.optimizer).__module__.split(".")[0] in ("keras", "tf_keras")
    model.fit(tf.zeros([4, 12]), tf.zeros([4]), verbose=0)
    if hasattr(model, "export"):
        model.export({str(tmp_path / "served")!r})
    else:
        model.save({str(tmp_path / "served")!r})
    served = tf.saved_model.load({str(tmp_path / "served")!r})
    call = getattr(served, "serve", served)
    print("output", call(tf.zeros([2, 12])).shape)
    """
    script = tmp_path / "plain.py"
    script.write_text(textwrap.dedent(plain))
    command = [keras_job.python, script]
    code, output, _ = launcher.run_command(command, timeout=120, env=keras_job.env)
    assert code == 0 and "output (2, 5)" in output, output[-3000:]
