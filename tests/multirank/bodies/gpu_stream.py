"""What ranks do in test_gpu_stream.py: kernels of a CPU and a GPU look for their stream."""

import ctypes
import os

import numpy as np
import tensorflow as tf
from checks import equal
from harness import rank, report, size, without_init
from tensorflow.python.eager import context
from tensorflow.python.eager import execute as eager

import smddp_tf as hvd
from smddp_tf._src.graph import library

GPU, CPU = "/GPU:0", "/CPU:0"
# One of each layout, and one that nobody knows.
VERSIONS = ("2.15.1", "2.16.2", "2.17.1", "2.20.0", "2.99.0")
STEPS = 5

_COMPUTE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def _ours():
    """libsmddp_tf.so, with the functions that are for tests."""
    library.ops()
    ours = library._tf_library()
    ours.smddp_find_stream.restype = ctypes.c_char_p
    ours.smddp_find_stream.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return ours


class Probe:
    """An op without inputs, whose kernel calls look(context)."""

    def __init__(self, look):
        path = os.path.join(tf.sysconfig.get_lib(), "libtensorflow_framework.so.2")
        self._tf = ctypes.CDLL(path)
        for name in ("TF_NewStatus", "TF_NewOpDefinitionBuilder", "TF_NewKernelBuilder"):
            getattr(self._tf, name).restype = ctypes.c_void_p
        self._tf.TF_Message.restype = ctypes.c_char_p
        self._status = ctypes.c_void_p(self._tf.TF_NewStatus())
        self._compute = _COMPUTE(lambda kernel, kernels_context: look(kernels_context))
        op = ctypes.c_void_p(self._tf.TF_NewOpDefinitionBuilder(b"StreamProbe"))
        self._tf.TF_OpDefinitionBuilderSetIsStateful(op, True)
        self._checked("TF_RegisterOpDefinition", op)
        for device in (b"CPU", b"GPU"):
            new = self._tf.TF_NewKernelBuilder
            kernel = ctypes.c_void_p(new(b"StreamProbe", device, None, self._compute, None))
            self._checked("TF_RegisterKernelBuilder", b"StreamProbe", kernel)

    def _checked(self, name, *arguments):
        getattr(self._tf, name)(*arguments, self._status)
        said = self._tf.TF_Message(self._status)
        assert self._tf.TF_GetCode(self._status) == 0, f"{name}: {said}"

    @staticmethod
    def run():
        """Here, or in the graph that is being built."""
        if tf.executing_eagerly():
            eager.execute(b"StreamProbe", 0, [], None, context.context())
        else:
            tf.compat.v1.get_default_graph().create_op("StreamProbe", [], [])

    def streams_by_tensorflow(self, kernels_context):
        """What TF_GetStream returns, which it does for pluggable devices; None for others."""
        get = self._tf.TF_GetStream
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_void_p]
        return get(kernels_context, self._status)

    def frame(self, kernels_context):
        """The number of the loop in which the kernel runs; 0 outside of loops."""
        get = self._tf.TF_GetFrameId
        get.restype, get.argtypes = ctypes.c_uint64, [ctypes.c_void_p]
        return get(kernels_context)


def _probed():
    """What each kernel finds by each layout, run eagerly, in a function, and in a loop of one."""
    ours, seen = _ours(), []

    def look(kernels_context):
        found = {}
        for version in (tf.__version__, *VERSIONS):
            stream = ctypes.c_void_p()
            problem = ours.smddp_find_stream(
                kernels_context, version.encode(), ctypes.addressof(stream)
            )
            found[version] = (problem.decode(), stream.value)
        seen.append(
            (probe.streams_by_tensorflow(kernels_context), probe.frame(kernels_context), found)
        )

    probe = Probe(look)

    @tf.function
    def in_graph():
        probe.run()
        tf.while_loop(lambda i: i < 3, lambda i: (probe.run(), i + 1)[1:], [tf.constant(0)])

    results = {}
    for device in (CPU, GPU):
        seen.clear()
        with tf.device(device):
            probe.run()
            in_graph()
        results[device] = list(seen)
        assert len(seen) == 5, f"{len(seen)} kernels ran"
        assert sum(frame != 0 for _, frame, _ in seen) == 3, "three of them in the loop"
    return results


def _layout(version):
    """The offsets that the library has for a version; None if it does not know it."""
    offsets = (ctypes.c_int64 * 5)()
    known = _ours().smddp_stream_layout(version.encode(), offsets)
    return list(offsets) if known else None


def _kernels_find_their_stream(probed):
    """By this TensorFlow's own layout only; a CPU's kernel has none, and the last step says so."""
    own = _layout(tf.__version__)
    assert own is not None and _layout("2.99.0") is None
    for device, kernels in probed.items():
        for by_tensorflow, _, found in kernels:
            for version, (problem, stream) in found.items():
                what = f"{device} by {version}: {problem}"
                if _layout(version) != own:
                    assert problem and stream is None, what
                elif device == CPU:
                    assert problem == "the kernel's device is no accelerator", what
                else:
                    assert not problem and stream == by_tensorflow is not None, what


def _synchronizations():
    """How often a thread has waited for the whole GPU."""
    return ctypes.CDLL("libcuda.so.1").FakeSynchronizations()


def _mine(step):
    with tf.device(GPU):
        return tf.identity(tf.range(4.0) + rank + step)


def _collectives_wait_for_the_stream_alone():
    """Between kernels that are late; nobody waits for all that the GPU does."""

    @tf.function
    def moved(x):
        y = tf.square(x)
        reduced = tf.square(hvd.allreduce(y, op=hvd.Sum))
        return reduced, hvd.allgather(y[: rank + 1]), hvd.broadcast(y, size - 1)

    moved(_mine(0))  # devices are opened at the first
    begin = _synchronizations()
    for step in range(STEPS):
        squares = [(np.arange(4.0) + r + step) ** 2 for r in range(size)]
        reduced, gathered, sent = moved(_mine(step))
        equal(reduced, sum(squares) ** 2, f"step {step}")
        equal(gathered, np.concatenate([squares[r][: r + 1] for r in range(size)]), f"step {step}")
        equal(sent, squares[-1], f"step {step}")
    return _synchronizations() - begin


@without_init
def every_kernel():
    """All of the above."""
    _kernels_find_their_stream(_probed())
    hvd.init()
    report(
        version=tf.__version__,
        library=os.path.join(tf.sysconfig.get_lib(), "libtensorflow_framework.so.2"),
        layout=_layout(tf.__version__),
        synchronizations=_collectives_wait_for_the_stream_alone(),
    )


def on_the_host():
    """Where TensorFlow's stream is not found, a thread waits before each collective."""
    report(steps=STEPS, synchronizations=_collectives_wait_for_the_stream_alone())
