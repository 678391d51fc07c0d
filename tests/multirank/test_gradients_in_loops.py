"""Gradients through collectives in loops, conds and what is made of them (map_fn, scan)."""

import pytest
from bodies import gradients_in_loops
from conftest import PYTHONS, on_ranks
from test_order import ENV


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.thorough)])
@on_ranks("python", PYTHONS, 2, 3)
def test_through_forms(job, python, jit, ranks):
    body = gradients_in_loops.through_forms(None, jit)
    job(body, ranks, env=ENV, python=python, timeout=150).check(ranks)


@pytest.mark.thorough
@on_ranks("python", PYTHONS, 2, 3)
def test_second_derivatives(job, python, ranks):
    """Each form takes seconds to trace, and three ranks share the cores."""
    body = gradients_in_loops.second_derivatives(None)
    job(body, ranks, env={"SMDDP_TIMEOUT_SECONDS": "60"}, python=python, timeout=300).check(ranks)


@pytest.mark.parametrize("jit", [False, True])
@on_ranks("python", PYTHONS, 2)
def test_of_a_tape_in_a_loop(job, python, jit, ranks):
    body = gradients_in_loops.of_a_tape_in_a_loop(jit)
    job(body, ranks, env=ENV, python=python, timeout=90).check(ranks)
