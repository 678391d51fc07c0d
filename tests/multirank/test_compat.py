"""Scripts written for Horovod and for SageMaker's library, run without an edit."""

import re

import launcher
import pytest
from bodies import compat

SCRIPTS = launcher.ROOT / "tests" / "scripts"


def run(python, words, ranks=2, env=None, cwd=None):
    """Runs `python -m smddp_tf.compat WORDS`; returns the output."""
    start = [*launcher.mpirun(ranks), *launcher.warm_python(python, env)]
    command = [*start, "-m", "smddp_tf.compat", *words]
    code, output, timed_out = launcher.run_command(command, timeout=120, env=env, cwd=cwd)
    assert (code, timed_out) == (0, False), output[-4000:]
    return output


def test_horovod_loop(python):
    """Arguments reach the script; weights are equal; also as a module, and on 3 ranks."""
    output = run(python, [SCRIPTS / "horovod_loop.py", "--steps", "-m"])
    assert output.count("equal True arguments ['--steps', '-m']") == 2, output[-3000:]
    output = run(python, ["-m", "horovod_loop", "x"], ranks=3, cwd=SCRIPTS)
    assert output.count("equal True arguments ['x']") == 3, output[-3000:]


def test_horovod_keras(python, tmp_path):
    """fit() with callbacks; the weights are equal and rank 0 has written."""
    env = {"OUTPUT": str(tmp_path), "HOROVOD_FUSION_THRESHOLD": "0"}
    output = run(python, [SCRIPTS / "horovod_keras.py"], env=env)
    assert output.count("equal True") == 2, output[-3000:]
    assert "learning rate warm-up is done" in output
    assert (tmp_path / "checkpoint-4.keras").exists()


def test_smddp_loop(python):
    """Its strict init, gradients by index, broadcasts in the first step."""
    output = run(python, [SCRIPTS / "smddp_loop.py"])
    assert len(re.findall(r"equal True init\(\) called more than once", output)) == 2, output[
        -3000:
    ]


@pytest.mark.parametrize("name", ["keras3", "keras2"])
def test_names_and_refusals(name, tmp_path):
    """Everything beside the API that scripts touch, and every refusal, in one process."""
    from conftest import KerasJob

    keras_job = KerasJob(name, tmp_path)
    reason = keras_job.why_not("tensorflow")
    if reason:
        pytest.skip(f"{name} is not here: {reason}")
    command = [keras_job.python, *launcher.script(compat.names, tmp_path)]
    code, output, _ = launcher.run_command(command, timeout=100)
    assert code == 0 and "all names" in output, output[-3000:]


def test_a_missing_script():
    """A sentence, not a traceback."""
    command = [launcher.BIN / "python", "-m", "smddp_tf.compat", "nowhere.py"]
    code, output, _ = launcher.run_command(command, timeout=60)
    assert code == 2 and "nowhere.py does not exist" in output


def test_the_parity_page_is_true():
    """docs/api-parity.md is what the code says now, and nothing of either API is missing."""
    command = [launcher.BIN / "python", launcher.ROOT / "docs/api_parity.py"]
    code, output, _ = launcher.run_command(command, timeout=60)
    page = output[output.index("# Every name of") :]
    assert code == 0
    assert page == (launcher.ROOT / "docs" / "api-parity.md").read_text(), "write it again"
    assert "| missing |" not in page


def test_worker_comm(job, python):
    """SageMaker's communicator of all ranks is mpi4py's; without mpi4py it says what to do."""
    job(compat.worker_comm, 2, python=python).check(2)
