"""Horovod's environment variables, where unchanged scripts run."""

import os

import pytest

from smddp_tf.compat import environment

CASES = [
    ({"HOROVOD_TIMELINE": "trace.json"}, {"TIMELINE": "trace.json"}),
    ({"HOROVOD_FUSION_THRESHOLD": "65536"}, {"BUCKET_BYTES": "65536"}),
    ({"HOROVOD_FUSION_THRESHOLD": "0"}, {"BUCKET_BYTES": "1"}),
    ({"HOROVOD_STALL_CHECK_TIME_SECONDS": "7"}, {"STALL_WARNING_SECONDS": "7"}),
    ({"HOROVOD_STALL_CHECK_DISABLE": "1"}, {"STALL_WARNING_SECONDS": "0"}),
    ({"HOROVOD_STALL_CHECK_DISABLE": "0"}, {}),
    (
        {"HOROVOD_STALL_CHECK_DISABLE": "1", "HOROVOD_STALL_CHECK_TIME_SECONDS": "7"},
        {"STALL_WARNING_SECONDS": "0"},
    ),
    ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "30"}, {"TIMEOUT_SECONDS": "30"}),
    ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0"}, {"TIMEOUT_SECONDS": "10000000"}),
    ({"HOROVOD_LOG_LEVEL": "TRACE"}, {"LOG_LEVEL": "debug"}),
    ({"HOROVOD_LOG_LEVEL": "fatal"}, {"LOG_LEVEL": "error"}),
    ({"HOROVOD_LOG_LEVEL": "Info", "SMDDP_LOG_LEVEL": "error"}, {"LOG_LEVEL": "error"}),
    ({"HOROVOD_CYCLE_TIME": "0.1"}, {}),
]


@pytest.mark.parametrize(("given", "wanted"), CASES)
def test_it_becomes_ours(given, wanted, monkeypatch):
    """What means something here is taken over; what was set for us already stays."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "SMDDP_"))}
    monkeypatch.setattr(os, "environ", {**kept, **given})
    environment.adopt_horovod_environment()
    got = {k: v for k, v in os.environ.items() if k.startswith("SMDDP_")}
    assert got == {f"SMDDP_{name}": value for name, value in wanted.items()}
