"""TensorFlow on a GPU of NVIDIA's: what test_gpu.py has on the simulated one, and jit."""

import functools
import sys

import launcher
import pytest
from bodies import collectives, exchange, gpu, jit, process_sets, real_gpu, tape

FIND = "import tensorflow as tf; gpus = tf.config.list_physical_devices('GPU'); print(len(gpus))"
WAYS = {
    "copied by TensorFlow": {"SMDDP_GPU_KERNELS": "0"},
    "staged": {"SMDDP_GPU_KERNELS": "1", "SMDDP_NCCL": "off"},
    "by NCCL": {"SMDDP_GPU_KERNELS": "1", "SMDDP_NCCL": "required"},
}
# Ranks share a GPU; products of float32 have all their bits.
ENV = {
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "NVIDIA_TF32_OVERRIDE": "0",
    "SMDDP_TEST_ONE_GPU": "1",
}
WARNING = "on the GPU cannot be found"


@functools.cache
def _gpus() -> tuple:
    """How many GPUs TensorFlow has, and what it says if it has none."""
    code, output, _ = launcher.run_command([sys.executable, "-c", FIND], timeout=120)
    last = (output.strip().splitlines() or ["no output"])[-1]
    return (int(last), "TensorFlow finds none") if code == 0 else (0, last)


@pytest.fixture
def on_gpu(tmp_path):
    """Runs a body on so many ranks, in one of the ways, and returns their reports."""
    count, why = _gpus()
    if count == 0:
        pytest.skip(f"TensorFlow has no GPU here: {why}")

    def run(body, ranks, way):
        env = ENV | WAYS[way]
        job = launcher.run_ranks(body, ranks, tmp_path, env=env, timeout=240, cold=True)
        results = job.check(ranks)
        assert WARNING not in job.output, job.output[-4000:]
        return results

    return run


def _check_nccl(results, way, compiled=False):
    if compiled and way == "copied by TensorFlow":
        return  # SMDDP_GPU_KERNELS does not choose for jit, which NCCL may serve
    counts = [result["nccl_collectives"] for result in results.values()]
    assert all((count > 0) == (way == "by NCCL") for count in counts), counts


@pytest.mark.parametrize("way", WAYS)
def test_every_way(on_gpu, way):
    """Each kind of collective, and a gradient plan."""
    _check_nccl(on_gpu(gpu.every_way, 3, way), way)


@pytest.mark.parametrize("compiled", [None, False, True], ids=["eager", "function", "jit"])
@pytest.mark.parametrize("way", WAYS)
def test_behind_late_kernels(on_gpu, way, compiled):
    """TensorFlow's stream is found, and waited for."""
    results = on_gpu(real_gpu.behind_late_kernels(compiled), 2, way)
    _check_nccl(results, way, compiled)


@pytest.mark.parametrize("compiled", [False, True], ids=["function", "jit"])
@pytest.mark.parametrize("way", WAYS)
def test_fit(on_gpu, way, compiled):
    """With Keras 3 and the callbacks."""
    _check_nccl(on_gpu(real_gpu.fit(compiled), 2, way), way, compiled)


@pytest.mark.parametrize("way", WAYS)
def test_gradients_of_a_large_model(on_gpu, way):
    """As many, and as large, as BERT-base has."""
    counts = [30522 * 768, 512 * 768, *[768 * 768, 768, 768 * 3072, 3072] * 24]
    results = on_gpu(real_gpu.step_times(counts, 5), 2, way)
    _check_nccl(results, way)


# Not jit.one_variable, which calls what was compiled for the CPU in a function for the GPU: XLA
# refuses the other device's variable there, as it does with any.
BODIES = {
    "allreduce": collectives.allreduce,
    "movement and gradients": collectives.movement_and_gradients,
    "alltoall": exchange.alltoall_and_grouped_allgather,
    "reducescatter": exchange.reducescatter_and_grouped_allreduce,
    "process sets": process_sets.every_collective,
    "gradients": tape.kinds_of_gradients,
    "what compiled calls carry": jit.what_calls_carry,
    "compiled fit": jit.keras_fit,
    "row major": jit.row_major,
    "conditions of loops": jit.conditions_of_loops,
}


@pytest.mark.parametrize("way", ["staged", "by NCCL"])
@pytest.mark.parametrize("name", BODIES)
def test_what_is_tested_on_the_cpu(on_gpu, name, way):
    """Where TensorFlow puts its tensors on the GPU by itself."""
    on_gpu(BODIES[name], 3 if name == "process sets" else 2, way)
