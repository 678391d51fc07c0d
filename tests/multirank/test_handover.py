"""Ops that complete later, and ops that block because TensorFlow's callback is not known."""

from scripts import with_checks

EVERY_OP = """
import threading
from smddp_tf._graph import library

def every_op():
    x = tf.range(4.0) + rank
    equal(hvd.allreduce(x, op=hvd.Sum), np.arange(4.0) * size + total - size)
    for got in hvd.grouped_allreduce([x, x * 2], op=hvd.Max)[1:]:
        equal(got, (np.arange(4.0) + size - 1) * 2)
    equal(hvd.allgather(tf.fill([rank + 1], rank)), np.repeat(np.arange(size), range(1, size + 1)))
    equal(hvd.broadcast(x, size - 1), np.arange(4.0) + size - 1)
    rows, received = hvd.alltoall(tf.fill([2 * size], rank), tf.fill([size], 2))
    equal(rows, np.repeat(np.arange(size), 2))
    equal(received, 2)
    equal(hvd.reducescatter(tf.ones([2 * size]) * (rank + 1), op=hvd.Sum), total)
    hvd.barrier()

weights = [tf.Variable(tf.ones([3000])) for _ in range(8)]
def tape_step():
    with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum, num_groups=8) as tape:
        loss = tf.add_n([tf.reduce_sum(w * (i + 1.0)) for i, w in enumerate(weights)]) * (rank + 1)
    return tape.gradient(loss, weights)

def graph_ops():
    x = tf.range(4.0) + rank
    rows, received = hvd.alltoall(tf.fill([2 * size], rank), tf.fill([size], 2))
    hvd.barrier()
    return (hvd.allreduce(x, op=hvd.Sum), hvd.allgather(tf.fill([rank + 1], rank)),
            hvd.broadcast(x, size - 1), rows, received,
            hvd.reducescatter(tf.ones([2 * size]) * (rank + 1), op=hvd.Sum))
wants = (np.arange(4.0) * size + total - size, np.repeat(np.arange(size), range(1, size + 1)),
         np.arange(4.0) + size - 1, np.repeat(np.arange(size), 2), 2, total)

function, graph_tape = tf.function(graph_ops), tf.function(tape_step)
for _ in range(5):
    every_op()
    for got, want in zip(function(), wants):
        equal(got, want)
    for step in (tape_step, graph_tape):
        for i, grad in enumerate(step()):
            equal(grad, (i + 1.0) * total, "tape")
kinds = [op.type for op in graph_tape.get_concrete_function().graph.get_operations()]
assert kinds.count("SmddpPlanBucket") == 8, kinds

# One rank fails in the middle of a step, the other sees a mismatch or nothing; then all goes on.
if rank == 0:
    try:
        tf.function(lambda: (tf.debugging.assert_equal(tf.constant(rank), 1), tape_step()))()
        raise SystemExit("accepted")
    except tf.errors.InvalidArgumentError:
        pass
hvd.barrier()
for i, grad in enumerate(graph_tape()):
    equal(grad, (i + 1.0) * total, "after a failure")
try:
    hvd.allreduce(tf.ones([2 + rank]))
    raise SystemExit("accepted")
except tf.errors.FailedPreconditionError as error:
    assert "Mismatched" in error.message

# Process sets, each with a collective under way when the other begins.
sets = [hvd.add_process_set([0]), hvd.add_process_set([1])]
for _ in range(5):
    equal(hvd.allreduce(tf.constant(rank + 1.0), op=hvd.Sum, process_set=sets[rank]), rank + 1)
    equal(hvd.allreduce(tf.constant(rank + 1.0), op=hvd.Sum), total)

# By name: two threads in one order or the other, and a session.
def in_thread(name):
    one = tf.function(lambda: hvd.allreduce(tf.constant(rank + 1.0), op=hvd.Sum, name=name))
    for _ in range(5):
        equal(one(), total, name)
threads = [threading.Thread(target=in_thread, args=(name,)) for name in ("a", "b")]
for thread in threads if rank else threads[::-1]:
    thread.start()
for thread in threads:
    thread.join(60)
    assert not thread.is_alive()
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    fetches = [hvd.allreduce(tf.constant(rank + 1.0), op=hvd.Sum, name=n) for n in ("c", "d")]
    for _ in range(5):
        for got in session.run(fetches if rank else fetches[::-1]):
            assert got == total, got
assert int(tf.function(hvd.join)()) in range(size)
kept = [int(n) for n in tf.__version__.split(".")[:2]] >= [2, 22]
report(checks=checks, how=library.handover(), kept=kept)
"""

# Fewer threads than buckets.
BLOCKING = {"SMDDP_TEST_BLOCKING_OPS": "1", "TF_NUM_INTEROP_THREADS": "2"}


def test_every_op_completes_later(job, python):
    """Eager, in functions, sets, threads and a session."""
    for result in job(with_checks(EVERY_OP), 2, python=python).check(2).values():
        assert result["how"] == (1 if result["kept"] else 2)


def test_every_op_blocks(job, python):
    """The same, and the log says it once on each rank."""
    job = job(with_checks(EVERY_OP), 2, python=python, env=BLOCKING)
    assert {result["how"] for result in job.check(2).values()} == {3}
    assert job.output.count("operations cannot be completed later") == 2, job.output[-4000:]
