"""Process sets: parts of a job that run collectives apart from each other, at the same time."""

import pytest
from bodies import process_sets


def test_every_collective(job, python):
    """In eager, graph and jit mode; who is not in a set is refused before anything is sent."""
    results = job(process_sets.every_collective, 3, python=python).check(3)
    assert results[2]["checks"] > results[0]["checks"] > 60


def test_gradients_outside_of_a_set(job, python):
    """Tapes and optimizers leave the gradients of other ranks as they are."""
    job(process_sets.own_gradients_outside, 2, python=python).check(2)


def test_between_nodes(job):
    """Sets within a node, across nodes, and with more ranks on one node than on the other."""
    job(process_sets.between_nodes, 4, env={"SMDDP_NODES": "2"}).check(4)


@pytest.mark.parametrize("nodes", [1, 2])
def test_overlapping_sets_at_once(job, python, nodes):
    """Threads use several sets, in another order on each rank, with one thread of TensorFlow's."""
    env = {"SMDDP_NODES": str(nodes)}
    results = job(process_sets.overlapping_sets_at_once, 4, python=python, env=env).check(4)
    assert results[0]["checks"] == 270


def test_two_models_in_one_job(job, python):
    """Two halves of the job train models of their own, in every mode."""
    job(process_sets.two_models, 4, python=python).check(4)
