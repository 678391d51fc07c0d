"""Second derivatives through collectives, as eager ops, in functions and in compiled ones."""

from bodies import second_derivatives
from conftest import PYTHONS, on_ranks


@on_ranks("python", PYTHONS, 2, 3)
def test_of_averages(job, python, ranks):
    job(second_derivatives.of_averages(), ranks, python=python, timeout=90).check(ranks)
