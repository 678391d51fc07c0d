"""Adasum and the compressors, by their properties and against their error bounds."""

import pytest
from bodies import adasum_compression


@pytest.mark.parametrize("ranks", [3, pytest.param(4, marks=pytest.mark.thorough)])
def test_adasum(job, ranks):
    """Orthogonal gradients add, parallel ones average, any number of ranks, 16 bits."""
    job(adasum_compression.adasum, ranks).check(ranks)


def test_compression(job):
    """Every bound, in every way to run; nothing is lost by top-k; training."""
    job(adasum_compression.compression, 3).check(3)


def test_between_nodes(job):
    """Adasum, int8 and top-k where MPI carries the bytes."""
    job(adasum_compression.between_nodes, 4, env={"SMDDP_NODES": "2"}).check(4)


def test_topk_under_loss_scaling(job):
    """A loss scale that grows, and shrinks after an overflow, loses and doubles nothing."""
    job(adasum_compression.topk_under_loss_scaling, 2).check(2)
