"""Keras training through mpirun: Keras 3, tf_keras on the same TensorFlow, and Keras 2."""

import launcher
import pytest
from bodies import keras, without_the_library


@pytest.mark.tf_keras
def test_every_mode_equals_one_process(keras_job):
    """The equality test of keras_modes.py, on 2 ranks; equality.py has further features."""
    results = keras_job(keras.modes, 2, timeout=240).check(2)
    assert len(results[0]["differences"]) >= 16


@pytest.mark.thorough
def test_modes_on_three_ranks(keras3_job):
    """Those modes in which the number of ranks matters."""
    names = ["graph", "sum", "sparse", "groups and predivide", "two passes an update, summed"]
    keras3_job(keras.modes(names), 3, timeout=150).check(3)


def test_an_overflow_on_one_rank_is_skipped_by_all(keras_job):
    """mixed_float16, 20 steps: rank 1 alone meets inf in steps 3 and 11; also accumulating."""
    results = keras_job(keras.overflows, 2, timeout=120).check(2)
    assert results[0] == results[1]
    for scale, _ in results[0]["scales"]:
        # Halved for each of the two overflows.
        assert scale == 2.0**15 / 4, results


def test_save_resume_and_plain_load(keras_job, tmp_path):
    """Saved on 2 ranks, continued on 1, 2 and 4; loaded in plain Keras without the library."""
    assert keras_job(keras.saves, 2).check(2)[0]["iterations"] == 24
    for ranks in (1, 2, 4):
        keras_job(keras.resumes, ranks).check(ranks)
    script = launcher.script(without_the_library.loads_a_model, tmp_path)
    command = [keras_job.python, *script]
    code, output, _ = launcher.run_command(command, timeout=120, env=keras_job.env)
    assert code == 0 and "output (2, 5)" in output, output[-3000:]


def test_lost_states_of_optimizers(legacy_keras_job):
    """load_model() warns where a format of Keras 2 leaves the optimizer's state out."""
    legacy_keras_job(keras.lost_states, 2).check(2)
