"""The folder in which an elastic training keeps its last commit while its job may start again."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence

from smddp_tf.launch import supervise

VARIABLE = "SMDDP_COMMITS"


def new_folder(environment: Mapping[str, str], variables: Sequence, restarts: int) -> dict:
    """SMDDP_COMMITS for the ranks; empty if nothing is started again, or a folder is named already.

    Rank 0 makes the folder, on its own host, where the job starts again.

    Args:
      environment: of smddprun.
      variables: (name, value) pairs that the command line gives.
      restarts: how often the job may start again.
    """
    named = environment.get(VARIABLE) or any(name == VARIABLE for name, _ in variables)
    if not restarts or named:
        return {}
    return {VARIABLE: os.path.join(tempfile.gettempdir(), f"smddp-commits-{uuid.uuid4().hex}")}


def finish(made: Mapping[str, str], outcome: supervise.Outcome) -> None:
    """After the last run: says where the commit of a job that failed is; else nothing is left."""
    path = made.get(VARIABLE, "")
    if not os.path.isdir(path):
        return
    if outcome.code and any(name.endswith(".pickle") for name in os.listdir(path)):
        supervise.say(f"its last commit is kept: with {VARIABLE}={path} a job goes on from there")
    else:
        shutil.rmtree(path, ignore_errors=True)
