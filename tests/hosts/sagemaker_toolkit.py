"""SageMaker's own training toolkit starts our scripts on two hosts (`make test-sagemaker`).

The toolkit, Open MPI 4 and sshd are what an image would have, in .venv-sagemaker; the hosts are
namespaces. A job that succeeds takes over a minute, in which the toolkit sleeps: all run at once.
"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import textwrap

import numpy as np
import pytest
from sklearn.datasets import load_digits
from training_job import ROOT, training_job, why_not

ENVIRONMENT = ROOT / ".venv-sagemaker"
WHEELS = pathlib.Path(os.environ.get("SMDDP_TEST_WHEELS") or ROOT / "dist")
MPI = {"sagemaker_mpi_enabled": True, "sagemaker_mpi_custom_mpi_options": ""}
# What the SDK makes of {"smdistributed": {"dataparallel": {"enabled": True}}}.
DATAPARALLEL = {
    "sagemaker_distributed_dataparallel_enabled": True,
    "sagemaker_distributed_dataparallel_custom_mpi_options": "",
}
PER_HOST = "sagemaker_mpi_num_of_processes_per_host"
UNEQUAL = """
    import tensorflow as tf
    import smddp_tf as hvd

    hvd.init()
    hvd.allreduce(tf.ones([hvd.rank() + 2]), name="of another shape")
"""
RAISES = """
    import smddp_tf as hvd

    hvd.init()
    if hvd.rank() == 1:
        raise ValueError("the data are broken")
    hvd.allreduce([1.0], name="that waits")
"""


@pytest.fixture(scope="module", autouse=True)
def _needs_toolkit():
    reason = why_not(ENVIRONMENT)
    if not reason and not list(WHEELS.glob("smddp_tf-*.whl")):
        reason = f"no wheel in {WHEELS}; `make wheel` makes it"
    if reason:
        pytest.skip(reason)


def sources(folder, script=None) -> pathlib.Path:
    """The folder source_dir: the example or a script, and the wheel that requirements.txt names."""
    shutil.copytree(ROOT / "examples/sagemaker", folder)
    wheel = max(WHEELS.glob("smddp_tf-*.whl"), key=lambda path: path.stat().st_mtime)
    shutil.copy(wheel, folder)
    given = (folder / "requirements.txt").read_text()
    named = re.sub(r"^\./smddp_tf-\S+$", f"./{wheel.name}", given, flags=re.MULTILINE)
    assert wheel.name in named, given
    (folder / "requirements.txt").write_text(named)
    if script is not None:
        (folder / "train.py").write_text(textwrap.dedent(script))
    return folder


def run(folder, hyperparameters, script=None) -> dict:
    """A job from its start to the end of its first host, or of both if it succeeds."""
    digits = load_digits()
    (folder / "data").mkdir(parents=True)
    np.savez(folder / "data/digits.npz", x=digits.data / 16.0, y=digits.target)
    given = {**hyperparameters, "epochs": 3}
    source = sources(folder / "source", script)
    channels = {"training": folder / "data"}
    with training_job(ENVIRONMENT, source, given, channels) as job:
        codes = [job.wait(0, 300)]
        if codes[0] == 0:
            codes.append(job.wait(1, 120))
        kept = sorted(
            path.relative_to(job.files[0])
            for part in ("model", "output")
            for path in (job.files[0] / part).rglob("*")
            if path.is_file()
        )
        failure = job.files[0] / "output/failure"
        return {
            "codes": codes,
            "kept": list(map(str, kept)),
            "failure": failure.read_text() if failure.exists() else "",
            "output": job.output(0),
            "second": job.output(1),
        }


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Name -> what became of the job; all at once."""
    wanted = {
        "mpi": ({**MPI, PER_HOST: 2}, None),
        "dataparallel": (DATAPARALLEL, None),
        "unequal": ({**MPI, PER_HOST: 2}, UNEQUAL),
        "raises": (DATAPARALLEL, RAISES),
    }
    folder = tmp_path_factory.mktemp("jobs")
    with concurrent.futures.ThreadPoolExecutor(len(wanted)) as pool:
        running = {name: pool.submit(run, folder / name, *what) for name, what in wanted.items()}
        return {name: one.result() for name, one in running.items()}


@pytest.mark.parametrize(("name", "ranks"), [("mpi", 4), ("dataparallel", 2)])
def test_distributions(jobs, name, ranks):
    """The example trains on all ranks; the model and the success file are there, on both hosts."""
    job = jobs[name]
    assert job["codes"] == [0, 0], job["output"][-4000:] + job["second"][-2000:]
    assert "output/success" in job["kept"]
    assert "model/1/saved_model.pb" in job["kept"]
    assert job["failure"] == ""
    command = re.search(r"^mpirun .*$", job["output"], re.MULTILINE)[0]
    assert f"-np {ranks} " in command
    assert ("smddprun" in command) == (name == "dataparallel")
    assert "-m mpi4py train.py --epochs 3" in command
    losses = [float(text) for text in re.findall(r"accuracy=([\d.]+);", job["output"])]
    assert len(losses) >= 3, job["output"][-4000:]
    assert losses[-1] > 0.85, losses


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("unequal", "Mismatched collectives: the ranks requested different collectives"),
        ("raises", "ValueError: the data are broken"),
    ],
)
def test_scripts_that_fail(jobs, name, said):
    """The failure file has the message where DescribeTrainingJob shows it: 1,024 characters."""
    job = jobs[name]
    assert job["codes"] == [1], job["output"][-4000:]
    assert "output/success" not in job["kept"]
    assert said in job["failure"][:1024], job["failure"][:3000]
