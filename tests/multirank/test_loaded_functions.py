"""Functions of SavedModels keep their place among collectives."""

from bodies import loaded_functions
from conftest import PYTHONS, on_ranks
from test_order import ENV


@on_ranks("python", PYTHONS, 2, 3)
def test_between_collectives(job, python, ranks):
    body = loaded_functions.between_collectives()
    job(body, ranks, env=ENV, python=python, timeout=90).check(ranks)


def test_in_a_dataset(job):
    job(loaded_functions.in_a_dataset, 2, env=ENV, timeout=60).check(2)
