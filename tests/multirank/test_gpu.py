"""Tensors on a GPU: copied by TensorFlow, which is the default, by our kernels, or left to NCCL.

The GPU is tests/fake_gpu: TensorFlow places tensors on it, its memory cannot be accessed by the
host, and its streams are late. tests/fake_nccl runs collectives there. XLA cannot compile for it,
so jit on a GPU is not tested.
"""

import sys

import fake_gpu
import launcher
import pytest
from bodies import collectives, exchange, gpu, process_sets, tape

NCCL = str(launcher.ROOT / "build/fake_nccl/libnccl.so.2")
WAYS = {
    "copied by TensorFlow": {"SMDDP_GPU_KERNELS": "0"},
    "staged": {"SMDDP_GPU_KERNELS": "1", "SMDDP_NCCL": "off", "FAKE_GPU_STREAMS": "1"},
    "by NCCL": {
        "SMDDP_GPU_KERNELS": "1",
        "FAKE_GPU_STREAMS": "1",
        "SMDDP_NCCL": "required",
        "SMDDP_NCCL_LIBRARY": NCCL,
        "FAKE_NCCL_DELAY": "200",
    },
}


def _env(python, way):
    env = WAYS[way] | {"FAKE_CUDA_DELAY": "200"}
    return env | {"FAKE_GPU_LIBRARY": fake_gpu.library(python)}


def _run(job, body, ranks, python, way, **env):
    env = _env(python, way) | env
    return job(body, ranks, python=python, env=env, timeout=120).check(ranks)


@pytest.mark.parametrize("way", WAYS)
def test_every_way(job, python, way):
    """Each kind of collective behind late kernels, and a gradient plan of several buckets."""
    env = {"SMDDP_FIRST_BUCKET_BYTES": "16", "SMDDP_BUCKET_BYTES": "40"}
    results = _run(job, gpu.every_way, 3, python, way, **env)
    by_nccl = [result["nccl_collectives"] for result in results.values()]
    assert all(count > 30 if way == "by NCCL" else count == 0 for count in by_nccl), by_nccl
    for result in results.values():
        packs = way == "by NCCL" and not result["kernels"].startswith("none: ")
        assert result["nccl_packed"] == (7 if packs else 0), result
        # Six kinds in each of five steps.
        assert result["nccl_in_function"] == (30 if way == "by NCCL" else 0), result


def test_ranks_on_one_gpu(job):
    """NCCL cannot connect them: the host reduces, or, where it is required, all have an error."""
    env = _env(sys.executable, "by NCCL") | {"FAKE_CUDA_UUID": "7"}
    job(gpu.one_gpu, 2, env=env | {"SMDDP_NCCL": "auto"}).check(2)
    result = job(gpu.one_gpu, 2, env=env)
    assert "rank 0 and rank 1 use the same GPU" in result.output, result.output[-4000:]
    assert not result.timed_out and result.returncode != 0


def test_no_nccl_where_it_is_required(job):
    """Said at init(), on all ranks."""
    env = {"SMDDP_NCCL": "required", "SMDDP_NCCL_LIBRARY": "/nowhere/libnccl.so.2"}
    result = job(tape.kinds_of_gradients, 2, env=env, timeout=60)
    assert not result.timed_out and result.returncode != 0
    for words in ("InitError", "rank 0 cannot start: SMDDP_NCCL=required", "/nowhere/libnccl.so.2"):
        assert words in result.output, result.output[-4000:]


def test_a_rank_dies_while_nccl_reduces(job):
    """The kernels of the others wait for it; they are stopped, and the rank is named."""
    env = _env(sys.executable, "by NCCL")
    result = job(gpu.dies_while_nccl_reduces, 3, env=env, timeout=60, cold=True)
    assert not result.timed_out, result.output[-4000:]
    # mpirun may end a survivor before its script reports, but the sentence is always there.
    assert "rank 1 (process" in result.output, result.output[-4000:]
    for survivor in result.results.values():
        assert survivor["error"] == "UnknownError" and survivor["seconds"] < 5, survivor


BODIES = {
    "allreduce": (collectives.allreduce, 3),
    "movement and gradients": (collectives.movement_and_gradients, 2),
    "alltoall": (exchange.alltoall_and_grouped_allgather, 3),
    "reducescatter": (exchange.reducescatter_and_grouped_allreduce, 2),
    "process sets": (process_sets.every_collective, 3),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_is_tested_on_the_cpu(job, name):
    """All dtypes and ways, with a GPU in the process and our kernels for it."""
    body, ranks = BODIES[name]
    _run(job, body, ranks, sys.executable, "by NCCL")


def test_kernels_without_a_gpu(job, python):
    """The option does nothing on a machine without one."""
    job(tape.kinds_of_gradients, 2, python=python, env={"SMDDP_GPU_KERNELS": "1"}).check(2)


def test_pin_gpu(job, python):
    """Each rank its own; not once devices have been used."""
    own = gpu.pin_gpu(["/physical_device:GPU:0", "/physical_device:GPU:1"])
    for body in (own, gpu.pin_gpu_too_late):
        _run(job, body, 2, python, "copied by TensorFlow", FAKE_GPU_COUNT="2")


def test_pin_gpu_with_more_ranks_than_gpus(job):
    """Says so, unless the launcher has chosen a GPU for each rank."""
    mine = ["/physical_device:GPU:0", "2 ranks run on this node, and TensorFlow sees 1 GPU"]
    _run(job, gpu.pin_gpu(mine), 2, sys.executable, "copied by TensorFlow")
    body = gpu.pin_gpu([mine[0]] * 2)
    way = "copied by TensorFlow"
    _run(job, body, 2, sys.executable, way, CUDA_VISIBLE_DEVICES="0")
