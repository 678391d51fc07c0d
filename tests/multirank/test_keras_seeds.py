"""hvd.set_random_seed, through mpirun."""

import pytest
from bodies import keras_seeds


@pytest.mark.tf_keras
def test_drawn(keras_job):
    """Weights and data order are equal on all ranks, dropout and augmentation are not."""
    results = keras_job(keras_seeds.drawn, 2).check(2)
    alone = keras_job(keras_seeds.drawn, 1).check(1)
    assert alone[0] == results[0]


def test_refused(keras3_job):
    """Seeds that differ by rank, or are no seeds, are refused on all ranks."""
    keras3_job(keras_seeds.refused, 2).check(2)
