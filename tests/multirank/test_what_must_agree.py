"""Each property that ranks compare differs on one of them, which is an error on all.

ARCHITECTURE.md lists them.
"""

import pytest
from bodies import what_must_agree


@pytest.mark.parametrize("nodes", [1, 2])
def test_explicit_collectives(job, nodes):
    """Eagerly, in a node and between nodes."""
    env = {"SMDDP_NODES": str(nodes)}
    results = job(what_must_agree.explicit, 2, env=env, timeout=120).check(2)
    assert results[0]["checked"] > 40


@pytest.mark.parametrize("way", ["function", "jit"])
def test_gradients(job, way):
    """Plans and what goes one by one."""
    job(what_must_agree.gradients(way), 2, timeout=120).check(2)


def test_compiled_collectives(job):
    """Custom calls of XLA."""
    job(what_must_agree.compiled, 2, timeout=120).check(2)


def test_passes_of_optimizers(job):
    """How many passes an optimizer adds up is in its plan."""
    job(what_must_agree.passes, 2, timeout=60).check(2)
