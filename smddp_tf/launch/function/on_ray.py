"""run() on a machine that Ray grants: a task of Ray's calls smddprun there, as a process would."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from smddp_tf.launch import LaunchError
from smddp_tf.launch.function import launcher

_END_SECONDS = 60  # for smddprun to end the job after an interrupt
_LOOK_SECONDS = 0.2  # Ray itself looks for an interrupt once a second
_NAMES = {"num_cpus": "CPU", "num_gpus": "GPU"}  # of ray.remote's options among a node's resources


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise LaunchError(
            "run(): launcher='ray' needs Ray: `pip install ray`, here and where its workers run"
        ) from error
    return ray


def _job(words: Sequence[str], variables: Mapping[str, str]) -> tuple:
    """The task. Ray prints its lines in the process that called run()."""
    return launcher.launch(words, {**os.environ, **variables})


def _check_nodes(nodes: Sequence[Mapping], wanted: Mapping[str, Any]) -> None:
    """Raises if no machine of the cluster has what a task wants: it would wait for ever."""
    numbers = {_NAMES[name]: wanted[name] for name in _NAMES if wanted.get(name)}
    numbers |= wanted.get("resources") or {}
    has = [node["Resources"] for node in nodes if node["Alive"]]
    if not any(all(one.get(name, 0) >= n for name, n in numbers.items()) for one in has):
        most = {name: max((one.get(name, 0) for one in has), default=0) for name in numbers}
        raise LaunchError(
            f"run(): no machine of Ray's cluster has {numbers}; the most that one has of each is "
            f"{most}. Ask for fewer ranks, or name what they need in resources="
        )


def launch(words: Sequence[str], variables: Mapping[str, str], wanted: Mapping[str, Any]) -> tuple:
    """launcher.launch() where Ray grants what is wanted: options of ray.remote.

    It uses the cluster that this process has joined, else the one around, else one of this machine
    until the job has ended.

    Raises:
      LaunchError: Ray is not installed, or no machine has so much.
    """
    ray = _ray()
    began = not ray.is_initialized()
    if began:
        ray.init()
    try:
        _check_nodes(ray.nodes(), wanted)
        # Ray would start a task again that failed.
        job = ray.remote(max_retries=0, **wanted)(_job).remote(list(words), dict(variables))
        try:
            while not ray.wait([job], timeout=_LOOK_SECONDS)[0]:
                pass
            return ray.get(job)
        except BaseException:
            ray.cancel(job)  # an interrupt in the task, which ends smddprun as one here would
            ray.wait([job], timeout=_END_SECONDS)
            raise
    finally:
        if began:
            ray.shutdown()
