"""join(): ranks that ran out of data, through mpirun."""

import time

import pytest
from scripts import with_checks

UNEVEN = """
big, small = tf.Variable(tf.zeros([300000])), tf.Variable(tf.zeros([3]))
table = tf.Variable(tf.zeros([4, 2]))
def gradients(sparse):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(big) * (rank + 1.0) + tf.reduce_sum(small)
        if sparse:
            loss += tf.reduce_sum(tf.gather(table, [rank % 4])) * (rank + 1.0)
    sources = [big, small, table] if sparse else [big, small]
    return hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, sources)
step = tf.function(gradients)
for round_ in range(3):
    # Rank r takes 2 + r steps, the last rank joins last; in step i ranks >= i - 1 take part.
    for i in range(2 + rank):
        here = [r for r in range(size) if i < 2 + r]
        got = step(i % 2 == 0)
        equal(got[0], sum(r + 1 for r in here), "tape", i)
        equal(got[1], len(here), "tape", i)
        if i % 2 == 0:
            dense = np.zeros((4, 2))
            for r in here:
                dense[r % 4] += r + 1
            equal(tf.convert_to_tensor(got[2]), dense, "sparse", i)
        equal(hvd.allreduce(tf.constant(rank + 1.0), op=hvd.Sum), sum(r + 1 for r in here))
        mean = float(np.float32(len(here)) * np.float32(1 / size))
        equal(hvd.allreduce(tf.ones([100000])), mean, "average")
        rows = hvd.allgather(tf.fill([rank, 2], rank))
        equal(rows[:, 0], np.repeat(here, here), "allgather")
        equal(hvd.broadcast(tf.constant(rank), size - 1), size - 1)
        hvd.barrier()
        if i >= 2:  # rank 0 has joined
            for call in (lambda: hvd.allreduce(tf.constant(1.0), op=hvd.Max),
                         lambda: hvd.broadcast(tf.constant(1.0), 0),
                         lambda: hvd.reducescatter(tf.ones([size]))):
                try:
                    call()
                    raise SystemExit("not refused")
                except tf.errors.FailedPreconditionError as error:
                    assert "join()" in error.message, error.message
            try:
                tf.function(lambda: hvd.allgather(tf.ones([2])), jit_compile=True)()
                raise SystemExit("rows of a rank that has none")
            except tf.errors.FailedPreconditionError as error:
                assert "join()" in error.message, error.message
            try:
                hvd.alltoall(tf.ones([size]))
                raise SystemExit("not refused")
            except tf.errors.InvalidArgumentError as error:
                assert "rank 0 has called join()" in error.message, error.message
    last = hvd.join() if round_ < 2 else tf.function(hvd.join)()
    equal(last, size - 1, "last")
    # Everything goes on with all ranks.
    equal(gradients(True)[0], total)
    equal(hvd.allreduce(tf.constant(1.0), op=hvd.Sum), size)
report(checks=checks)
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_uneven_steps(job, ranks):
    """Zeros for who has joined; three rounds; what zeros do not do is an error for all."""
    job(with_checks(UNEVEN), ranks).check(ranks)


def test_a_rank_that_ends_without_joining(job):
    """Who waits in join() is told."""
    body = """
    if rank == 1:
        report(ended=True)
        sys.exit(0)
    try:
        hvd.join()
        raise SystemExit("joined alone")
    except tf.errors.UnknownError as error:
        assert "rank 1 has ended before it called join()" in error.message, error.message
    report(ended=False)
    """
    start = time.monotonic()
    result = job(body, 2)
    assert sorted(result.results) == [0, 1], result.output[-3000:]
    assert time.monotonic() - start < 60


NODES = """
big, small = tf.Variable(tf.zeros([300000])), tf.Variable(tf.zeros([3]))
@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(big) * (rank + 1.0) + tf.reduce_sum(small)
    return hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, [big, small])
