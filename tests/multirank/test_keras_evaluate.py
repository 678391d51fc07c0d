"""What evaluate(), predict() and callbacks make of steps, shuffles and second calls."""

import pytest
from bodies import keras_evaluate
from conftest import KERASES, on_ranks


@on_ranks("keras_job", KERASES, 2, 3)
def test_steps(keras_job, ranks):
    """They count batches of all data: of datasets, also endless ones, of sequences and arrays."""
    keras_job(keras_evaluate.steps, ranks).check(ranks)


@on_ranks("keras_job", KERASES, 2, 3)
def test_shuffled(keras_job, ranks):
    keras_job(keras_evaluate.shuffled, ranks).check(ranks)


@on_ranks("keras_job", KERASES, 2)
def test_own_methods(keras_job, ranks):
    keras_job(keras_evaluate.own_methods, ranks).check(ranks)


@on_ranks("keras_job", KERASES, 2, 3)
def test_composite_outputs(keras_job, ranks):
    keras_job(keras_evaluate.composite_outputs, ranks).check(ranks)


@on_ranks("keras_job", KERASES, 2)
def test_interrupted(keras_job, ranks):
    keras_job(keras_evaluate.interrupted, ranks).check(ranks)


@pytest.mark.parametrize("validates", [False, True])
@on_ranks("keras_job", KERASES, 2)
def test_called_in_an_epoch(keras_job, ranks, validates):
    keras_job(keras_evaluate.called_in_an_epoch(validates), ranks).check(ranks)


@on_ranks("keras_job", KERASES, 2)
def test_warm_up_again(keras_job, ranks):
    keras_job(keras_evaluate.warm_up_again, ranks).check(ranks)


def test_automatic_steps_per_execution(keras2_job):
    keras2_job(keras_evaluate.automatic_steps_per_execution, 2).check(2)


@on_ranks("keras_job", KERASES, 2)
def test_own_accumulation(keras_job, ranks):
    keras_job(keras_evaluate.own_accumulation, ranks).check(ranks)


@on_ranks("keras_job", KERASES, 1)
def test_schedule_without_init(keras_job, ranks):
    keras_job(keras_evaluate.schedule_without_init, ranks).check(ranks)
