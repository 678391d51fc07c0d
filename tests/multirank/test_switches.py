"""Scripts that change TensorFlow's or Keras's behavior for the whole process."""

from bodies import switches
from conftest import PYTHONS, on_ranks


@on_ranks("python", PYTHONS, 2, 3)
def test_v2_behavior_disabled(job, python, ranks):
    """tf.compat.v1.disable_v2_behavior(): collectives, compressors, sparse gradients."""
    job(switches.v2_behavior_disabled, ranks, python=python).check(ranks)


def test_bfloat16_everywhere(keras3_job):
    """keras.backend.set_floatx("bfloat16") with the callbacks that the docs recommend."""
    keras3_job(switches.bfloat16_everywhere, 2).check(2)


def test_numpy_rules(job, python):
    """experimental_enable_numpy_behavior(): seeds, collectives and gradients."""
    job(switches.numpy_rules, 2, python=python).check(2)