orders = [list(range(size)), list(range(size))[::-1], [r % 2 for r in range(size)]]
for steps in orders:
    # Rank r takes steps[r] steps, so that each node is the first to be without data.
    for i in range(steps[rank]):
        here = [r for r in range(size) if i < steps[r]]
        got = step()
        equal(got[0], sum(r + 1 for r in here), "tape", i)
        equal(got[1], len(here), "tape", i)
        equal(hvd.allreduce(tf.constant(rank + 1.0), op=hvd.Sum), sum(r + 1 for r in here))
        x16 = tf.cast(tf.ones([5000]) * (rank + 1.0), tf.bfloat16)
        equal(hvd.allreduce(x16, op=hvd.Sum), sum(r + 1 for r in here), "bfloat16")
        hvd.barrier()
        if len(here) == size:
            equal(hvd.broadcast(tf.constant(rank), 1), 1)
            continue
        for call in (lambda: hvd.allreduce(tf.constant(1.0), op=hvd.Max),
                     lambda: hvd.broadcast(tf.constant(1.0), here[0]),
                     lambda: hvd.allgather(tf.ones([2])),
                     lambda: hvd.alltoall(tf.ones([size])),
                     lambda: hvd.reducescatter(tf.ones([size]))):
            try:
                call()
                raise SystemExit("not refused")
            except tf.errors.FailedPreconditionError as error:
                assert "join()" in error.message, error.message
    if len(set(steps)) == size and steps[rank] == size - 1:
        time.sleep(0.2)
    last = int(hvd.join())
    if len(set(steps)) == size:
        equal(last, steps.index(size - 1), "last")
    # Everything goes on with all ranks, at once.
    equal(hvd.allreduce(tf.constant(1.0), op=hvd.Sum), size)
    equal(step()[0], total)
    equal(hvd.allgather(tf.fill([1], last)), last, "all were told the same")
report(checks=checks)
"""


@pytest.mark.parametrize(("ranks", "nodes"), [(3, 2), (4, 2)])
def test_several_nodes(job, ranks, nodes):
    """Sums, averages and barriers are served between nodes, the rest is refused on all ranks."""
    job(with_checks(NODES), ranks, env={"SMDDP_NODES": str(nodes)}).check(ranks)


AT_ONCE = """
for i in range(300):
    if i % 3 == rank % 3:
        hvd.allreduce(tf.constant(1.0), op=hvd.Sum)
    hvd.join()
    # Begun while slower ranks may not have left join() yet.
    equal(hvd.allreduce(tf.constant(rank + 1.0), op=hvd.Sum), total, i)
report(checks=checks)
"""


@pytest.mark.parametrize("nodes", [0, 2])
def test_what_follows_a_join_is_not_served_with_zeros(job, nodes):
    """A rank that leaves join() first can begin the next collective at once."""
    job(with_checks(AT_ONCE), 4, env={"SMDDP_NODES": str(nodes)}).check(4)


def test_queries_answer_when_they_run(job, python):
    """rank_op() and the like in a function that is traced once, and for process sets."""
    body = """
    pair = hvd.add_process_set([0, 1])
    @tf.function
    def ask():
        return (hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op(),
                hvd.size_op(pair.process_set_id), hvd.process_set_included_op(1))
    for _ in range(2):
        got = [int(x) for x in ask()]
        assert got == [rank, 3, hvd.local_rank(), 3, 2, int(rank < 2)], got
    assert hvd.rank_op().shape == [] and int(hvd.rank_op()) == rank
    hvd.remove_process_set(pair)
    try:
        hvd.size_op(1)
        raise SystemExit("a removed set has a size")
    except tf.errors.InvalidArgumentError as error:
        assert "process set 1" in error.message
    report(checks=1)
    hvd.shutdown()
    try:
        ask()
        raise SystemExit("answered after shutdown")
    except tf.errors.FailedPreconditionError as error:
        assert "init()" in error.message
    """
    job(body, 3, python=python).check(3)
