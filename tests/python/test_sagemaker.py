"""smddp_tf.sagemaker, inside of a container's environment and outside."""

import json
import pathlib
import re

import pytest

import smddp_tf
from smddp_tf import sagemaker
from smddp_tf.errors import InitError

INSIDE = {
    "SM_HOSTS": json.dumps(["algo-1", "algo-2"]),
    "SM_CURRENT_HOST": "algo-2",
    "SM_CHANNELS": json.dumps(["training", "test-set"]),
    "SM_CHANNEL_TRAINING": "/data/training",
    "SM_MODEL_DIR": "/opt/ml/model",
    "SM_HPS": json.dumps({"epochs": 3, "name": "x"}),
    "SM_NUM_GPUS": "8",
    "SM_NETWORK_INTERFACE_NAME": "eth0",
}


def test_inside():
    """What the toolkit's variables say."""
    job = sagemaker.job(INSIDE)
    assert job.inside
    assert job.channel("training") == pathlib.Path("/data/training")
    assert job.channel("test-set", default="x") == pathlib.Path("/opt/ml/input/data/test-set")
    assert job.hyperparameters == {"epochs": 3, "name": "x"}
    assert (job.hosts, job.current_host) == (("algo-1", "algo-2"), "algo-2")
    assert (job.gpus, job.interface) == (8, "eth0")
    assert job.output_dir == pathlib.Path("/opt/ml/output/data")
    with pytest.raises(KeyError, match="no channel 'validation'; there are: training, test-set"):
        job.channel("validation")


def test_outside():
    """Folders beside the script, and the channel that is the default."""
    job = sagemaker.job({})
    assert not job.inside
    assert job.channel("training", default="data") == pathlib.Path("data")
    assert job.model_dir == pathlib.Path("model")
    assert job.hosts == ("localhost",)
    with pytest.raises(KeyError, match="there are: none"):
        job.channel("training")


@pytest.mark.parametrize(
    ("name", "text"), [("SM_HOSTS", "algo-1"), ("SM_HPS", "[]"), ("SM_NUM_GPUS", '"8"')]
)
def test_variables_that_are_not_understood(name, text):
    """Are named, with what they say."""
    with pytest.raises(ValueError, match=rf"{name}={re.escape(repr(text))} is not understood"):
        sagemaker.job({**INSIDE, name: text})


def test_hosts_without_ranks():
    """One rank on one node, of a job with two hosts."""
    smddp_tf.init()
    with pytest.raises(InitError, match=r"1 ranks run on 1 of the job's 2 hosts .*mpirun -np 2"):
        sagemaker.check_hosts(sagemaker.job(INSIDE))
    sagemaker.check_hosts(sagemaker.job({}))


def test_metrics(capsys):
    """The printed line is what the expressions read."""
    sagemaker.log_metrics(loss=0.25, val_loss=1e-9)
    line = capsys.readouterr().out
    assert line == "loss=0.25; val_loss=1e-09;\n"
    read = {
        one["Name"]: float(re.search(one["Regex"], line)[1])
        for one in sagemaker.metric_definitions("loss", "val_loss")
    }
    assert read == {"loss": 0.25, "val_loss": 1e-9}
