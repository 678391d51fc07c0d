"""Collectives in functions of tf.data, whose threads run them beside the training loop."""

import re

import pytest
from bodies import datasets


@pytest.mark.parametrize("kind", ["generator", "numpy_function", "py_function", "map", "one call"])
def test_beside_the_loop(job, kind):
    """Sums of elements, and of the loop, are those of the same element and step on all ranks."""
    job(datasets.beside_the_loop(kind=kind), 2).check(2)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_function_beside_the_loop(job, python, compiled):
    """Neither takes the other's sums, nor waits for it: XLA locks what keeps calls in order."""
    env = {"SMDDP_TIMEOUT_SECONDS": "20"}
    body = datasets.function_beside_the_loop(compiled)
    job(body, 2, python=python, env=env).check(2)


def test_two_lambdas(job, python):
    job(datasets.two_lambdas, 2, python=python).check(2)


def test_in_parallel(job, python):
    """A collective in a parallel function is refused where the dataset is made."""
    job(datasets.in_parallel, 2, python=python).check(2)


def test_python_in_parallel(job):
    """What cannot be seen then ends the job when two elements' collectives meet."""
    result = job(datasets.python_in_parallel, 2)
    assert not result.timed_out and result.returncode != 0
    told = r"two threads run allreduce .*_sum.* at the same time.* without num_parallel_calls"
    assert sorted(result.results) == [0, 1], result.output[-4000:]
    for rank, found in result.results.items():
        assert re.search(told, found["text"]), found
        assert re.search(rf"rank {rank}\] error: .*{told}", result.output), result.output[-4000:]
