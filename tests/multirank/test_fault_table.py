"""A few runs of `make faults`: every kind of fault, and that a bad outcome is noticed."""

import sys

import launcher
import pytest

sys.path.insert(0, str(launcher.ROOT / "tests" / "faults"))

import run
import table

SEED = 1
RUNS = 12  # every fault, four of them twice


@pytest.mark.parametrize("number", range(RUNS))
def test_a_fault(number):
    """Survivors are told in time by name, the exit code says so, and nothing is left."""
    outcome = run.run_one(run.plan_of(SEED, number))
    line = run.line_of(number, outcome)
    again = f"tests/faults/run.py --seed {SEED} --only {number}"
    assert outcome.good(), f"{line}\nagain: {again}\n{outcome.output[-4000:]}"


def test_the_runs_cover_every_fault():
    """Also on two nodes, with two ranks and more, and with a process set."""
    plans = [run.plan_of(SEED, number) for number in range(RUNS)]
    assert {plan["fault"] for plan in plans} == set(run.FAULTS) == set(table.MEANING)
    assert {plan["nodes"] for plan in plans} == {1, 2}
    assert {plan["ranks"] for plan in plans} == {2, 3, 4}
    assert any(plan["process_set"] and plan["ranks"] > 2 for plan in plans)


def test_the_table_tells_what_is_wrong():
    """Each way in which an outcome is bad is counted in its column."""
    plan = {**run.plan_of(SEED, 0), "ranks": 2, "nodes": 1, "fault": "kill"}
    bad = [
        run.Outcome(plan, seconds=9.0),
        run.Outcome(plan, named=False, near=False, said=False),
        run.Outcome(plan, code_right=False),
        run.Outcome(plan, left=["process 1"]),
        run.Outcome(plan, problem="rank 1 went on"),
    ]
    assert not any(outcome.good() for outcome in bad)
    outcomes = [(i, outcome) for i, outcome in enumerate([*bad, run.Outcome(plan)])]
    text = table.report(outcomes, SEED, 60.0)
    assert "| kill | 2 | 1 | 6 | 0.00 | 9.00 | 5/6 | 5/6 | 5/6 | 5/6 | 5/6 | 5/6 | 5/6 |" in text
    assert "5 failures: 0, 1, 2, 3, 4." in text
