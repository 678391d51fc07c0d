"""Loops, layers, data and refusals of smddp_tf.keras, through mpirun."""

import re

import pytest
from bodies import keras_addons, keras_features
from conftest import KERASES, on_ranks


@on_ranks("keras_job", KERASES, 2, 3)
def test_custom_loops(keras_job, ranks):
    """apply_gradients in loops; copies; local variables; a GAN."""
    keras_job(keras_features.loops, ranks).check(ranks)


def test_refusals_and_warnings(keras_job):
    """Misuse is refused or warned about, by name, on every rank."""
    keras_job(keras_features.refusals, 2).check(2)


def test_uneven_data_without_shard(keras3_job):
    """Rank 0 is told what happened: that rank 1 is late, and then that it has ended."""
    env = {"SMDDP_STALL_WARNING_SECONDS": "1"}
    job = keras3_job(keras_features.uneven_data, 2, env=env)
    assert job.returncode != 0 and not job.timed_out
    assert re.search(r"stalled: waited 1\.\d s for rank 1 in .*out of data", job.output), job.output
    assert re.search(r"rank 1 .*has ended.*shard does\), or let it call join", job.output)
    assert "dense/kernel" in job.output


def test_process_sets_and_adasum(keras_job):
    """Two models in one job, and op=Adasum in an optimizer."""
    keras_job(keras_features.process_sets_and_adasum, 4).check(4)


@on_ranks("keras_job", KERASES, 2, 3)
def test_sync_batch_normalization(keras_job, ranks):
    """Outputs, gradients and moving averages are those of the joined batch."""
    keras_job(keras_features.sync_batch_normalization, ranks).check(ranks)


def test_tf1_optimizers(keras_job):
    """tf.compat.v1 optimizers, in graphs and eagerly."""
    keras_job(keras_features.tf1_optimizers, 2).check(2)


def test_passes_of_tf1_optimizers(keras_job):
    """backward_passes_per_step in sessions, functions and eagerly trains as one process does."""
    keras_job(keras_features.tf1_passes, 2).check(2)


@pytest.mark.thorough  # examples/tfa_lamb.py is tested anyway
def test_tensorflow_addons(legacy_keras_job):
    """LAMB and nine others of tensorflow-addons 0.23."""
    # Found, not imported: under tf_keras that takes what keras_addons.py does first.
    probe = "importlib.metadata as m; m.version('tensorflow-addons')"
    reason = legacy_keras_job.why_not(probe)
    if reason:
        pytest.skip(f"tensorflow-addons is not here: {reason}")
    results = legacy_keras_job(keras_addons.optimizers, 2).check(2)
    assert len(results[0]["differences"]) == 10
