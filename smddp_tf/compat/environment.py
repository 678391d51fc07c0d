"""Translates Horovod's environment variables, for unmodified scripts."""

import os

from smddp_tf.launch import torch_variables

_NEVER = "10000000"  # seconds: about four months, the maximum that is accepted
_HOROVOD_LEVELS = {"trace": "debug", "fatal": "error"}


def adopt_horovod_environment() -> None:
    """Sets SMDDP_* variables that are not set from the corresponding HOROVOD_* variables."""
    given = {
        name.removeprefix("HOROVOD_"): value
        for name, value in os.environ.items()
        if name.startswith("HOROVOD_") and value
    }
    level = given.get("LOG_LEVEL", "").lower()
    wanted = {
        "BUCKET_BYTES": given.get("FUSION_THRESHOLD"),
        "STALL_WARNING_SECONDS": given.get("STALL_CHECK_TIME_SECONDS"),
        "TIMEOUT_SECONDS": given.get("STALL_SHUTDOWN_TIME_SECONDS"),
        "TIMELINE": given.get("TIMELINE"),
        "LOG_LEVEL": _HOROVOD_LEVELS.get(level, level) or None,
    }
    if wanted["BUCKET_BYTES"] == "0":
        wanted["BUCKET_BYTES"] = "1"  # no fusion: a bucket per gradient
    if wanted["TIMEOUT_SECONDS"] == "0":
        wanted["TIMEOUT_SECONDS"] = _NEVER
    if given.get("STALL_CHECK_DISABLE", "0") not in ("0", "false"):
        wanted["STALL_WARNING_SECONDS"] = "0"
    for name, value in wanted.items():
        if value is not None:
            os.environ.setdefault(f"SMDDP_{name}", value)


def adopt_torch_environment() -> None:
    """Sets PyTorch's RANK and its like, which scripts read before they import anything of ours.

    SMDDP sets its own name of the rank on a node too, which Transformers' Trainer reads.
    """
    os.environ.update(torch_variables.of_rank(os.environ))
    local_rank = os.environ.get("LOCAL_RANK")
    if local_rank is not None:
        os.environ.setdefault("SMDATAPARALLEL_LOCAL_RANK", local_rank)


def torch_number(name: str) -> int | None:
    """RANK or one of its like; None if no launcher is known."""
    text = os.environ.get(name)
    return None if text is None else int(text)
