"""Scripts that wrap both the tape and the optimizer, through mpirun."""

import pytest
from bodies import wrapped_twice
from conftest import KERASES, on_ranks


@pytest.mark.tf_keras
@on_ranks("keras_job", KERASES, 2, 4)
def test_each_gradient_is_reduced_once(keras_job, ranks):
    """As with Horovod, whose Keras optimizers reduce nothing in apply_gradients()."""
    keras_job(wrapped_twice.each_gradient_is_reduced_once, ranks).check(ranks)


def test_gradients_of_one_optimizer_in_two_calls(job):
    """A sum of sums would be too large."""
    job(wrapped_twice.gradients_of_one_optimizer_in_two_calls, 2).check(2)


def test_sums_of_tf1_optimizers(job):
    """Clipped, added up, only looked at, computed twice, applied in a branch."""
    job(wrapped_twice.sums_of_tf1_optimizers, 2).check(2)


@pytest.mark.tf_keras
def test_clipped_sums_of_a_tape(keras_job):
    """A Keras optimizer that is wrapped too leaves them as they are."""
    keras_job(wrapped_twice.clipped_sums_of_a_tape, 2).check(2)
