"""TensorFlow's stream on a GPU, which our kernels find by a table of offsets.

The GPU is tests/fake_gpu; with FAKE_GPU_STREAMS=1 TensorFlow tells its streams as an NVIDIA GPU's.
"""

import sys

import fake_gpu
import launcher
from bodies import gpu_stream

sys.path.insert(0, str(launcher.ROOT / "tests/scripts"))

import stream_layout  # noqa: E402

RANKS = 2
GPU_KERNELS = {"SMDDP_GPU_KERNELS": "1", "SMDDP_NCCL": "off", "FAKE_CUDA_DELAY": "200"}
WARNING = "on the GPU cannot be found ("


def _job(job, body, python, **env):
    env = GPU_KERNELS | {"FAKE_GPU_LIBRARY": fake_gpu.library(python)} | env
    return job(body, RANKS, python=python, env=env)


def test_the_layout_fits(job, python):
    """Kernels find their stream, and the table is what the machine code of this TensorFlow does."""
    ran = _job(job, gpu_stream.every_kernel, python, FAKE_GPU_STREAMS="1")
    results = ran.check(RANKS)
    read = stream_layout.read(results[0]["library"])
    implementation, handle = read.handle
    offsets = [read.params, read.device_context, read.device, implementation, handle.offset]
    for result in results.values():
        assert (result["layout"], result["synchronizations"]) == (offsets, 0), result
    # What stream_layout.cc has as the same in all versions.
    assert (read.step, read.frame) == (0, read.device_context + 8)
    assert (read.info.offset, read.default_context, read.stream.offset) == (0x18, 0x8, 0x18)
    assert WARNING not in ran.output, ran.output[-4000:]


def test_the_host_waits_where_the_stream_is_not_found(job):
    """A GPU of another maker: three collectives a step wait for all of it; one warning a rank."""
    ran = _job(job, gpu_stream.on_the_host, sys.executable)
    for result in ran.check(RANKS).values():
        assert result["synchronizations"] >= 3 * result["steps"], result
    why = "the kernel's device is not CUDA's"
    assert ran.output.count(f"{WARNING}{why})") == RANKS, ran.output[-4000:]
    assert ran.output.count(WARNING) == RANKS, ran.output[-4000:]
