"""Elastic jobs: ranks are killed and replaced, the others go on, nothing counts twice."""

import json
import os
import re
import sys

import launcher
import pytest

SCRIPT = launcher.ROOT / "tests/scripts/elastic_ranks.py"
WITH_MPIRUN = {"PATH": f"{launcher.BIN}:{os.environ['PATH']}"}
HOSTS = "#!/bin/sh\necho localhost:3\n"


def train(tmp_path, *words, options=(), python=None, script=SCRIPT, **settings):
    """(exit code, output, what the ranks that ended well have left, by slot) of the script."""
    command = [sys.executable, "-m", "smddp_tf.launch", "-np", 3, "--min-np", 1, *options]
    command += [*launcher.warm_python(python, WITH_MPIRUN), script, tmp_path, *words]
    code, output, timed_out = launcher.run_command(
        command, timeout=200, env={**WITH_MPIRUN, **settings}
    )
    assert not timed_out, output[-6000:]
    results = tmp_path / "results"
    lines = results.read_text().splitlines() if results.exists() else []
    return code, output, {one["slot"]: one for one in map(json.loads, lines)}


def test_a_rank_is_killed(tmp_path):
    """The others go on in their processes, without a second trace; each sample counts once."""
    code, output, found = train(tmp_path, "loop", "1@7")
    assert code == 0, output[-6000:]
    assert sorted(found) == [0, 2], output[-6000:]
    assert all(one["once"] and one["traces"] == 1 for one in found.values()), found
    assert [one["sizes"] for one in found.values()] == [[3, 2], [3, 2]]
    assert "last collectives" not in output


def test_a_rank_is_stopped(tmp_path):
    """Long before SMDDP_TIMEOUT_SECONDS it is given up, and killed."""
    code, output, found = train(tmp_path, "loop", "1=7", options=["--fence-after", 2])
    assert code == 0, output[-6000:]
    assert [one["sizes"] for one in found.values()] == [[3, 2], [3, 2]], output[-6000:]
    assert all(one["once"] for one in found.values()), found
    assert "rank 1 has stood still for 15 s" in output
    assert "is killed" in output


def test_a_rank_of_two_nodes_is_killed(tmp_path):
    """Between nodes the ranks of an elastic job are connected by TCP; the first of one is lost."""
    code, output, found = train(tmp_path, "loop", "0@7", SMDDP_NODES="2")
    assert code == 0, output[-6000:]
    assert sorted(found) == [1, 2], output[-6000:]
    assert all(one["once"] and one["traces"] == 1 for one in found.values()), found
    assert [one["sizes"] for one in found.values()] == [[3, 2], [3, 2]]


def test_one_rank_is_left(tmp_path):
    """Rank 0 is killed before it calls the training, and one more within it."""
    code, output, found = train(tmp_path, "loop", "0@-1", "2@8")
    assert code == 0, output[-6000:]
    assert list(found) == [1], output[-6000:]
    assert found[1]["once"], found
    assert found[1]["traces"] == 1
    assert found[1]["sizes"] == [2, 1]


@pytest.mark.every_version
@pytest.mark.parametrize(
    ("how", "python"), [("fit", "tf2.15"), ("samples", "tf2.21")], indirect=["python"]
)
def test_a_killed_rank_is_replaced(tmp_path, how, python):
    """fit() has the weights of one process at the end: one rank killed, one come."""
    script = tmp_path / "hosts.sh"
    script.write_text(HOSTS)
    script.chmod(0o755)
    options = ["--host-discovery-script", script]
    code, output, found = train(tmp_path, how, "0@7", "3<2", "3+9", options=options, python=python)
    assert code == 0, output[-6000:]
    assert sorted(found) == [1, 2, 3], output[-6000:]
    assert all(one["error"] < 1e-6 for one in found.values()), found
    assert found[1]["sizes"] == found[2]["sizes"] == [3, 2, 3]
    assert found[1]["resets"] == [2, 3]
    assert found[3]["sizes"] == [3]
    assert found[3]["resets"] == []
    assert found[3]["first"] == [2, 3], "a newcomer is not rank 0 while it waits"
    if how == "fit":  # the last commit was just before step 7, and nine steps were done at the end
        again, later = [[0, 0], [1, 2], [1, 4]], [[1, 4]]
        was_there, new = found[1]["positions"], found[3]["positions"]
        assert was_there == {"reset": again[1:], "call": again} == found[2]["positions"]
        assert new == {"reset": [], "call": later}


