"""A few faults of `make elastic`, and that a bad outcome is noticed."""

import json
import sys
import types

import launcher
import pytest

sys.path.insert(0, str(launcher.ROOT / "tests" / "elastic"))

import storm
import storm_faults
import storm_hosts
import storm_numbers
import storm_table

SEED = 1
FAULTS = {
    "loop": [
        "kill",
        "kill in recovery",
        "kill in commit",
        "kill a newcomer inside",
        "stop and continue",
        "more ranks, fewer ranks",
    ],
    "fit": [
        "kill rank 0",
        "kill in sync",
        "kill at admission",
        "kill a newcomer at the door",
        "kill mpirun",
        "smddprun stops, kill",
    ],
}


@pytest.mark.parametrize("how", FAULTS)
def test_a_storm(how):
    """Six faults, one after the other: the others go on, and nothing counts twice."""
    # None of these faults is noticed by its time, so a busy machine need not matter.
    plan = {"seed": f"{SEED} {how}", "how": how, "cold": False, "patience": 5}
    plan["kinds"] = FAULTS[how]
    outcome = storm.run_one(plan)
    assert outcome.good(), f"{storm.line_of(0, outcome)}\n{outcome.output[-12000:]}"
    assert len(outcome.seconds) == len(FAULTS[how])
    assert outcome.steps > 0


@pytest.mark.parametrize("hosts", [False, True])
def test_two_jobs_have_all_kinds(hosts):
    """Every pair of jobs."""
    for number in (0, 2, 4):
        plans = [storm.plan_of(SEED, number + one, hosts) for one in range(2)]
        kinds = {kind for plan in plans for kind in plan["kinds"]}
        assert kinds == set(storm_hosts.HOST_KINDS if hosts else storm_faults.KINDS)
        assert {plan["how"] for plan in plans} == {"loop", "fit"}


def result_of(slot, epochs=2, **other):
    weights = [weight.tolist() for weight in storm_numbers.trained(epochs)]
    sums = storm_numbers.sums(epochs)
    result = {"slot": slot, "epochs": epochs, "sums": sums, "traces": [1, 1], "weights": weights}
    return {**result, **other}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({}, ""),
        ({"sums": storm_numbers.sums(3)}, "has sums"),
        ({"traces": [1, 2]}, "traced anew"),
        ({"weights": [[0.0]] * 4}, "different weights"),
        ({"slot": 7}, "have ended well"),
    ],
)
def test_what_is_wrong_is_noticed(tmp_path, other, said):
    """Each way in which a job's end is bad."""
    for number, result in enumerate([result_of(0), {**result_of(2), **other}]):
        (tmp_path / f"result{number}").write_text(json.dumps(result))
    job = types.SimpleNamespace(
        folder=tmp_path, members=lambda: [0, 2], lost=lambda: {1}, victims={1}
    )
    outcome = storm.Outcome(storm.plan_of(SEED, 0), seconds=[0.25])
    storm._judge(job, outcome)
    assert outcome.good() == (not said)
    assert said in " ".join(outcome.problems)
    text = storm_table.report([(5, outcome)], SEED, 60.0)
    assert "| 1 | 0.25 | 0.25 | 0.25 |" in text
    assert ("1 failures: jobs 5." if said else "0 failures.") in text


def test_a_loss_that_nothing_explains_is_noticed(tmp_path):
    """And weights that all ranks have, but one process would not."""
    for slot in (0, 2):
        result = result_of(slot, weights=[weight.tolist() for weight in storm_numbers.trained(1)])
        (tmp_path / f"result{slot}").write_text(json.dumps(result))
    job = types.SimpleNamespace(
        folder=tmp_path, members=lambda: [0, 2], lost=lambda: {1, 3}, victims={1}
    )
    outcome = storm.Outcome(storm.plan_of(SEED, 0))
    storm._judge(job, outcome)
    lost, weights = outcome.problems
    assert "slots [3] were lost" in lost
    assert "one process" in weights
