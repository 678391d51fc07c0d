"""The names by which ranks compare collectives, where ranks do not trace the same."""

import pytest
from bodies import names


@pytest.mark.parametrize("name", ["loss", None])
def test_beside_a_smaller_set(job, name):
    job(names.beside_a_smaller_set(name), 3).check(3)


@pytest.mark.parametrize("name", ["loss", None])
def test_where_a_function_is_traced(job, name):
    job(names.where_it_is_traced(name), 2).check(2)


def test_datasets_beside_a_smaller_set(job):
    job(names.datasets_beside_a_smaller_set, 3).check(3)


def test_datasets_of_threads(job):
    job(names.datasets_of_threads, 2).check(2)


def test_a_name_given_once(job):
    job(names.scattered, 2).check(2)


def test_a_name_for_each_step(job, python):
    """2,000 names leave next to nothing behind, where TensorFlow would keep 36 KB of each."""
    for result in job(names.many_names, 2, python=python).check(2).values():
        assert result["grown"] < 10 << 20, result


def test_threads_that_differ_in_digits(job):
    """The names that a script gives to threads tell their collectives apart."""
    job(names.threads_that_differ_in_digits, 2).check(2)
