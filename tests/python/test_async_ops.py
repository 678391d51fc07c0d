"""The check that asynchronous ops can complete as the gradient buckets do."""

import ctypes
import pathlib
import time

import pytest
import tensorflow as tf

from smddp_tf import _native, errors


@pytest.fixture(autouse=True)
def _fresh():
    """The check's answer is kept for the process."""
    _native.check_async_ops.cache_clear()
    yield
    _native.check_async_ops.cache_clear()


def test_it_passes_and_is_cheap():
    """Eagerly and inside a trace, which it leaves without a trace; under 20 ms at the median."""
    seconds = []
    for _ in range(5):
        _native.check_async_ops.cache_clear()
        begin = time.perf_counter()
        _native.check_async_ops()
        seconds.append(time.perf_counter() - begin)
    assert sorted(seconds)[2] < 0.02, seconds

    @tf.function
    def traced():
        _native.check_async_ops.cache_clear()
        _native.check_async_ops()
        return tf.constant(1)

    assert int(traced()) == 1
    nodes = traced.get_concrete_function().graph.as_graph_def().node
    assert not [node.op for node in nodes if node.op.startswith("Smddp")]


@pytest.mark.parametrize(
    ("nap", "problem"), [(0, "its result is wrong"), (1, "within 0.2 seconds")]
)
def test_it_can_fail(monkeypatch, nap, problem):
    """A wrong result, and an op that never completes; the message says what to use instead."""

    class Broken:
        def smddp_self_test(self, x):
            time.sleep(nap)
            return x

    monkeypatch.setattr(_native, "ops", Broken)
    monkeypatch.setattr(_native, "_SELF_TEST_SECONDS", 0.2)
    with pytest.raises(errors.LibraryError, match=problem) as caught:
        _native.check_async_ops()
    assert "use TensorFlow 2.15 to 2.21" in str(caught.value)


def test_another_callback_is_refused():
    """What has no code where std::function has its two functions is not copied."""
    library = ctypes.CDLL(str(pathlib.Path(_native.__file__).parent / "lib" / "libsmddp_tf.so"))
    library.smddp_callback_problem.restype = ctypes.c_char_p
    library.smddp_callback_problem.argtypes = [ctypes.c_void_p]
    code = ctypes.cast(library.smddp_xla_error, ctypes.c_void_p).value
    heap = ctypes.addressof(ctypes.create_string_buffer(64))
    for words, known in (
        ((heap, heap, code, code), True),
        ((0, 0, 0, 0), False),
        ((code, heap, heap, heap), False),
        ((code, heap, code, heap), False),
    ):
        callback = (ctypes.c_uint64 * 4)(*words)
        problem = library.smddp_callback_problem(callback)
        assert (problem == b"") == known, (words, problem)
