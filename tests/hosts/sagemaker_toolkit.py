"""Our scripts on two hosts, started as SageMaker starts them (`make test-sagemaker`).

By its own training toolkit, by the driver of version 3 of its SDK, and by smddprun in an image that
has neither. These, Open MPI 4 and sshd are what an image would have, in .venv-sagemaker; the hosts
are namespaces. A job of the toolkit takes over a minute, in which it sleeps.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import runpy
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
SMDDPRUN = "smddprun --sagemaker -np 4 python train.py --epochs 3"
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


def of_toolkit(folder, source, hyperparameters) -> dict:
    """What training_job() takes where the image has the toolkit."""
    return {"source": source, "hyperparameters": hyperparameters, "channels": {}}


def of_image(folder, source, hyperparameters) -> dict:
    """Where an image of one's own has the package and the script, and no toolkit."""
    install = f"{ENVIRONMENT}/bin/python -m pip install --quiet --no-index --no-deps *.whl"
    script = f"cd {source} && {install} && exec smddprun --sagemaker python train.py"
    given = {name: str(value) for name, value in hyperparameters.items()}  # the service keeps text
    return {"hyperparameters": given, "channels": {}, "command": ["sh", "-c", script]}


def of_sdk_3(folder, source, hyperparameters) -> dict:
    """What version 3 of the SDK puts into a container that has no toolkit.

    Its driver for MPI; or a command, of which it says that hyperparameters are no arguments.
    """
    given = dict(hyperparameters)
    options, command = given.pop("options", None), given.pop("command", None)
    distributed = {"process_count_per_node": 2, "mpi_additional_options": options}
    package = ENVIRONMENT / "sdk3/sagemaker"
    drivers = folder / "sm_drivers"
    shutil.copytree(package / "train/container_drivers", drivers)
    shutil.copy(package / "core/utils/install_requirements.py", drivers / "scripts")
    (drivers / "distributed.json").write_text(json.dumps(distributed))
    (drivers / "sourcecode.json").write_text(json.dumps({"entry_script": "train.py"}))
    templates = runpy.run_path(str(package / "train/templates.py"))
    requirements = templates["INSTALL_REQUIREMENTS"].format(requirements_file="requirements.txt")
    driver = templates["EXEUCTE_DISTRIBUTED_DRIVER"].format(
        driver_name="MPI", driver_script="mpi_driver.py"
    )
    if command is not None:
        driver = templates["EXECUTE_BASE_COMMANDS"].format(base_command=command)
    script = templates["TRAIN_SCRIPT_TEMPLATE"].format(
        working_dir="cd /opt/ml/input/data/code",
        install_requirements=requirements,
        execute_driver=driver,
    )
    (drivers / "sm_train.sh").write_text(script)
    return {
        "hyperparameters": {name: str(value) for name, value in given.items()},
        "channels": {"code": source, "sm_drivers": drivers},
        "command": ["bash", "/opt/ml/input/data/sm_drivers/sm_train.sh"],
    }


def run(folder, launched_by, hyperparameters, script=None) -> dict:
    """A job from its start to the end of its first host, or of both if it succeeds."""
    digits = load_digits()
    (folder / "data").mkdir(parents=True)
    np.savez(folder / "data/digits.npz", x=digits.data / 16.0, y=digits.target)
    source = sources(folder / "source", script)
    made = launched_by(folder, source, {**hyperparameters, "epochs": 3})
    made["channels"] = {"training": folder / "data", **made["channels"]}
    with training_job(ENVIRONMENT, **made) as job:
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
        shutil.copytree(job.files[0] / "model", folder / "model")
        return {
            "model": folder / "model/1",
            "codes": codes,
            "kept": list(map(str, kept)),
            "failure": failure.read_text() if failure.exists() else "",
            "output": job.output(0),
            "second": job.output(1),
        }


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Name -> what became of the job; four at once, of which the first ones sleep most."""
    wanted = {
        "mpi": (of_toolkit, {**MPI, PER_HOST: 2}),
        "dataparallel": (of_toolkit, DATAPARALLEL),
        "unequal": (of_toolkit, {**MPI, PER_HOST: 2}, UNEQUAL),
        "raises": (of_toolkit, DATAPARALLEL, RAISES),
        "image": (of_image, {"mpi_world_size": 4}),
        "image_raises": (of_image, {"mpi_world_size": 2}, RAISES),
        "sdk3": (of_sdk_3, {"options": ["-np", "4"]}),
        "sdk3_fault": (of_sdk_3, {"options": []}),
        "sdk3_smddprun": (of_sdk_3, {"command": SMDDPRUN}),
    }
    folder = tmp_path_factory.mktemp("jobs")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
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


def test_the_driver_of_sdk_3(jobs):
    """It trains on both hosts if -np is given; without, the script refuses to leave one idle."""
    job = jobs["sdk3"]
    assert job["codes"] == [0, 0], job["output"][-4000:] + job["second"][-2000:]
    assert "model/1/saved_model.pb" in job["kept"]
    command = re.search(r"^Executing command: mpirun .*$", job["output"], re.MULTILINE)[0]
    assert "--host algo-1:2,algo-2:2 -np 2 " in command  # of one host
    assert " -np 4 " in command.partition("-np 2 ")[2]
    assert "-m mpi4py train.py --epochs 3" in command
    losses = [float(text) for text in re.findall(r"accuracy=([\d.]+);", job["output"])]
    assert len(losses) == 3, job["output"][-4000:]
    assert losses[-1] > 0.85, losses
    fault = jobs["sdk3_fault"]
    assert fault["codes"] == [1], fault["output"][-4000:]
    assert "2 ranks run on 1 of the job's 2 hosts (algo-1, algo-2)" in fault["output"]
    assert "model/1/saved_model.pb" not in fault["kept"]


@pytest.mark.parametrize("name", ["image", "sdk3_smddprun"])
def test_smddprun_on_all_hosts(jobs, name):
    """The ranks that the hyperparameters or the command say train on both."""
    job = jobs[name]
    assert job["codes"] == [0, 0], job["output"][-4000:] + job["second"][-2000:]
    assert "model/1/saved_model.pb" in job["kept"]
    assert job["failure"] == ""
    for rank in range(4):
        assert f"smddprun: rank {rank} starts on algo-{rank // 2 + 1}\n" in job["output"]
    losses = [float(text) for text in re.findall(r"accuracy=([\d.]+);", job["output"])]
    assert len(losses) == 3, job["output"][-4000:]
    assert losses[-1] > 0.85, losses


def test_the_model_is_served(jobs):
    """As TensorFlow Serving would, by the signature that train.py has exported."""
    deploy = runpy.run_path(str(ROOT / "examples/sagemaker/deploy.py"))
    digits = load_digits()
    for name in ("mpi", "image", "sdk3", "sdk3_smddprun"):
        answer = deploy["here"](str(jobs[name]["model"]), (digits.data / 16.0).tolist())
        right = np.argmax(answer["predictions"], axis=1) == digits.target
        assert right.mean() > 0.85, (name, right.mean())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("image_raises", "ValueError: the data are broken"),
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
