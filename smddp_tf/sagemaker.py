"""What SageMaker gives a training script, with or without SageMaker.

    from smddp_tf import sagemaker

    job = sagemaker.job()
    data = job.channel("training", default="data")
    job.model_dir.mkdir(parents=True, exist_ok=True)

In a training container the values come from its variables (SM_*); elsewhere they are defaults, so
one script runs in both. Imports the standard library only.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from smddp_tf._src.job import basics
from smddp_tf._src.records import Stream
from smddp_tf.errors import InitError


@dataclasses.dataclass(frozen=True)
class Job:
    """The training job around this process.

    Attributes:
      inside: whether SageMaker's toolkit started it.
      channels: name -> folder of the input data; empty elsewhere.
      inputs: name -> how the service was asked to deliver it ("TrainingInputMode" and the like).
      model_dir: where the model goes that is kept: /opt/ml/model; "model" elsewhere.
      output_dir: where other results go that are kept: /opt/ml/output/data; "output" elsewhere.
      checkpoint_dir: what SageMaker copies to checkpoint_s3_uri and back if the job is restarted:
        /opt/ml/checkpoints; "checkpoints" elsewhere.
      hyperparameters: name -> value, as the estimator had them; empty elsewhere.
      hosts: the names of the job's hosts; ["localhost"] elsewhere.
      current_host: this host's name.
      gpus: GPUs of this host that SageMaker counts.
      interface: the network interface between hosts; "" elsewhere.
    """

    inside: bool = False
    channels: Mapping[str, pathlib.Path] = dataclasses.field(default_factory=dict)
    inputs: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    model_dir: pathlib.Path = pathlib.Path("model")
    output_dir: pathlib.Path = pathlib.Path("output")
    checkpoint_dir: pathlib.Path = pathlib.Path("checkpoints")
    hyperparameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    hosts: tuple[str, ...] = ("localhost",)
    current_host: str = "localhost"
    gpus: int = 0
    interface: str = ""

    def channel(self, name: str, default: str | os.PathLike[str] | None = None) -> pathlib.Path:
        """The folder of a channel; outside of SageMaker, or without that channel, the default.

        Raises:
          KeyError: there is no such channel and no default; the message names those that are there.
        """
        if name in self.channels:
            return self.channels[name]
        if default is None:
            there = ", ".join(self.channels) or "none"
            raise KeyError(
                f"no channel {name!r}; there are: {there}. Give a default= to do without"
            )
        return pathlib.Path(default)

    def records(
        self, name: str, kind: str = "tfrecord", default: str | os.PathLike[str] | None = None
    ) -> Stream:
        """A channel's records, as bytes, however it is delivered.

        In pipe mode each call of what is returned reads the FIFO of the next epoch; else it reads
        the files of the channel's folder, in the order of their names. One rank can read a FIFO:
        give each rank of a host a channel of its own.

        Args:
          name: the channel.
          kind: "tfrecord", "recordio" (MXNet's; in pipe mode also what RecordWrapperType makes of
            each object) or "lines".
          default: as for channel().

        Raises:
          KeyError: there is no such channel and no default.
        """
        mode = self.inputs.get(name, {}).get("TrainingInputMode")
        return Stream(self.channel(name, default), kind, piped=mode == "Pipe")


def _json(environment: Mapping[str, str], name: str, otherwise: Any, kind: type) -> Any:
    """A variable's JSON of that kind."""
    text = environment.get(name, "")
    if not text:
        return otherwise
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, kind):
        raise ValueError(f"{name}={text!r} is not understood; it is JSON, a {kind.__name__}")  # noqa: TRY004
    return value


def job(environment: Mapping[str, str] | None = None) -> Job:
    """Reads the variables of SageMaker's training toolkit.

    Args:
      environment: instead of this process's own.

    Raises:
      ValueError: a variable is not as the toolkit sets it.
    """
    given = os.environ if environment is None else environment
    hosts = _json(given, "SM_HOSTS", [], list)
    if not hosts:
        return Job()
    channels = {}
    for name in _json(given, "SM_CHANNELS", [], list):
        folder = given.get(f"SM_CHANNEL_{name.upper()}") or f"/opt/ml/input/data/{name}"
        channels[name] = pathlib.Path(folder)
    return Job(
        inside=True,
        channels=channels,
        inputs=_json(given, "SM_INPUT_DATA_CONFIG", {}, dict),
        model_dir=pathlib.Path(given.get("SM_MODEL_DIR") or "/opt/ml/model"),
        output_dir=pathlib.Path(given.get("SM_OUTPUT_DATA_DIR") or "/opt/ml/output/data"),
        checkpoint_dir=pathlib.Path("/opt/ml/checkpoints"),
        hyperparameters=_json(given, "SM_HPS", {}, dict),
        hosts=tuple(hosts),
        current_host=given.get("SM_CURRENT_HOST") or hosts[0],
        gpus=_json(given, "SM_NUM_GPUS", 0, int),
        interface=given.get("SM_NETWORK_INTERFACE_NAME") or "",
    )


def check_hosts(of: Job) -> None:
    """Checks after init() that ranks run on every host of the job.

    A launcher that is given the ranks of one host as those of the job leaves the others idle, and
    nothing else would say so.

    Raises:
      InitError: a host has no rank.
      NotInitializedError: init() was not called.
    """
    nodes, size = basics.cross_size(), basics.size()
    if of.inside and nodes < len(of.hosts):
        ranks = size // nodes * len(of.hosts)
        raise InitError(
            f"{size} ranks run on {nodes} of the job's {len(of.hosts)} hosts "
            f"({', '.join(of.hosts)}); launch ranks on all of them, as with mpirun -np {ranks} (in "
            f'version 3 of SageMaker\'s SDK: mpi_additional_options=["-np", "{ranks}"])'
        )


def log_metrics(**metrics: float) -> None:
    """Prints a line as "loss=0.25; accuracy=0.9;" on rank 0, for CloudWatch and for people.

    metric_definitions() has the expressions by which SageMaker reads it.
    """
    if not basics.is_initialized() or basics.rank() == 0:
        print(
            " ".join(f"{name}={float(value):.9g};" for name, value in metrics.items()), flush=True
        )


def metric_definitions(*names: str) -> list[dict[str, str]]:
    """What an estimator takes as metric_definitions= for the metrics that log_metrics() prints."""
    return [{"Name": name, "Regex": rf"\b{re.escape(name)}=([^;]+);"} for name in names]
