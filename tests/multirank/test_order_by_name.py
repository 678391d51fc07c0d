"""Where TensorFlow gives no order, names do: threads, and sessions of TF1 graphs."""

import numpy as np
import pytest
from bodies import order_by_name
from test_order import ENV


@pytest.mark.parametrize(("threads", "inter_op"), [(2, 0), (5, 2)])
def test_functions_called_from_several_threads(job, threads, inter_op):
    """Also more of them than TensorFlow has threads to run operations."""
    body = order_by_name.functions_of_threads(threads, inter_op)
    results = job(body, 2, env=ENV, timeout=90).check(2)
    assert all(result["sum"] == 2 for result in results.values())


@pytest.mark.parametrize(("threads", "inter_op"), [(2, 0), (5, 1)])
def test_compiled_functions_called_from_several_threads(job, python, threads, inter_op):
    """XLA locks what keeps a function's calls in order, which is not the same in two threads."""
    body = order_by_name.functions_of_threads(threads, inter_op, compiled=True)
    env = {**ENV, "SMDDP_TIMEOUT_SECONDS": "20"}
    job(body, 2, env=env, python=python, timeout=90).check(2)


def test_tapes_of_named_threads(job, python):
    """Their functions and tapes have the same names, so those of the threads tell them apart."""
    job(order_by_name.tapes_of_named_threads, 2, env=ENV, python=python, timeout=90).check(2)


def test_unnamed_threads(job):
    """A warning says that two threads have the same names, and what to do."""
    results = job(order_by_name.unnamed_threads, 2, env=ENV, timeout=60).check(2)
    for result in results.values():
        (told,) = result["warned"]
        assert "threads 'Thread-" in told and "both have the collective 'allreduce (" in told
        assert "threading.Thread(name=...)" in told


@pytest.mark.parametrize("way", ["broadcast last", "hook"])
def test_a_session_whose_broadcast_was_built_last(job, way):
    """It runs before the first step, without what the training graph's placeholders need."""
    body = {
        "broadcast last": order_by_name.session_with_the_broadcast_last,
        "hook": order_by_name.session_with_a_hook,
    }[way]
    results = job(body, 2, env=ENV, timeout=90).check(2)
    assert results[0]["weights"] == results[1]["weights"]
    # Five steps whose sums are rounded to float32 (2^-24 of numbers below 10).
    assert np.abs(results[0]["weights"] - _trained_alone()).max() < 1e-5, results[0]


def _trained_alone() -> np.ndarray:
    """The weights that gradient descent on the data of both ranks gives, in float64."""
    values = [np.random.default_rng(rank) for rank in range(2)]
    w, b = np.ones([3, 1]), np.zeros(1)
    for _ in range(5):
        parts = [(one.normal(size=(4, 3)), one.normal(size=(4, 1))) for one in values]
        x, y = (np.concatenate(half) for half in zip(*parts, strict=True))
        error = x @ w + b - y
        w, b = w - 0.1 * 2 * x.T @ error / len(x), b - 0.1 * 2 * error.mean()
    return np.concatenate([w, b], axis=None)


def test_a_session_fetches_any_subset_in_any_order(job):
    """Two threads run five collectives that are ready at once, in another order on each rank."""
    job(order_by_name.session_fetches_any_subset, 2, env=ENV, timeout=90).check(2)


def test_a_loop_of_a_session(job):
    """A while loop of TF1: its collective runs many times and counts its turns."""
    job(order_by_name.old_loop, 2, env=ENV, timeout=90).check(2)


def test_loops_of_a_session_inside_each_other(job):
    """Iterations of the inner loop run at the same time for several iterations of the outer one."""
    job(order_by_name.nested_loops, 2, env=ENV, timeout=90).check(2)


@pytest.mark.parametrize("way", ["inlined", "not optimized", "not inlined", "jit"])
def test_a_function_that_a_session_calls_several_times(job, way):
    """Its collectives have the same names in all calls, which run in any order."""
    body = order_by_name.function_called_several_times(way)
    job(body, 2, env=ENV, timeout=90).check(2)


def test_functions_inside_each_other_that_a_session_calls_twice(job):
    """The number of the inner call does not say which call of the outer function it belongs to."""
    job(order_by_name.nested_functions_called_twice, 3, env=ENV, timeout=90).check(3)


@pytest.mark.parametrize("way", ["TF1's loop", "TF2's loop", "TF2's loop, jit"])
def test_a_function_that_a_loop_of_a_session_calls(job, way):
    """Iterations of the loop overlap. TensorFlow cannot call a compiled function in TF1's loops."""
    body = order_by_name.function_called_in_loop(way)
    job(body, 2, env=ENV, timeout=90).check(2)


def test_functions_of_the_main_thread_called_from_several_threads(job):
    """They were made for program order: each waits in a thread of TensorFlow's."""
    job(order_by_name.functions_traced_before(3, 4), 2, env=ENV, timeout=90).check(2)


def test_a_wrapped_function(job):
    job(order_by_name.wrapped_function, 2, env=ENV, timeout=60).check(2)
