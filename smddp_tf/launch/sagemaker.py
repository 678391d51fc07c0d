"""A training container of SageMaker that has no toolkit: ``smddprun --sagemaker python train.py``.

The service starts the same command on every host. The first host launches the job by ssh, with a
key that all hosts have from their image; the others run sshd, and hold a connection to the first
one, by which they learn that the job has ended, or that the first host has.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence

from smddp_tf.launch import LaunchError

CONFIG = "/opt/ml/input/config"
FAILURE = "/opt/ml/output/failure"
RANKS = "mpi_world_size"  # the hyperparameter that says how many there are
PORT = 61023  # on which the other hosts wait
SECONDS = 900  # hosts of a job start minutes apart
# The hosts have new keys each time, and are alone in their network.
SSH_WORDS = (
    *("-o", "StrictHostKeyChecking=no"),
    *("-o", "UserKnownHostsFile=/dev/null"),
    *("-o", "LogLevel=ERROR"),
)
_FOLDERS = {
    "SM_MODEL_DIR": "/opt/ml/model",
    "SM_OUTPUT_DATA_DIR": "/opt/ml/output/data",
    "SM_INPUT_DIR": "/opt/ml/input",
}


def _read(folder: str, name: str) -> dict:
    path = pathlib.Path(folder, name)
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise LaunchError(f"{path} is no JSON: {error}") from error


def _value(text):
    """A hyperparameter, which the service keeps as text; estimators of SageMaker's SDK as JSON."""
    with contextlib.suppress(TypeError, ValueError):
        return json.loads(text)
    return text


def hyperparameters(environment: Mapping[str, str], folder: str = CONFIG) -> dict:
    """Name -> value, from SM_HPS or the service's file."""
    given = _value(environment.get("SM_HPS", "")) or _read(folder, "hyperparameters.json")
    return {name: _value(value) for name, value in given.items()}


def _gpus() -> int:
    command = ["nvidia-smi", "--list-gpus"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in ran.stdout.splitlines())


def variables(environment: Mapping[str, str], folder: str = CONFIG) -> dict:
    """What SageMaker's toolkit would set (SM_*), by the service's files; {} if it is set already.

    Raises:
      LaunchError: this is no training container.
    """
    if environment.get("SM_HOSTS"):
        return {}
    resources = _read(folder, "resourceconfig.json")
    if not resources.get("hosts"):
        raise LaunchError(
            f"--sagemaker: neither SM_HOSTS nor {folder}/resourceconfig.json names this job's "
            "hosts; leave it out where SageMaker has not started this container"
        )
    inputs = _read(folder, "inputdataconfig.json")
    channels = sorted(inputs)
    given = hyperparameters(environment, folder)
    found = {
        "SM_HOSTS": json.dumps(sorted(resources["hosts"])),
        "SM_CURRENT_HOST": resources.get("current_host", resources["hosts"][0]),
        "SM_NETWORK_INTERFACE_NAME": resources.get("network_interface_name", ""),
        "SM_NUM_GPUS": str(_gpus()),
        "SM_CHANNELS": json.dumps(channels),
        "SM_INPUT_DATA_CONFIG": json.dumps(inputs),
        "SM_HPS": json.dumps({name: given[name] for name in given if name != RANKS}),
        **_FOLDERS,
    }
    found |= {f"SM_CHANNEL_{name.upper()}": f"/opt/ml/input/data/{name}" for name in channels}
    return {name: text for name, text in found.items() if text}


def host_names(environment: Mapping[str, str]) -> tuple:
    """(the names of the job's hosts, this one's); the first one launches.

    Raises:
      LaunchError: SM_HOSTS is not as the service has it.
    """
    names = _value(environment.get("SM_HOSTS", ""))
    current = environment.get("SM_CURRENT_HOST")
    if not isinstance(names, list) or current not in names:
        raise LaunchError(
            f"SM_HOSTS={environment.get('SM_HOSTS')!r}, SM_CURRENT_HOST={current!r} are not "
            'understood; they are as ["algo-1", "algo-2"] and algo-1'
        )
    return names, current