@pytest.mark.parametrize("word", ["1@7", "1-7"])
def test_too_few_are_left_for_a_while(tmp_path, word):
    """Who is left waits for a newcomer, and both begin with the same state, however one went."""
    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\necho localhost:2\n")
    script.chmod(0o755)
    options = ["-np", 2, "--min-np", 2, "--host-discovery-script", script]
    code, output, found = train(tmp_path, "loop", word, options=options)
    assert code == 0, output[-6000:]
    assert sorted(found) == [0, 2], output[-6000:]
    assert all(one["once"] and one["traces"] == 1 for one in found.values()), found
    assert (found[0]["sizes"], found[2]["sizes"]) == ([2, 2], [2])


@pytest.mark.tf_keras
@pytest.mark.every_version
@pytest.mark.parametrize(
    ("how", "keras_job"),
    [("loop", "keras3"), ("loop", "keras2"), ("fit", "tf_keras")],
    indirect=["keras_job"],
)
def test_a_script_for_horovod(tmp_path, how, keras_job):
    """Unedited, on each Keras: one rank is killed, and the other goes on with the one that comes.

    The loop goes on at its last commit, after which it does as many steps as at first.
    """
    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\necho localhost:2\n")
    script.chmod(0o755)
    env = {**WITH_MPIRUN, **keras_job.env}
    command = [sys.executable, "-m", "smddp_tf.launch", "-np", 2, "--min-np", 2]
    command += ["--host-discovery-script", script, *launcher.warm_python(keras_job.python, env)]
    command += ["-m", "smddp_tf.compat", launcher.ROOT / "tests/scripts/horovod_elastic.py", how]
    code, output, timed_out = launcher.run_command(command, timeout=200, env=env)
    assert (code, timed_out) == (0, False), output[-6000:]
    done = {"loop": 6 + 9, "fit": 3}[how]
    assert f"slot 0 sizes [2, 2] done {done} equal True" in output, output[-6000:]
    assert f"slot 2 sizes [2] done {done} equal True" in output, output[-6000:]


def test_process_sets_a_notice_and_the_learning_rate(tmp_path):
    """A set lives while its ranks do; who gets SIGTERM leaves after its step; all see the size."""
    script = tmp_path / "hosts.sh"
    # Two when slot 2 leaves; by itself this would have the last rank leave, which is slot 3.
    script.write_text(f"""#!/bin/sh
cd {tmp_path}
[ -e two ] || exec echo localhost:3
echo localhost:2
[ -e answer1 ] && touch answer2 || touch answer1
""")
    script.chmod(0o755)
    options = ["--host-discovery-script", script]
    code, output, found = train(
        tmp_path, options=options, script=launcher.ROOT / "tests/scripts/elastic_sets.py"
    )
    assert code == 0, output[-6000:]
    assert sorted(found) == [0, 3], output[-6000:]
    rate = {size: pytest.approx(0.3 * (1 + (size - 1) / 5) / size) for size in (2, 3)}
    seen = [
        [3, [0, 2], [1], rate[3]],
        [2, [0, 1], None, rate[2]],
        [3, [0, 1], None, rate[3]],
        [2, None, None, rate[2]],
    ]
    assert (found[0]["seen"], found[3]["seen"]) == (seen, seen[2:])
    first = found[3]["steps"][0]
    steps = [*range(16), *range(first, 16)]
    assert found[0]["steps"] + found[3]["steps"] == steps and 4 <= first <= 8, "none is redone"
    assert (found[0]["total"], found[0]["traces"]) == (12 * (1 + 3), 1)
    for one in found.values():
        assert "process set [0, 1] has ended: rank 1 of it left the job" in one["errors"][0]
        assert "process set [1] has ended: rank 1 of it left the job" in one["errors"][1]
    assert "rank 1 (slot 2) got SIGTERM, and leaves when the ranks next commit" in output
    assert "slot 2) was lost" not in output
    assert "slot 2) ended with" not in output


