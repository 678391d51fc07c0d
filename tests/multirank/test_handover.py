"""Ops that complete later, and ops that block because TensorFlow's callback is not known."""

from bodies import handover

# Fewer threads than buckets.
BLOCKING = {"SMDDP_TEST_BLOCKING_OPS": "1", "TF_NUM_INTEROP_THREADS": "2"}


def test_every_op_completes_later(job, python):
    """Eager, in functions, sets, threads and a session."""
    for result in job(handover.every_op, 2, python=python).check(2).values():
        assert result["how"] == (1 if result["kept"] else 2)


def test_every_op_blocks(job, python):
    """The same, and the log says it once on each rank."""
    job = job(handover.every_op, 2, python=python, env=BLOCKING)
    assert {result["how"] for result in job.check(2).values()} == {3}
    assert job.output.count("operations cannot be completed later") == 2, job.output[-4000:]
