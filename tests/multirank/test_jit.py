"""XLA's two kinds of custom call: who gets which, what they carry, and the classes of failures."""

from bodies import jit
from conftest import PYTHONS, on_ranks


def test_classes_of_failures(job, python):
    """From TensorFlow 2.18 on as without jit; before, XLA has InternalError only."""
    job = job(jit.classes_of_failures, 2, python=python, env={"SMDDP_TIMEOUT_SECONDS": "3"})
    # Its exit code tells that it failed: MPI is not finalized then.
    assert not job.timed_out and sorted(job.results) == [0, 1], job.output[-8000:]
    first, second = job.results[0], job.results[1]
    typed = first["typed"]
    assert first["kind"] == second["kind"] == ("typed" if typed else "legacy")
    assert first["found"] == {
        "mismatch": "FailedPreconditionError" if typed else "InternalError",
        "late": "DeadlineExceededError" if typed else "InternalError",
        "left": "UnknownError" if typed else "InternalError",
    }
    assert second["found"]["mismatch"] == first["found"]["mismatch"]


def test_what_calls_carry(job, python):
    """Dtypes, names, scales; the two kinds meet: ranks of one job may differ."""
    job(jit.what_calls_carry, 2, python=python).check(2)


def test_keras_fit(job, python):
    """fit(jit_compile=True) on two ranks learns what one process does on the whole batch."""
    for result in job(jit.keras_fit, 2, python=python).check(2).values():
        # A mean of 12 in another order, 16 steps of rate 0.1 with momentum 0.9 (as 1.0): gradients
        # below 1 with a relative rounding of 2^-24 * 12 stay under 1e-5 * 16 * 0.1.
        assert result["worst"] < 2e-5, result


def test_row_major(job, python):
    """Calls say how their tensors lie in memory; on the CPU that is what XLA does anyway."""
    job(jit.row_major, 2, python=python).check(2)


def test_one_variable(job, python):
    """XLA refuses a program to which two handles of one variable are passed."""
    results = job(jit.one_variable, 2, python=python).check(2)
    assert {result["checks"] for result in results.values()} == {5}


@on_ranks("python", PYTHONS, 2, 3)
def test_conditions_of_loops(job, python, ranks):
    """Calls in a condition keep their order, and that with the body's; branches on results."""
    job(jit.conditions_of_loops, ranks, python=python).check(ranks)
