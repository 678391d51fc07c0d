"""Compressors of a GPU's gradients: by our kernels where these load, else by TensorFlow's ops.

The GPU is tests/fake_gpu, on which the kernels' bodies, compiled for the CPU, run in a stream that
is late.
"""

import sys

import fake_gpu
import pytest
from bodies import gpu_compressors
from test_gpu import WAYS

RANKS = 2
# Eagerly (types, lengths, steps, ops; none for nothing), and in a function (steps, ops).
CALLS = dict.fromkeys(["int8", "topk", "all"], [4 * 5 * 2 * 2, 4 * 2])


def _run(job, python, way, **env):
    env = way | {"FAKE_CUDA_DELAY": "200", "FAKE_GPU_LIBRARY": fake_gpu.library(python)} | env
    return job(gpu_compressors.compressed, RANKS, python=python, env=env, timeout=120).check(RANKS)


@pytest.mark.parametrize("way", ["staged", "by NCCL"])
def test_by_kernels(job, python, way):
    """Each type and length has the CPU's results, and it was the kernels that ran."""
    for result in _run(job, python, WAYS[way]).values():
        if result["kernels"].startswith("none: "):
            assert "built without kernels" in result["problem"], result
            assert not any(sum(counts) for counts in result["counts"].values()), result
        else:
            assert (result["problem"], result["counts"]) == ("", CALLS), result


REASONS = {
    "not asked for": ({"SMDDP_GPU_KERNELS": "0"}, "SMDDP_GPU_KERNELS is not 1"),
    "no stream": ({"FAKE_GPU_STREAMS": None}, "TensorFlow's stream cannot be found"),
    "refused": ({"FAKE_CUDA_NO_MODULES": "1"}, "do not load on this GPU"),
}


@pytest.mark.parametrize("reason", REASONS)
def test_by_tensorflow(job, reason):
    """Where the kernels cannot run, nothing is left to them, and results are the same."""
    change, text = REASONS[reason]
    way = {name: value for name, value in (WAYS["staged"] | change).items() if value is not None}
    for result in _run(job, sys.executable, way).values():
        built = not result["kernels"].startswith("none: ")
        assert text in result["problem"] or not built, result
        assert result["problem"] and not any(map(sum, result["counts"].values())), result
