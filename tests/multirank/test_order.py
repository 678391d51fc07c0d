"""The order of collectives is right where TensorFlow's own is not: every kind of graph by itself.

Ranks are late at different places, so what is not ordered comes in different orders. Inputs are
such that exchanged collectives make a wrong sum. test_random_programs.py mixes all of these.
"""

from bodies import order, order_in_fit
from conftest import PYTHONS, on_ranks

# Longer than the ranks of a loaded machine may be apart when each traces a function.
ENV = {"SMDDP_TIMEOUT_SECONDS": "30"}

IN_GRAPHS = [
    "nested functions",
    "nested jit",
    "tape in nested functions",
    "tape in nested jit",
    "a loop, then another",
    "parallel iterations",
    "a Python loop",
    "cond, case and map_fn",
    "eager and graph",
    "branches in jit",
]


def test_in_functions(job):
    """Sums are right on two ranks of which now the one and now the other is late."""
    results = job(order.in_functions, 2, env=ENV, timeout=150).check(2)
    assert results[0] == results[1] == dict.fromkeys(IN_GRAPHS, 20)


@on_ranks("python", PYTHONS, 2, 3)
def test_nested_functions_everywhere(job, python, ranks):
    """The oldest TensorFlow too, and three ranks."""
    body = order.in_functions(["nested functions"])
    job(body, ranks, env=ENV, python=python, timeout=90).check(ranks)


def test_a_gan_of_functions(job):
    """Ranks keep the same weights, which are near those of one process with the whole batch."""
    results = job(order.a_gan_of_functions, 2, env=ENV, timeout=90).check(2)
    for result in results.values():
        assert result["difference"] < 1e-5  # float32, 10 steps, sums of 8 terms


def test_a_gan_in_fit_with_accumulation(job):
    """Two optimizers that reduce every second step, inside cond."""
    job(order_in_fit.a_gan_with_accumulation, 2, env=ENV, timeout=90).check(2)
