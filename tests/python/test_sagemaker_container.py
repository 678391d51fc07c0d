"""smddprun --sagemaker: a training container without SageMaker's toolkit."""

import concurrent.futures
import json
import os
import socket
import stat

import pytest

from smddp_tf import sagemaker
from smddp_tf.launch import LaunchError, options
from smddp_tf.launch import __main__ as launch
from smddp_tf.launch import sagemaker as container


@pytest.fixture
def config(tmp_path):
    """/opt/ml/input/config, as the service writes it."""
    resources = {
        "current_host": "algo-2",
        "hosts": ["algo-2", "algo-1"],
        "network_interface_name": "eth0",
    }
    given = {"mpi_world_size": "4", "epochs": "3", "name": "x", "v": '"1"', "sagemaker_region": "r"}
    for name, content in (
        ("resourceconfig", resources),
        ("hyperparameters", given),
        ("inputdataconfig", {"training": {"TrainingInputMode": "File"}}),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return str(tmp_path)


def test_what_the_script_gets(config):
    """The same as from the toolkit: variables, and options of the script."""
    made = container.variables({}, config)
    job = sagemaker.job(made)
    assert (job.hosts, job.current_host, job.interface) == (("algo-1", "algo-2"), "algo-2", "eth0")
    assert str(job.channel("training")) == "/opt/ml/input/data/training"
    assert job.hyperparameters == {"epochs": 3, "name": "x", "v": "1", "sagemaker_region": "r"}
    given = container.hyperparameters({}, config)
    assert container.ranks(given) == 4
    assert container.arguments(given) == ["--epochs", "3", "--name", "x", "-v", "1"]
    assert container.host_names(made) == (["algo-1", "algo-2"], "algo-2")
    assert container.variables({"SM_HOSTS": "x"}, config) == {}
    assert container.hyperparameters({"SM_HPS": '{"a": 1}'}, config) == {"a": 1}
    assert container.ranks({}) is None


def test_what_is_not_as_it_has_to_be(config, tmp_path):
    """Says what was found and where."""
    with pytest.raises(LaunchError, match="neither SM_HOSTS nor .*/none/resourceconfig.json"):
        container.variables({}, str(tmp_path / "none"))
    (tmp_path / "resourceconfig.json").write_text("{")
    with pytest.raises(LaunchError, match="resourceconfig.json is no JSON"):
        container.variables({}, config)
    for bad in (0, "many", 2.5):
        with pytest.raises(LaunchError, match="mpi_world_size=.*a whole number >= 1"):
            container.ranks({"mpi_world_size": bad})
    with pytest.raises(LaunchError, match="SM_CURRENT_HOST='algo-3' are not understood"):
        container.host_names({"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-3"})


def test_ranks_are_shared_by_all_hosts():
    """Where their number is given; else GPUs count."""
    words = ["--sagemaker", "-np", "4", "python", "t.py"]
    environment = {
        "SM_HOSTS": '["algo-1", "algo-2"]',
        "SM_NUM_GPUS": "8",
        "PATH": os.environ["PATH"],
    }
    here = launch.Machine(root=False, cores=8, name="algo-1")
    job = launch.make_job(options.parse(words), environment, here)
    assert [str(host) for host in job.hosts] == ["algo-1:2", "algo-2:2"]
    assert "StrictHostKeyChecking=no" in job.ssh_more


def free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


def test_hosts_wait_for_the_end():
    """Another host learns that the job has ended, or that the first host is gone."""
    port, logins = free_port(), []
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(container.wait_for_end, port, 20)
        with container.others_ready(["localhost"], port, 20, login=logins.append):
            assert logins == ["localhost"]
            assert not other.done()
        assert other.result(20) == 0
        other = pool.submit(container.wait_for_end, port, 20)
        with container._connect("localhost", port, float("inf")):
            pass
        with pytest.raises(LaunchError, match="the first host has gone before the job ended"):
            other.result(20)


def test_hosts_that_do_not_come():
    """Both sides say so after their limit."""
    port = free_port()
    with pytest.raises(LaunchError, match=f"has not connected to port {port} here within 0.1 s"):
        container.wait_for_end(port, 0.1)
    with (
        pytest.raises(LaunchError, match=f"localhost cannot be reached on port {port}: .*refused"),
        container.others_ready(["localhost"], port, 0),
    ):
        pass


def test_a_key_that_is_refused(tmp_path, monkeypatch):
    """The sentence has ssh's own words, and what the image lacks; the others are told."""
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho 'root@x: Permission denied (publickey).' >&2\nexit 255\n")
    ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    port = free_port()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(container.wait_for_end, port, 20)
        with (
            pytest.raises(LaunchError, match=r"denied \(publickey\)\.; the image needs a"),
            container.others_ready(["localhost"], port, 20),
        ):
            raise AssertionError
        assert other.result(20) == 0


def test_a_failed_job_leaves_a_failure_file(tmp_path, monkeypatch):
    """The cause, or what is wrong with the container."""
    failure = tmp_path / "output/failure"
    monkeypatch.setattr(container.write_failure, "__defaults__", (str(failure),))
    given = options.parse(["--sagemaker", "-np", "1", "python", "t.py"])
    outside = {"SM_HOSTS": '["a"]', "SM_CURRENT_HOST": "b"}
    with pytest.raises(LaunchError, match="are not understood"):
        launch._run(given, outside)
    assert "are not understood" in failure.read_text()
    alone = {"SM_HOSTS": '["a"]', "SM_CURRENT_HOST": "a", "SM_HPS": "{}"}
    for cause, wanted in (("ValueError: x", "ValueError: x"), ("", "the job failed: exit code 3")):
        outcome = launch.supervise.Outcome(3, cause=cause)
        monkeypatch.setattr(launch, "_launch", lambda *_, ended=outcome: ended)
        assert launch._run(given, alone) == 3
        assert failure.read_text() == wanted
