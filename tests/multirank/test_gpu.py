"""Tensors on a GPU: copied by TensorFlow, which is the default, and by our kernels.

The GPU is tests/fake_gpu: TensorFlow places tensors on it, its memory cannot be accessed by the
host, and its streams are late. XLA cannot compile for it, so jit on a GPU is not tested.
"""

import sys

import fake_gpu
import pytest
from bodies import collectives, exchange, gpu, process_sets, tape

KERNELS = pytest.mark.parametrize("kernels", ["0", "1"])


def _run(job, body, ranks, python, kernels, **env):
    env |= {"SMDDP_GPU_KERNELS": kernels, "FAKE_CUDA_DELAY": "200"}
    env["FAKE_GPU_LIBRARY"] = fake_gpu.library(python)
    return job(body, ranks, python=python, env=env, timeout=120).check(ranks)


@KERNELS
def test_where_results_are(job, python, kernels):
    """Floats on the GPU, int32 in host memory."""
    _run(job, gpu.where_results_are, 2, python, kernels)


@KERNELS
def test_every_collective_in_a_function(job, python, kernels):
    """Between kernels that are late."""
    _run(job, gpu.every_collective_in_a_function, 3, python, kernels)


@KERNELS
def test_trains_as_one_process(job, python, kernels):
    """A gradient plan of several buckets."""
    env = {"SMDDP_FIRST_BUCKET_BYTES": "16", "SMDDP_BUCKET_BYTES": "40"}
    _run(job, gpu.trains_as_one_process, 3, python, kernels, **env)


@KERNELS
def test_ranks_differ_in_where_tensors_are(job, python, kernels):
    """A mismatch, unless TensorFlow has copied them all to the CPU."""
    _run(job, gpu.ranks_differ_in_where_tensors_are, 2, python, kernels)


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
    _run(job, body, ranks, sys.executable, "1")


def test_kernels_without_a_gpu(job, python):
    """The option does nothing on a machine without one."""
    job(tape.kinds_of_gradients, 2, python=python, env={"SMDDP_GPU_KERNELS": "1"}).check(2)


def test_pin_gpu(job, python):
    """Each rank its own; not once devices have been used."""
    own = gpu.pin_gpu(["/physical_device:GPU:0", "/physical_device:GPU:1"])
    for body in (own, gpu.pin_gpu_too_late):
        _run(job, body, 2, python, "0", FAKE_GPU_COUNT="2")


def test_pin_gpu_with_more_ranks_than_gpus(job):
    """Says so, unless the launcher has chosen a GPU for each rank."""
    mine = ["/physical_device:GPU:0", "2 ranks run on this node, and TensorFlow sees 1 GPU"]
    _run(job, gpu.pin_gpu(mine), 2, sys.executable, "0")
    body = gpu.pin_gpu([mine[0]] * 2)
    _run(job, body, 2, sys.executable, "0", CUDA_VISIBLE_DEVICES="0")
