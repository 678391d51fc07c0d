"""Scripts written for SageMaker's library and for Horovod, run without an edit."""

import pytest
import torch_job

launcher = torch_job.launcher
SCRIPTS = launcher.ROOT / "tests" / "scripts"


def _run(script, ranks, *arguments):
    torch_job.need_torch()
    command = [*torch_job.SMDDPRUN, "-np", str(ranks), "--alias"]
    command += [torch_job.PYTHON, SCRIPTS / script, *arguments]
    code, output, timed_out = launcher.run_command(command, timeout=120)
    assert (code, timed_out) == (0, False), output[-4000:]
    return output


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.thorough)])
def test_smddp(ranks):
    """The second library: the import registers the backend, LOCAL_RANK is there."""
    output = _run("smddp_torch.py", ranks)
    for rank in range(ranks):
        assert f"rank {rank} local {rank} equal True better True" in output, output[-3000:]


def test_smddp_1():
    """The first library: distributed and parallel, under all names that its scripts use."""
    output = _run("smddp_torch_1.py", 2)
    for rank in range(2):
        assert f"rank {rank} local {rank} equal True sum True smddp" in output, output[-3000:]


def test_smddp_1_alone():
    """is_available() is False where no launcher has started the script."""
    torch_job.need_torch()
    command = [torch_job.PYTHON, "-m", "smddp_tf.compat", SCRIPTS / "smddp_torch_1.py"]
    code, output, timed_out = launcher.run_command(command, timeout=60)
    assert (code, timed_out) == (1, False) and output.strip().endswith("alone"), output[-3000:]


@pytest.mark.parametrize(
    ("ranks", "nodes"), [(2, 1), (3, 1), (3, 2), (4, 2)], ids=["2", "3", "3 on 2", "4 on 2"]
)
def test_join(tmp_path, ranks, nodes):
    """Uneven data, whose first ranks end first: the weights of one process, and equal names."""
    env = {"SMDDP_NODES": str(nodes)}
    torch_job.run(tmp_path, "ranks_horovod", "joins", ranks, env=env).check(ranks)


@pytest.mark.parametrize(
    "arguments", [[], pytest.param(["--fp16-allreduce"], marks=pytest.mark.thorough)]
)
def test_horovod(arguments):
    """Horovod's guide: broadcasts, DistributedOptimizer with clipping, an averaged metric."""
    output = _run("horovod_torch.py", 2, *arguments)
    for rank in range(2):
        assert f"rank {rank} equal True better True" in output, output[-3000:]


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("collectives", 2),
        ("collectives", 3),
        ("errors", 2),
        ("training", 2),
        ("training", 4),
        ("new_optimizer", 2),
        ("other_parameters", 2),
        ("other_parameters", 3),
        ("changed_after_backward", 2),
        ("changed_after_backward", 3),
        ("clipped_after_compiled_backward", 2),
        ("one_sided", 2),
        ("optimizer_state", 2),
        ("outside_of_a_set", 2),
        ("outside_of_a_set", 3),
        ("unnamed_in_sets", 2),
        ("unnamed_in_sets", 3),
        ("steps_of_the_script", 2),
        ("steps_of_the_script", 3),
        ("lbfgs", 2),
        ("lbfgs", 3),
        ("names_under_way", 2),
        ("names_under_way", 3),
    ],
)
def test_horovods_functions(tmp_path, name, ranks):
    """Exact sums, errors with both sides, and the weights of one process."""
    torch_job.run(tmp_path, "ranks_horovod", name, ranks).check(ranks)


def test_refused_names(tmp_path):
    """Each says what to use instead."""
    torch_job.need_torch()
    script = tmp_path / "refused.py"
    script.write_text(
        "import horovod.torch as hvd\n"
        "from horovod.torch.compression import FP16Compressor\n"
        "from horovod.torch.elastic import TorchState\n"
        "from horovod.torch.elastic.sampler import ElasticSampler\n"
        "from horovod.torch.elastic.state import TorchState\n"
        "from horovod.torch.mpi_ops import poll, synchronize\n"
        "from horovod.torch.functions import broadcast_object\n"
        "print('all there')\n"
        "import horovod.torch.nothing\n"
    )
    command = [torch_job.PYTHON, "-m", "smddp_tf.compat", script]
    code, output, _ = launcher.run_command(command, timeout=100)
    assert code == 1 and "all there\n" in output, output[-3000:]
    assert "horovod.torch.nothing is not provided by smddp_tf.compat" in output


@pytest.mark.thorough
def test_run(tmp_path):
    """horovod.torch.run() starts ranks, where TensorFlow is not loaded."""
    torch_job.need_torch()
    script = tmp_path / "run.py"
    script.write_text(
        "import horovod.torch as hvd\n"
        "def train(more):\n"
        "    import sys, torch\n"
        "    hvd.init()\n"
        "    assert 'tensorflow' not in sys.modules\n"
        "    return hvd.allreduce(torch.tensor(more + hvd.rank()), op=hvd.Sum).item()\n"
        "if __name__ == '__main__':\n"
        "    print(hvd.run(train, args=(1,), np=2))\n"
    )
    command = [torch_job.PYTHON, "-m", "smddp_tf.compat", script]
    code, output, _ = launcher.run_command(command, timeout=100)
    assert code == 0 and "[3, 3]" in output, output[-3000:]
