"""Random programs give the right numbers on every rank, whatever is nested in what.

`make soak` runs a thousand. A failure prints the program and the command that runs it again.
"""

import sys

import launcher
import pytest

sys.path.insert(0, str(launcher.ROOT / "tests" / "programs"))

import generate
import soak

PROGRAMS = 28  # the fewest with each kind for each number of ranks


def _seeds(ranks: int) -> list:
    return [seed for seed in range(PROGRAMS) if soak.ranks_of(seed) == ranks]


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.thorough), 3, 4])
def test_random_programs(ranks):
    """Every number is right on every rank; each kind of program is among them."""
    seeds = _seeds(ranks)
    assert {generate.kind_of(seed) for seed in seeds} == set(generate.KINDS)
    ran, failures = [], []
    for program, problems, output in soak.run_on(seeds, ranks):
        ran.append(program.seed)
        if problems:
            failures.append(soak.describe(program, ranks, problems, output))
            break  # one is enough to look at; the soak counts them
    assert not failures, "\n".join(failures)
    assert ran == seeds


def test_a_seed_makes_one_program():
    """The same on every rank, and whatever was made before."""
    for seed in range(3 * len(generate.KINDS)):
        first, second = generate.generate(seed), generate.generate(seed)
        assert first == second
        assert min(first.counts) > 0
        compile(first.source, f"program{seed}", "exec")


def test_a_wrong_number_is_told(monkeypatch):
    """A program whose ranks exchange two sums fails, with its seed, site and numbers."""
    swapped = """
import tensorflow as tf
from support import check, merge, value

import smddp_tf as hvd


def run(step):
    turn = tf.constant(step + 1)
    first, second = (1, 2) if hvd.rank() == 0 else (2, 1)
    a = hvd.allreduce(value(first, turn), op=hvd.Sum)
    b = hvd.allreduce(value(second, turn), op=hvd.Sum)
    return merge(check(first, turn, a), check(second, turn, b))
"""
    program = generate.Program(5, "nested", swapped, [2, 2, 2])
    monkeypatch.setattr(soak, "generate", lambda seed: program)
    [(_, problems, output)] = soak.run_on([5], 2)
    text = soak.describe(program, 2, problems, output)
    assert [problem["wrong"]["wrong"] for problem in problems.values()] == [2, 2]
    # Site 1, turn 1: rank 0 gives 65, rank 1 has exchanged its 130 for 132.
    assert (problems[0]["wrong"]["wanted"], problems[0]["wrong"]["got"]) == (195.0, 197.0)
    assert problems[0]["wrong"]["site"] == 1
    assert "--seeds 5 --ranks 2" in text
