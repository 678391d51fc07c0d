"""Trainings written for Horovod's elastic API go on from their last commit."""

import os
import sys

import launcher
import pytest
from bodies import elastic

SCRIPT = launcher.ROOT / "tests/scripts/elastic.py"
WITH_MPIRUN = {"PATH": f"{launcher.BIN}:{os.environ['PATH']}"}


def train(tmp_path, how, python=None, ranks=2, restarts=0, commits=""):
    """(exit code, output, rank 0's notes) of the script."""
    words = [sys.executable, "-m", "smddp_tf.launch", "-np", ranks, "--max-restarts", restarts]
    words += [*launcher.warm_python(python, WITH_MPIRUN), SCRIPT, tmp_path, how]
    env = {**WITH_MPIRUN, "SMDDP_COMMITS": commits}
    code, output, timed_out = launcher.run_command(words, timeout=150, env=env)
    assert not timed_out, output[-6000:]
    return code, output, (tmp_path / "notes").read_text().splitlines()


@pytest.mark.every_version
@pytest.mark.parametrize(
    ("how", "python"), [("loop", "tf2.21"), ("fit", "tf2.15")], indirect=["python"]
)
def test_ranks_die_twice(tmp_path, how, python):
    """What is trained in three attempts has the weights of one without a failure, bit for bit."""
    code, output, notes = train(tmp_path, how, python, restarts=2)
    assert code == 0, output[-6000:]
    assert notes == ["0: 0, 0", "1: reset", "1: 1, 2", "2: reset", "2: 3, 0", "2: equal"]


def test_commits_of_a_job_that_failed(tmp_path):
    """They are kept, and a job that is told of them goes on from there, with more ranks too."""
    folder = tmp_path / "commits"
    code, output, _ = train(tmp_path, "loop", restarts=1, commits=str(folder))
    assert code == 137, output[-6000:]
    assert [one.name for one in folder.iterdir()] == ["state0.pickle"]
    code, output, notes = train(tmp_path, "loop", ranks=3, commits=str(folder))
    assert code == 0, output[-6000:]
    # Two ranks trained three of the epochs, so the weights are not those of three ranks.
    assert notes[-3:] == ["0: reset", "0: 3, 0", "0: other weights"]
    assert not folder.exists()


@pytest.mark.tf_keras
def test_states(keras_job, tmp_path):
    """What states refuse and restore, what their callbacks count, and where commits are."""
    keras_job(elastic.states(commits=str(tmp_path / "commits")), 2).check(2)


def test_a_commit_of_another_model(job, tmp_path):
    """It is an error on all ranks that names the variables, and so is a file of another kind."""
    results = job(elastic.other_model(commits=str(tmp_path / "commits")), 3).check(3)
    assert all("(3, 4)" in one["shape"] and "(3, 2)" in one["shape"] for one in results.values())
    assert all("cannot be read" in one["unreadable"] for one in results.values())
    assert len({one["shape"] for one in results.values()}) == 1