def ranks(given: Mapping) -> int | None:
    """The number of ranks that the hyperparameters say; None: it follows from the hosts."""
    value = given.get(RANKS)
    if value is not None and (not isinstance(value, int) or value < 1):
        raise LaunchError(f"hyperparameter {RANKS}={value!r}; it takes a whole number >= 1")
    return value


def arguments(given: Mapping) -> list:
    """Hyperparameters as the script's options, as SageMaker's toolkit passes them."""
    words = []
    for name, value in given.items():
        if name != RANKS and not name.startswith("sagemaker_"):
            text = value if isinstance(value, str) else json.dumps(value)
            words += [f"--{name}" if len(name) > 1 else f"-{name}", text]
    return words


@contextlib.contextmanager
def sshd(search: str | None) -> Iterator:
    """sshd, from the folders of `search` (PATH) or where it usually is, until the block ends.

    Raises:
      LaunchError: the image has none, or it does not start.
    """
    path = shutil.which("sshd", path=f"{search or ''}:/usr/sbin:/usr/local/sbin")
    if path is None:
        raise LaunchError(
            "--sagemaker: no sshd in this image, by which the first host starts ranks on the "
            "others; apt-get install openssh-server openssh-client"
        )
    os.makedirs("/run/sshd", exist_ok=True)
    subprocess.run(["ssh-keygen", "-A"], capture_output=True, timeout=60, check=False)
    process = subprocess.Popen([path, "-D", "-e", "-o", "LogLevel=ERROR"])
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(1)  # a bad key or a taken port shows at once
            raise LaunchError(f"--sagemaker: {path} has ended with exit code {code}, as it said")
        yield
    finally:
        process.terminate()
        process.wait(10)


def wait_for_end(port: int = PORT, seconds: float = SECONDS) -> int:
    """On another host than the first: returns when the job has ended, with this host's exit code.

    Raises:
      LaunchError: the first host has not come, or it has gone.
    """
    with socket.create_server(("", port)) as server:
        server.settimeout(seconds)
        try:
            connection, _ = server.accept()
        except TimeoutError as error:
            raise LaunchError(
                f"the first host has not connected to port {port} here within {seconds:g} s; see "
                "its log, and let all TCP ports through between the hosts"
            ) from error
    with connection:
        connection.settimeout(None)
        # A training job may take days; a first host that has vanished shows after two minutes.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("KEEPIDLE", 60), ("KEEPINTVL", 10), ("KEEPCNT", 6)):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{option}"), value)
        try:
            said = connection.recv(1)
        except OSError as error:
            raise LaunchError(f"the connection to the first host broke: {error}") from error
    if not said:
        raise LaunchError("the first host has gone before the job ended; see its log")
    # The first host's exit code is the job's; another one here could hide its message.
    return 0


def _connect(host: str, port: int, deadline: float) -> socket.socket:
    """Tries again and again: the name may not be known yet, or the container not have started."""
    while True:
        try:
            return socket.create_connection((host, port), timeout=10)
        except OSError as error:
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"{host} cannot be reached on port {port}: {error}; is smddprun --sagemaker "
                    "the command on every host, and are all TCP ports open between them?"
                ) from error
        time.sleep(0.5)


def _check_login(host: str) -> None:
    """That ssh gets in, as mpirun will."""
    command = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", *SSH_WORDS, host, "true"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if ran.returncode != 0:
        raise LaunchError(
            f"ssh {host}: {ran.stderr.strip() or 'exit ' + str(ran.returncode)}; the image needs a "
            "key that it accepts itself: ssh-keygen -N '' -f ~/.ssh/id_rsa, and its public "
            "half in ~/.ssh/authorized_keys"
        )


@contextlib.contextmanager
def others_ready(
    hosts: Sequence[str], port: int = PORT, seconds: float = SECONDS, login=_check_login
) -> Iterator:
    """On the first host: the others are there until the block ends, and are told that it has."""
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as open_:
        connections = [open_.enter_context(_connect(host, port, deadline)) for host in hosts]
        try:
            for host in hosts:
                login(host)
            yield
        finally:
            for connection in connections:
                with contextlib.suppress(OSError):  # it has gone already
                    connection.sendall(b"e")


def write_failure(text: str, path: str = FAILURE) -> None:
    """What DescribeTrainingJob shows of it: the first 1,024 characters."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    pathlib.Path(path).write_text(text)
