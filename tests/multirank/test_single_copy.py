"""Large tensors of an alltoall are read from the peers' memory, or through what the node shares.

Yama may allow that to processes of one parent only; then ranks start cold, as children of mpirun.
"""

import pathlib
import platform

import launcher
import pytest
from bodies import single_copy

_YAMA = pathlib.Path("/proc/sys/kernel/yama/ptrace_scope")
ONE_PARENT = _YAMA.exists() and _YAMA.read_text().strip() != "0"


@pytest.mark.parametrize("ranks", [2, 4])
def test_from_peer_to_peer(job, ranks):
    """The same values in all ways; two ranks read what they gather, too."""
    result = job(single_copy.move, ranks, env={"SMDDP_LOG_LEVEL": "debug"}, cold=ONE_PARENT)
    result.check(ranks)
    assert "single_copy_alltoall: taken" in result.output, result.output[-3000:]
    allgather = "taken" if ranks == 2 else "there are many ranks"
    assert f"single_copy_allgather: {allgather}" in result.output, result.output[-3000:]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter has x86-64's numbers")
@pytest.mark.parametrize(("ranks", "refused"), [(2, {1}), (3, {0, 1, 2})])
def test_reading_is_refused_later(job, ranks, refused):
    """The operation is done again through what the node shares; the values are the same."""
    body = single_copy.move(sorted(refused))
    result = job(body, ranks, env={"SMDDP_LOG_LEVEL": "debug"}, cold=ONE_PARENT)
    result.check(ranks)
    assert "single_copy_alltoall: taken" in result.output
    told = result.output.count("Operation not permitted; the ranks copy through the memory")
    assert told > len(refused), result.output[-3000:]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter has x86-64's numbers")
def test_a_rank_that_may_not_read(job, tmp_path):
    """From its start, as in a sandbox: no rank tries, and the values are the same."""
    early = tmp_path / "early"
    early.mkdir()
    (early / "sitecustomize.py").write_text(
        "import os, no_readv\n"
        "if os.environ.get('OMPI_COMM_WORLD_RANK') == '1':\n    no_readv.refuse()\n"
    )
    path = f"{early}:{launcher.ROOT}:{launcher.HERE}"
    env = {"SMDDP_LOG_LEVEL": "debug", "PYTHONPATH": path}
    result = job(single_copy.move, 3, env=env, cold=True)
    result.check(3)
    assert "single_copy_alltoall: the ranks cannot read each other's memory" in result.output
    assert "single_copy_alltoall: taken" not in result.output


def test_reading_is_switched_off(job):
    """On all ranks."""
    env = {"SMDDP_LOG_LEVEL": "debug", "SMDDP_SINGLE_COPY": "0"}
    result = job(single_copy.move, 2, env=env)
    result.check(2)
    assert "single_copy_alltoall: taken" not in result.output


def test_a_peer_dies(job):
    """Whose memory is gone is told of as always."""
    result = job(single_copy.a_peer_dies, 3, timeout=90, cold=ONE_PARENT)
    assert not result.timed_out, result.output[-4000:]
    assert result.returncode != 0
    assert "rank 1 (process" in result.output, result.output[-4000:]
    for survivor in result.results.values():
        assert "rank 1" in survivor["text"]
        assert survivor["seconds"] < 20
