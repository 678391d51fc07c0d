"""hvd.shard, through mpirun."""

from bodies import keras_data
from conftest import KERASES, on_ranks


@on_ranks("keras_job", KERASES, 2, 3)
def test_shard(keras_job, ranks):
    """Every rank gets the same number of elements, and none is lost that need not be."""
    keras_job(keras_data.shard, ranks).check(ranks)


@on_ranks("keras_job", KERASES, 2, 3)
def test_shuffled_for_all_ranks(keras_job, ranks):
    """Each epoch has each element once, in an order of its own; datasets, arrays and sequences."""
    keras_job(keras_data.shuffled, ranks).check(ranks)


def test_forms_of_data(keras_job):
    """Views of arrays, nests, strings and None; what cannot be divided is refused with advice."""
    keras_job(keras_data.forms, 2).check(2)