def test_fit_before_run_and_in_resets(tmp_path):
    """They are alone there: a newcomer, who runs no reset callbacks, and those that were there."""
    script = tmp_path / "hosts.sh"
    script.write_text(HOSTS)
    script.chmod(0o755)
    options = ["--host-discovery-script", script]
    code, output, found = train(tmp_path, "first", "1@7", "3<2", "3+9", options=options)
    assert code == 0, output[-6000:]
    assert sorted(found) == [0, 2, 3], output[-6000:]
    assert [one["epoch"] for one in found.values()] == [4, 4, 4]
    assert found[0]["resets"] == found[2]["resets"] == [2, 3]


def test_a_fault_of_the_script(tmp_path):
    """Where one rank raises, the others go on; where all do, the job ends with its traceback."""
    code, output, found = train(tmp_path, "loop", "2!7")
    assert code == 0, output[-6000:]
    assert [one["sizes"] for one in found.values()] == [[3, 2], [3, 2]]
    assert "a fault of the script in step 7" in output
    code, output, found = train(tmp_path, "loop", "all!7")
    assert code != 0
    assert "a fault of the script in step 7" in output
    assert "go on as epoch" not in output, output[-6000:]


def faulty(tmp_path, fault, ranks, **settings):
    """(exit code, output, steps at which the training has begun) of elastic_faults.py."""
    hosts = tmp_path / "hosts.sh"
    hosts.write_text(f"#!/bin/sh\necho localhost:$(cat {tmp_path}/ranks)\n")
    hosts.chmod(0o755)
    (tmp_path / "ranks").write_text(str(ranks))
    command = [sys.executable, "-m", "smddp_tf.launch", "-np", ranks, "--min-np", ranks]
    command += ["--max-np", 2, "--host-discovery-script", hosts]
    command += launcher.warm_python(None, WITH_MPIRUN)
    command += [launcher.ROOT / "tests/scripts/elastic_faults.py", tmp_path, fault]
    code, output, timed_out = launcher.run_command(
        command, timeout=200, env={**WITH_MPIRUN, **settings}
    )
    assert not timed_out, output[-6000:]
    return code, output, [int(step) for step in re.findall(r"begins at step (\d+)", output)]


@pytest.mark.parametrize("kept", [False, True])
def test_who_had_the_state_is_lost(tmp_path, kept):
    """Newcomers do not begin anew in silence: they take up the last commit, or the job ends."""
    commits = str(tmp_path / "commits") if kept else ""
    code, output, begun = faulty(tmp_path, "reset", 1, SMDDP_COMMITS=commits)
    assert begun[0] == 0 and "a fault of the reset callback" in output, output[-6000:]
    if kept:
        assert code == 0 and min(begun[1:]) >= 19, output[-6000:]
        assert "ended at step 60" in output
    else:
        assert code != 0 and len(begun) == 1, output[-6000:]
        assert "all ranks that had the state of the training are lost" in output


def test_a_fault_that_comes_again(tmp_path):
    """A rank raises in the same step, whoever it is: it is not replaced for ever."""
    code, output, begun = faulty(tmp_path, "rank", 2)
    assert code == 1, output[-6000:]
    assert begun == [0] * 2 + [10] * 8, output[-6000:]
    assert "ranks have raised errors in 5 epochs without a commit in between" in output
    assert output.count("was lost") == 5, output[-6000:]
    assert "RuntimeError: a fault in step 10" in output


def test_a_late_rank(tmp_path):
    """Nobody is lost: the same ranks go on from the last commit, unless it happens again."""
    code, output, found = train(tmp_path, "loop", "1~7", SMDDP_TIMEOUT_SECONDS="3")
    assert code == 0, output[-6000:]
    assert sorted(found) == [0, 1, 2], output[-6000:]
    assert all(one["once"] and one["traces"] == 1 for one in found.values()), found
    assert [one["sizes"] for one in found.values()] == [[3, 3]] * 3
    code, output, found = train(tmp_path, "loop", "1~~7", SMDDP_TIMEOUT_SECONDS="3")
    assert code != 0
    assert "3 ranks go on as epoch 2" in output, output[-6000:]
    assert "go on as epoch 3" not in output, output[-6000:]
    assert "over SMDDP_TIMEOUT_SECONDS=3" in output
