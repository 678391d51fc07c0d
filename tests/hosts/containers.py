"""Jobs in containers of docker/Dockerfile's image (`make test-containers`).

It is built before, since that takes minutes: `podman build -f docker/Dockerfile -t smddp_tf .`, or
docker. SMDDP_TEST_IMAGE names another one. Without an engine or the image the tests skip.
"""

import os
import shutil
import subprocess
import time
import uuid

import pytest

IMAGE = os.environ.get("SMDDP_TEST_IMAGE", "smddp_tf")
ENGINE = next(filter(shutil.which, ("podman", "docker")), None)
SUM = """
import os, sys, time
import tensorflow as tf
import smddp_tf as hvd

hvd.init()
total = int(hvd.allreduce(tf.constant(hvd.rank() + 1), op=hvd.Sum))
print("sum", total, "uid", os.getuid(), flush=True)
while len(sys.argv) > 1:
    hvd.allreduce([1.0])
"""


def why_not() -> str:
    """Why there can be no container of the image; "" if there can."""
    if ENGINE is None:
        return "neither podman nor docker on PATH"
    words = [ENGINE, "run", "--rm", IMAGE, "true"]
    if ENGINE == "podman":
        words.insert(2, "--pull=never")
    tried = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    return f"{' '.join(words)}: {tried.stderr.strip()}" if tried.returncode else ""


@pytest.fixture(scope="module", autouse=True)
def _needs_image():
    reason = why_not()
    if reason:
        pytest.skip(reason)


def run(options, words) -> tuple:
    """(exit code, output) of a new container."""
    command = [ENGINE, "run", "--rm", *options, IMAGE, *words]
    joined = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    ended = subprocess.run(command, **joined, timeout=180, check=False)
    return ended.returncode, ended.stdout


def test_the_default_command():
    """Trains the example on 2 ranks."""
    code, output = run([], [])
    assert code == 0, output[-4000:]
    assert "all 2 ranks hold the same weights" in output


@pytest.mark.parametrize(
    ("options", "uid"),
    [
        ([], 1000),
        (["--user", "0"], 0),
        (["--user", "12345:0"], 12345),
        (["--shm-size", "1m"], 1000),
        (["--cpus", "1"], 1000),
        (["--read-only", "--tmpfs", "/tmp"], 1000),
    ],
)
def test_ranks_add(options, uid):
    """On 4 ranks, with more of them than cores if need be."""
    words = ["smddprun", "-np", "4", "--no-tag-output", "python", "-c", SUM]
    code, output = run(options, words)
    assert code == 0, output[-4000:]
    assert output.count(f"sum 10 uid {uid}\n") == 4, output[-4000:]


def test_the_doctor():
    """Has nothing to complain of in a container with the engine's defaults."""
    code, output = run([], ["python", "-m", "smddp_tf.doctor"])
    assert code == 0, output
    assert "a job can run" in output
    assert "/dev/shm has" not in output
    assert "node 0" in output
    assert "ranks 0 and 1: shared memory" in output


@pytest.mark.parametrize("launcher", ["mpirun --bind-to none", "smddprun"])
def test_stopping(launcher):
    """The launcher is process 1 and ends the job, before the engine kills it."""
    name = f"smddp-test-{uuid.uuid4().hex[:8]}"
    words = [*launcher.split(), "-np", "2", "python", "-c", SUM, "forever"]
    subprocess.run([ENGINE, "run", "-d", "--name", name, IMAGE, *words], check=True, timeout=60)
    try:
        deadline = time.monotonic() + 90
        while "sum 3" not in (said := logs(name)):
            assert time.monotonic() < deadline, said[-4000:]
            time.sleep(0.5)
        subprocess.run([ENGINE, "stop", "-t", "30", name], check=True, timeout=60)
        asked = [ENGINE, "inspect", "-f", "{{.State.ExitCode}}", name]
        code = subprocess.run(asked, capture_output=True, check=True, timeout=30).stdout
        assert int(code) not in (0, 137), logs(name)[-4000:]
    finally:
        subprocess.run([ENGINE, "rm", "-f", name], check=False, timeout=60)


def logs(name) -> str:
    """What a container has printed."""
    joined = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run([ENGINE, "logs", name], **joined, timeout=30, check=False).stdout
