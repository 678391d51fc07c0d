"""Large tensors that only move are read from the peer's memory, or through what the node shares.

Ranks start cold where they read each other: Yama may allow that to processes of one parent only.
"""

import platform

import launcher
import pytest
from scripts import with_checks

MOVE = """
N = 40_000
def pattern(r, n=N):
    return (np.arange(n) % 1000 + 1000 * r).astype(np.float32)
one = tf.constant(pattern(rank))
for way, wrap in WAYS.items():
    for root in (0, size - 1):
        equal(wrap(lambda: hvd.broadcast(one, root_rank=root))(), pattern(root), way, "broadcast")
    gathered = wrap(lambda: hvd.allgather(one))()
    equal(gathered, np.concatenate([pattern(r) for r in range(size)]), way, "allgather")
    parts = tf.reshape(tf.tile(one, [size]), [size * N])
    want = np.concatenate([pattern(r) for r in range(size)])
    equal(wrap(lambda: hvd.alltoall(parts))(), want, way, "alltoall")
variables = [tf.Variable(pattern(rank, n)) for n in (1, 70_000, 0, 33, 20_000)]
hvd.broadcast_variables(variables, root_rank=1)
for v in variables:
    equal(v, pattern(1, v.shape[0]), "variables")
# What the root does with its tensor afterwards is not seen by anybody.
for i in range(50):
    v = tf.Variable(tf.fill([N], float(i + rank)))
    got = hvd.broadcast(v, root_rank=0)
    v.assign(tf.zeros([N]))
    equal(got, i, "overwritten")
# Uneven parts, some empty, on a process set.
evens = hvd.add_process_set(list(range(0, size, 2)))
if rank % 2 == 0:
    own = pattern(rank, 0 if rank == 2 else 30_000 + rank)
    want = [pattern(r, 0 if r == 2 else 30_000 + r) for r in range(0, size, 2)]
    equal(hvd.allgather(own, process_set=evens), np.concatenate(want), "set")
report(checks=checks)
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_from_peer_to_peer(job, ranks):
    """The same values in all ways; large tensors are read from the peers."""
    result = job(with_checks(MOVE), ranks, env={"SMDDP_LOG_LEVEL": "debug"}, cold=True)
    result.check(ranks)
    for name in ("broadcast", "allgather", "alltoall"):
        assert f"single_copy_{name}: taken" in result.output, result.output[-3000:]


# From now on the kernel refuses process_vm_readv to this process, as it does where a sandbox is
# entered late. The filter is classic BPF: load the call's number, compare, return.
REFUSE = """
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
if rank in REFUSED:
    READV, EPERM = 310, 1
    refuse, allow = (0x06, 0, 0, 0x50000 | EPERM), (0x06, 0, 0, 0x7FFF0000)
    rules = [(0x20, 0, 0, 0), (0x15, 0, 1, READV), refuse, allow]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *r) for r in rules))
    where = ctypes.addressof(program)
    filters = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rules), where))
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    all_threads, set_filter, seccomp = 1, 1, 317
    assert libc.syscall(seccomp, set_filter, all_threads, filters) == 0, ctypes.get_errno()
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter has x86-64's numbers")
@pytest.mark.parametrize(("ranks", "refused"), [(2, {1}), (3, {0, 1, 2})])
def test_reading_is_refused_later(job, ranks, refused):
    """The operation is done again through what the node shares; the values are the same."""
    body = with_checks(f"REFUSED = {refused}\n" + REFUSE + MOVE)
    result = job(body, ranks, env={"SMDDP_LOG_LEVEL": "debug"}, cold=True)
    result.check(ranks)
    assert "single_copy_broadcast: taken" in result.output
    told = result.output.count("Operation not permitted; the ranks copy through the memory")
    assert told > len(refused), result.output[-3000:]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter has x86-64's numbers")
def test_a_rank_that_may_not_read(job, tmp_path):
    """From its start, as in a sandbox: no rank tries, and the values are the same."""
    early = tmp_path / "early"
    early.mkdir()
    rank = "rank, REFUSED = __import__('os').environ.get('OMPI_COMM_WORLD_RANK'), ['1']\n"
    (early / "sitecustomize.py").write_text(rank + REFUSE)
    env = {"SMDDP_LOG_LEVEL": "debug", "PYTHONPATH": f"{early}:{launcher.ROOT}"}
    result = job(with_checks(MOVE), 3, env=env, cold=True)
    result.check(3)
    assert "single_copy_broadcast: the ranks cannot read each other's memory" in result.output
    assert "single_copy_broadcast: taken" not in result.output


def test_reading_is_switched_off(job):
    """On all ranks."""
    env = {"SMDDP_LOG_LEVEL": "debug", "SMDDP_SINGLE_COPY": "0"}
    result = job(with_checks(MOVE), 2, env=env)
    result.check(2)
    assert "single_copy_broadcast: taken" not in result.output


GONE = """
x = tf.ones([4_000_000]) * rank
hvd.broadcast(x, root_rank=1)
begin = time.time()
try:
    for i in range(10**6):
        if rank == 1 and i == 20:
            os.kill(os.getpid(), 9)
        hvd.allgather(x)
except tf.errors.OpError as error:
    report(text=error.message, seconds=time.time() - begin)
    time.sleep(1)  # let the others report before mpirun ends the job
    raise
"""


def test_a_peer_dies(job):
    """Whose memory is gone is told of as always."""
    result = job(GONE, 3, timeout=90, cold=True)
    assert not result.timed_out, result.output[-4000:]
    assert result.returncode != 0
    assert "rank 1 (process" in result.output, result.output[-4000:]
    for survivor in result.results.values():
        assert "rank 1" in survivor["text"]
        assert survivor["seconds"] < 20
