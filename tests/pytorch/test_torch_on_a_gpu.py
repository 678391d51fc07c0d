"""Tensors on a GPU: what is tested on the CPU, by NCCL and by the host."""

import functools

import launcher
import pytest
import torch_job

GPU = "import torch; torch.zeros(1, device='cuda')"
CALLS = {
    "collectives": [
        ["ranks_collectives", name, {}]
        for name in ("reductions", "many_at_once", "moves", "exchanges", "between_two")
    ],
    "groups": [["ranks_collectives", name, {}] for name in ("groups", "functional")],
    "DDP": [["ranks_training", "data_parallel", {}]],
    "ZeRO and FSDP": [["ranks_training", "sharded", {}]],
    "Horovod's names": [["ranks_horovod", "collectives", {}], ["ranks_horovod", "training", {}]],
    "Horovod's lists": [
        ["ranks_horovod_lists", name, {}] for name in ("grouped", "rows", "errors", "sparse")
    ],
    "SyncBatchNorm": [["ranks_horovod_lists", "batch_norm", {}]],
}


@functools.cache
def _why_not() -> str:
    code, output, _ = launcher.run_command([torch_job.PYTHON, "-c", GPU], timeout=120)
    return "" if code == 0 else output.strip().splitlines()[-1]


@pytest.fixture(params=["required", "off"])
def nccl(request):
    """SMDDP_NCCL, on a machine whose GPU PyTorch can use."""
    torch_job.need_torch()
    if _why_not():
        pytest.skip(f"PyTorch has no GPU here: {_why_not()}")
    return request.param


def _environment(nccl):
    return {"SMDDP_NCCL": nccl, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def _run(tmp_path, name, ranks, nccl, **arguments):
    options = {"env": _environment(nccl), "timeout": 240, "cold": True}  # CUDA takes no forks
    job = torch_job.run(tmp_path, "ranks_on_a_gpu", name, ranks, **options, **arguments)
    return job.check(ranks)


@pytest.mark.parametrize("calls", CALLS)
def test_what_is_tested_on_the_cpu(tmp_path, nccl, calls):
    """All tensors are on the GPU, and NCCL runs what it can if it may."""
    ranks = 3 if calls == "groups" else 2  # some of them and all of them differ
    for result in _run(tmp_path, "run", ranks, nccl, calls=CALLS[calls]).values():
        assert (result["nccl_collectives"] > 0) == (nccl == "required"), result


@pytest.mark.parametrize("body", ["late_streams", "devices_differ"])
def test_streams_and_devices(tmp_path, nccl, body):
    """Behind late kernels; and errors where devices differ."""
    _run(tmp_path, body, 2, nccl)


@pytest.mark.quiet
@pytest.mark.parametrize("how", ["default", "new_group", "options"])
def test_limit(tmp_path, nccl, how):
    """A rank that comes late to a collective of 1 s is named by all."""
    call = {"module": "ranks_timeouts", "name": "limited", "arguments": {"how": how}}
    env = _environment(nccl) | {"SMDDP_TIMEOUT_SECONDS": "100"}
    results = torch_job.torchrun(tmp_path, "ranks_on_a_gpu", "call", 3, env=env, of=call)
    assert len(results) == 3
    for rank, result in enumerate(results):
        assert result["kind"] == "DistBackendError", result
        assert "for rank 2 in" in result["text"], result
        assert result["seconds"] < 2.4 or rank == 2, result


@pytest.mark.quiet
@pytest.mark.parametrize("how", ["call", "thread"])
def test_abort(tmp_path, nccl, how):
    """All that wait raise within a second; then all ranks begin anew."""
    arguments = {"how": how, "folder": str(tmp_path)}
    call = {"module": "ranks_timeouts", "name": "aborted", "arguments": arguments}
    for rank, result in _run(tmp_path, "call", 3, nccl, of=call).items():
        assert result["again"]
        if rank != (2 if how == "call" else 0):
            assert "rank 2 aborted group 0" in result["text"], result
            assert result["seconds"] < 1, result
