"""Without mpirun a script just runs: one rank, and every collective is the identity."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import smddp_tf as hvd
from smddp_tf._src.job import config


@pytest.fixture(autouse=True)
def _job():
    hvd.init()


def test_one_rank():
    """Rank, size and the rest."""
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (0, 1, 0, 1)
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, True)
    assert hvd.global_process_set.ranks == [0]
    assert hvd.is_initialized()


def test_the_one_set():
    """All ranks are the global set, and there is no other of one rank."""
    with pytest.raises(ValueError, match="global_process_set"):
        hvd.add_process_set([0])
    with pytest.raises(ValueError, match="0 to 0"):
        hvd.add_process_set([0, 1])
    lone = hvd.ProcessSet([0])
    assert (lone.size(), lone.rank(), lone.included()) == (None, None, None)
    with pytest.raises(ValueError, match="not in the job"):
        hvd.allreduce(1.0, process_set=lone)
    assert not hvd.remove_process_set(hvd.global_process_set)


@pytest.mark.parametrize("jit", [None, False, True])
def test_identity(jit):
    """Values come back, scaled if asked."""
    x = tf.constant([1.0, 2.0])

    def run():
        return (
            hvd.allreduce(x),
            hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0),
            *hvd.grouped_allreduce([x, x + 1]),
            hvd.broadcast(x, 0),
            hvd.allgather(x),
        )

    got = run() if jit is None else tf.function(run, jit_compile=jit)()
    for value, want in zip(got, (x, 2 * x, x, x + 1, x, x), strict=True):
        assert np.array_equal(value, want)


def test_tape_adds_nothing():
    """No op of the library is in the graph."""
    v = tf.Variable(1.0)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = v * v
        return hvd.DistributedGradientTape(tape).gradient(loss, v)

    assert float(step()) == 2.0
    nodes = step.get_concrete_function().graph.as_graph_def().node
    assert not [node.op for node in nodes if node.op.startswith("Smddp")]


def test_objects_and_compression():
    """Objects come back; compression restores the dtype."""
    assert hvd.broadcast_object([1], 0) == [1]
    assert hvd.allgather_object("a") == ["a"]
    for compression, dtype in (("fp16", tf.float16), ("bf16", tf.bfloat16)):
        compressor = getattr(hvd.Compression, compression)
        small, context = compressor.compress(tf.constant([1.5]))
        assert small.dtype == dtype
        assert compressor.decompress(small, context).dtype == tf.float32
        whole, context = compressor.compress(tf.constant([1]))
        assert (whole.dtype, context) == (tf.int32, None)


@pytest.mark.parametrize("value", ["many", "0", "-3", "1.5"])
def test_bad_option(monkeypatch, value):
    """The message has the name, the value and what is accepted."""
    monkeypatch.setenv("SMDDP_BUCKET_BYTES", value)
    with pytest.raises(ValueError, match=f"SMDDP_BUCKET_BYTES='{value}'.*whole number"):
        config.load()


@pytest.mark.parametrize(
    "before", ["", "import keras; keras.src.backend.config._BACKEND = 'torch'"]
)
def test_another_backend_of_keras(before):
    """It is refused at import, with the remedy, whether or not the backend is installed."""
    backend = "tensorflow" if before else "jax"  # which Keras then cannot import here
    done = subprocess.run(
        [sys.executable, "-c", f"{before}\nimport smddp_tf.keras"],
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and said.startswith("ImportError: smddp_tf.keras"), done.stderr
    assert "set KERAS_BACKEND=tensorflow before Keras is imported" in said, said
    assert ("docs/pytorch.md" in said) == bool(before), said


def test_jobs_leave_no_memory_behind():
    """init() and shutdown(), again and again, with collectives in between.

    What a job leaves behind grows in every round. What malloc() keeps for more threads does not.
    """

    def resident() -> int:
        pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def growth(jobs: int) -> int:
        before = resident()
        for _ in range(jobs):
            hvd.init()
            hvd.allreduce(tf.ones([1 << 20]))
            hvd.shutdown()
        return resident() - before

    growth(jobs=5)
    rounds = [growth(jobs=40) for _ in range(3)]
    assert min(rounds) < 20 << 20, rounds  # each job has used 2 MiB
