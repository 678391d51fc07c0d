"""Local steps between exchanges of weights (sync_every), through mpirun."""

import pytest
from bodies import low_communication
from conftest import KERASES, on_ranks


@pytest.mark.tf_keras
@on_ranks("keras_job", KERASES, 2, 3)
def test_equals_synchronous_training(keras_job, ranks):
    """An exchange after each step by an outer SGD(1) is averaging gradients."""
    keras_job(low_communication.equals_synchronous_training, ranks).check(ranks)


@on_ranks("keras_job", KERASES, 2)
def test_local_steps(keras_job, ranks):
    """Rounds, fragments, passes and 8 bits follow the algorithm; mistakes are refused."""
    keras_job(low_communication.local_steps, ranks).check(ranks)


def test_another_number(keras3_job):
    """sync_every is compared."""
    keras3_job(low_communication.another_number, 2).check(2)


@on_ranks("keras_job", KERASES, 2)
def test_fit(keras_job, ranks):
    """fit() exchanges every third batch, before validation and at an epoch's end; files keep it."""
    keras_job(low_communication.fits, ranks).check(ranks)


def test_fit_with_a_loss_scale(keras3_job):
    """In mixed_float16 each rank scales its own losses, and exchanges also if it skips a step."""
    keras3_job(low_communication.fits(policy="mixed_float16"), 2).check(2)


def test_states_and_copies(keras3_job):
    """What elastic states and copies of an optimizer do with what ranks keep."""
    keras3_job(low_communication.states_and_copies, 2).check(2)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_exchanges_that_travel(keras3_job, alpha):
    """fragment_sync_delay: training goes on until an exchange arrives."""
    keras3_job(low_communication.travels(alpha=alpha), 2).check(2)
