"""Optimizers of other libraries, which have an apply_gradients() of their own, and rates."""

from bodies import keras_own_apply
from conftest import KERASES, on_ranks


@on_ranks("keras_job", KERASES, 2, 3)
def test_fit_equals_one_process(keras_job, ranks):
    """Those that hand gradients to other optimizers, and those that clip before they aggregate."""
    keras_job(keras_own_apply.equal_one_process, ranks).check(ranks)


def test_in_a_loop(keras_job):
    """The ranks' weights are equal, where nothing but the optimizer sees the gradients."""
    keras_job(keras_own_apply.by_hand, 2).check(2)


def test_accumulating(job):
    """On Keras 3, where only apply() knows when an update is due."""
    job(keras_own_apply.accumulating, 2).check(2)


def test_schedules_are_compared(keras_job):
    """By what they hold, not by where that lies in memory; also one without get_config()."""
    keras_job(keras_own_apply.schedules, 2).check(2)
