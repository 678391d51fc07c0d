"""What ranks do in test_gpu_compressors.py. Square is late there; see gpu.py."""

import contextlib

import numpy as np
import tensorflow as tf
from checks import equal
from harness import rank, report, size

import smddp_tf as hvd
from smddp_tf._graph import gpu_compressors
from smddp_tf._job import native

GPU, CPU = "/GPU:0", "/CPU:0"
TYPES = (tf.float32, tf.float64, tf.float16, tf.bfloat16)
LENGTHS = (1, 255, 256, 257, 5000)


def _numbers(count, step):
    """Differ by rank and step; some are equal, and one is inf."""
    x = np.random.RandomState(100 * step + rank).randn(count).astype(np.float32)
    x[::5] = np.round(x[::5])
    if count > 3000:
        x[3000] = np.inf
    return x


def _on(device, x, dtype=None):
    with tf.device(device):
        return tf.identity(x if dtype is None else tf.cast(x, dtype))


def _reduced(x, compression, key, device):
    """Compressed there, whatever else runs where."""
    with tf.device(device) if device == CPU else contextlib.nullcontext():
        return hvd.allreduce(x, op=hvd.Average, compression=compression, name=key)


def _calls():
    return hvd.stats()["gpu_compressions"]


def _same(got, want, what):
    """Also where they are nan."""
    got, want = (tf.cast(one, tf.float64).numpy() for one in (got, want))
    assert np.array_equal(got, want, equal_nan=True), (what, got, want)


def _every_type_and_length(make, name):
    """As the CPU's ops would make it, twice: what is kept differs the second time.

    Returns how many ops GPUs have run.
    """
    before = _calls()
    on_gpu, on_cpu = make(), make()
    for dtype in TYPES:
        for count in LENGTHS:
            for step in range(2):
                x = _numbers(count, step)
                what = f"{name} {dtype.name} {count} {step}"
                got = _reduced(_on(GPU, x, dtype), on_gpu, what[:-2], GPU)
                want = _reduced(_on(CPU, x, dtype), on_cpu, what[:-2] + " cpu", CPU)
                _same(got, want, what)
    equal(_reduced(_on(GPU, tf.zeros([0])), on_gpu, f"{name} empty", GPU), np.zeros([0]))
    return _calls() - before


def _behind_late_kernels(make, name):
    """In a function, of what a kernel of the GPU has not computed yet; read by another such."""
    on_gpu, on_cpu = make(), make()

    @tf.function
    def step(x):
        return tf.square(_reduced(tf.square(x), on_gpu, name, GPU))

    before = _calls()
    for number in range(4):
        x = _numbers(1000, number)
        got = step(_on(GPU, x))
        want = _reduced(_on(CPU, x * x), on_cpu, f"{name} cpu", CPU)
        # TensorFlow's ops multiply by 1 / size in a graph.
        wanted = np.square(want.numpy())
        assert np.allclose(got, wanted, rtol=0 if _calls() > before else 1e-6, atol=0), (got, want)
    return _calls() - before


def _trains(make):
    """Through the tape: gradients of a matrix and a vector."""
    compression = make()
    with tf.device(GPU):
        weights = [tf.Variable(tf.ones([40, 30])), tf.Variable(tf.ones([30]))]

    @tf.function
    def gradients(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.linalg.matvec(weights[0], weights[1]) * x)
        return hvd.DistributedGradientTape(tape, op=hvd.Sum, compression=compression).gradient(
            loss, weights
        )

    for number in range(3):
        got = gradients(_on(GPU, tf.fill([40], 127.0 * (rank + 1 + number))))
        total = sum(127.0 * (r + 1 + number) for r in range(size))
        equal(got[0], np.full([40, 30], total), f"matrix {number}")
        equal(got[1], np.full([30], 40 * total), f"vector {number}")


def _compressors():
    topk = hvd.Compression.topk
    return {
        "int8": lambda: hvd.Compression.int8,
        "topk": lambda: topk(0.1),
        "all": lambda: topk(1.0),
    }


def compressed():
    """All of the above with each compressor."""
    counts = {}
    for name, make in _compressors().items():
        counts[name] = [_every_type_and_length(make, name), _behind_late_kernels(make, name)]
    _trains(lambda: hvd.Compression.int8)
    _trains(lambda: hvd.Compression.topk(1.0))
    report(counts=counts, problem=gpu_compressors.problem(), kernels=native.kernels())
