"""The check that asynchronous ops can complete as the gradient buckets do."""

import ctypes
import threading
import time
from typing import ClassVar

import pytest
import tensorflow as tf

from smddp_tf import errors
from smddp_tf._src.graph import library as ops_library


@pytest.fixture(autouse=True)
def _fresh():
    """The check's answer is kept for the process."""
    ops_library.check_async_ops.cache_clear()
    yield
    ops_library.check_async_ops.cache_clear()


@pytest.mark.quiet
def test_it_passes_and_is_cheap():
    """Eagerly and inside a trace, which it leaves without a trace; under 20 ms at the median."""
    seconds = []
    for _ in range(5):
        ops_library.check_async_ops.cache_clear()
        begin = time.perf_counter()
        ops_library.check_async_ops()
        seconds.append(time.perf_counter() - begin)
    assert sorted(seconds)[2] < 0.02, seconds

    @tf.function
    def traced():
        ops_library.check_async_ops.cache_clear()
        ops_library.check_async_ops()
        return tf.constant(1)

    assert int(traced()) == 1
    nodes = traced.get_concrete_function().graph.as_graph_def().node
    assert not [node.op for node in nodes if node.op.startswith("Smddp")]


@pytest.mark.parametrize(
    ("nap", "problem"), [(0, "its result is wrong"), (1, "within 0.2 seconds")]
)
def test_it_can_fail(monkeypatch, nap, problem):
    """A wrong result, or none: ops block from then on; if that does not help, an error says so."""

    class Broken:
        works_blocked = True
        said: ClassVar = []

        def smddp_self_test(self, x):
            if self.said and self.works_blocked:
                return x + 1
            time.sleep(nap)
            return x

        def smddp_handover(self):
            return 3 if self.said else 2

        def smddp_block_ops(self, why):
            self.said.append(why.decode())

    monkeypatch.setattr(ops_library, "ops", Broken)
    monkeypatch.setattr(ops_library, "_tf_library", Broken)
    monkeypatch.setattr(ops_library, "_SELF_TEST_SECONDS", 0.2)
    ops_library.check_async_ops()
    assert len(Broken.said) == 1 and problem in Broken.said[0]
    ops_library.check_async_ops.cache_clear()
    Broken.said.clear()
    Broken.works_blocked = False
    with pytest.raises(errors.LibraryError, match=problem) as caught:
        ops_library.check_async_ops()
    assert "use TensorFlow 2.15 to 2.21" in str(caught.value)


def test_the_callback_is_recognised_by_its_declaration():
    """TensorFlow's own library declares std::function; a library that does not is not trusted."""
    library = ops_library._tf_library()
    ops_library.check_async_ops()
    assert library.smddp_takes_std_function(b"libtensorflow_framework.so.2") == 1
    assert library.smddp_takes_std_function(b"libsmddp.so") == 0
    assert library.smddp_takes_std_function(b"libnothing.so.1") == 0
    assert library.smddp_handover() == 2


def test_what_lives_on_the_stack_is_known():
    """A callback on the caller's stack dies when the kernel returns; one on the heap does not."""
    library = ops_library._tf_library()
    library.smddp_outside_stack.argtypes = [ctypes.c_void_p]
    heap = ctypes.create_string_buffer(64)
    found = []

    def look():
        found.append(library.smddp_outside_stack(None))
        found.append(library.smddp_outside_stack(ctypes.addressof(heap)))

    look()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join(10)
    assert found == [0, 1, 0, 1]
