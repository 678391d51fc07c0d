"""smddprun's options for elastic jobs, and what its discovery script says."""

import math
import sys
import time

import pytest
from launch_line import OPEN_MPI_5, USER

from smddp_tf.launch import LaunchError, command, options
from smddp_tf.launch import __main__ as launch
from smddp_tf.launch.elastic import discovery
from smddp_tf.launch.elastic import options as elastic
from smddp_tf.launch.elastic.driver import Limits


def limits(words):
    """Those of a command line; None if the job is not elastic."""
    given = options.parse([*words.split(), sys.executable, "train.py"])
    job = launch.make_job(given, {"PATH": "/usr/bin:/bin"}, USER)
    return elastic.limits(given, job) if elastic.is_elastic(given) else None


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("-np 3", None),
        ("-np 3 --min-np 2", Limits(3, 2)),
        ("-np 3 --max-np 4", Limits(3, 3, 4)),
        ("-H a:1,b:2 --min-np 1", Limits(3, 1)),
        ("-H localhost:3 --min-num-proc 1 --max-num-proc 3", Limits(3, 1, 3)),
        ("-np 3 --host-discovery-script ./hosts.sh", Limits(3, 3, replaces=True)),
        (
            "-np 2 --min-np 1 --elastic-timeout 5 --fence-after 0.5 --reset-limit 0 "
            "--blacklist-cooldown-range 2 9",
            Limits(2, 1, math.inf, 5.0, 0.5, (2.0, 9.0), 0),
        ),
    ],
)
def test_limits(words, wanted):
    """Horovodrun's names, and its defaults where it has some."""
    assert limits(words) == wanted


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("-np 2 --min-np 3", "-np 2 is not between --min-np 3; "),
        ("-np 5 --min-np 1 --max-np 4", "-np 5 is not between --min-np 1 and --max-np 4; "),
        ("-np 2 --elastic-timeout 5", "--elastic-timeout is for elastic jobs; give --min-np"),
        ("-np 2 --slots-per-host 0", "--slots-per-host is for elastic jobs"),
        ("-np 2 --min-np 1 --srun", "an elastic job takes no --srun: mpirun starts each rank"),
        ("-np 2 --min-np 1 --sagemaker", "an elastic job takes no --sagemaker"),
        ("-np 2 --min-np 1 --cores-per-rank 1", "would take the same cores; leave it out"),
        ("-np 2 --min-np 1 --blacklist-cooldown-range 3 2", "3 2: its MIN is above its MAX"),
    ],
)
def test_refusals(words, sentence):
    """They say what to do instead."""
    with pytest.raises(LaunchError) as error:
        limits(words)
    assert sentence in str(error.value)


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon"])
def test_times(capsys, value):
    """Are above 0 and end."""
    with pytest.raises(SystemExit):
        limits(f"-np 2 --min-np 1 --elastic-timeout={value}")
    assert f"{value!r} is not a time in seconds, above 0" in capsys.readouterr().err


def test_the_command_of_a_slot():
    """One rank each, whose files are its own; a rank's tag would always be 0."""
    words = "-np 3 --min-np 2 --tag-output --output-filename out python train.py"
    given = options.parse(words.split())
    given.program[0] = sys.executable
    job = launch.make_job(given, {"PATH": "/usr/bin:/bin"}, USER)
    made = command.mpirun(elastic.of_a_slot(job, elsewhere=False), OPEN_MPI_5, USER)
    line = "mpirun -np 1 --map-by slot --bind-to none --output file=out/{slot}/rank"
    assert made == [*line.split(), sys.executable, "train.py"]
    made = command.mpirun(elastic.of_a_slot(job, elsewhere=True), OPEN_MPI_5, USER)
    at = made.index("-H")
    assert made[at : at + 2] == ["-H", "{slot-host}:1"]
    assert made[made.index("SMDDP_RENDEZVOUS_SECRET") - 1] == "-x", "by its name alone"


def discovered(tmp_path, body, slots=1):
    """(hosts that a script lists, what the user is told)."""
    script, said = tmp_path / "hosts.sh", []
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    found = discovery.Discovery([str(script)], slots, said.append)
    for _ in range(2):
        found.call()
        deadline = time.monotonic() + 20
        while (answer := found.answer()) is None and found.process_ids:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    return answer, said


@pytest.mark.parametrize(
    ("body", "slots", "wanted"),
    [
        ("echo localhost", 1, [("localhost", 1)]),
        ("echo localhost", 3, [("localhost", 3)]),
        ("echo here:4; echo; echo ' b '", 2, [("here", 4), ("b", 2)]),
        ("true", 1, []),
        ("echo here:0", 1, [("here", 0)]),
    ],
)
def test_what_a_script_says(tmp_path, body, slots, wanted):
    """Hosts with or without their slots; blank lines count for nothing."""
    assert discovered(tmp_path, body, slots) == (wanted, [])


@pytest.mark.parametrize(
    ("body", "answer", "sentence"),
    [
        ("echo here:2; exit 3", None, "it ended with exit code 3"),
        ("echo here:two", None, "'here:two' is not `host` or `host:slots`"),
        ("echo here slots=2", None, "'here slots=2' is not `host` or `host:slots`"),
    ],
)
def test_a_script_that_fails(tmp_path, body, answer, sentence):
    """The user is told once, and what it said before holds."""
    found, said = discovered(tmp_path, body)
    assert (found, len(said)) == (answer, 1)
    assert said[0] == f"--host-discovery-script {tmp_path}/hosts.sh: {sentence}"


def test_a_script_that_hangs(tmp_path, monkeypatch):
    """It is ended, with what it has started, and called again."""
    monkeypatch.setattr(discovery, "_LIMIT_SECONDS", 0.2)
    said = []
    found = discovery.Discovery(["sleep", "60"], 1, said.append)
    found.call()
    first = found.process_ids
    found.call()
    assert found.process_ids == first
    assert not said
    time.sleep(0.3)
    found.call()
    assert (found.process_ids, len(said)) == ([], 1)
    assert "it has not ended within 0.2 s" in said[0]
    found.call()
    assert found.process_ids
    found.end()


def test_no_such_script(tmp_path):
    """Is found out before anything starts."""
    (tmp_path / "hosts.sh").write_text("echo here\n")
    for script in ("no-such-script", tmp_path / "hosts.sh"):
        given = options.parse(["-np", "2", "--host-discovery-script", str(script), "x"])
        with pytest.raises(LaunchError, match=r"or it may not be executed \(chmod \+x\)"):
            elastic.discovery(given, {"PATH": "/usr/bin:/bin"})
