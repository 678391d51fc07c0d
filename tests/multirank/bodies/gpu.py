"""What ranks do in test_gpu.py. There Square is late, and reads memory that is not the host's."""

import os
import signal
import threading

import machine_time
import numpy as np
import tensorflow as tf
from checks import equal, raises, total
from harness import rank, report, report_in_time, size

import smddp_tf as hvd
from smddp_tf._src.job import config, native

GPU = "/GPU:0"
ROWS = 5


def _on_gpu(x):
    with tf.device(GPU):
        return tf.identity(x)


def _mine(count=ROWS):
    return tf.range(count, dtype=tf.float32) + rank


def _squares(of_rank, count=ROWS):
    return (np.arange(count, dtype=np.float32) + of_rank) ** 2


def _sum_of_squares(count=ROWS):
    return sum(_squares(r, count) for r in range(size))


def _device(x):
    return tf.DeviceSpec.from_string(x.device).device_type


def _where_results_are():
    """By default TensorFlow brings tensors to the CPU; with our kernels they stay."""
    got = hvd.allreduce(tf.square(_on_gpu(_mine())), op=hvd.Sum)
    equal(got, _sum_of_squares())
    assert _device(got) == ("GPU" if config.gpu_kernels() else "CPU"), got.device
    # TensorFlow has int32 in host memory, on a GPU too.
    equal(hvd.allreduce(_on_gpu(tf.constant([rank + 1])), op=hvd.Sum), [int(total)])


def _every_collective_in_a_function():
    """Each reads what a kernel of the GPU has not computed yet when it is called.

    Returns how many NCCL ran.
    """
    before = hvd.stats()["nccl_collectives"]

    @tf.function
    def moved(x):
        y = tf.square(x)
        reduced = hvd.allreduce(y, op=hvd.Sum)
        return {
            "allreduce": tf.square(reduced),
            "grouped": hvd.grouped_allreduce([y, y + 1.0], op=hvd.Sum)[1],
            "allgather": hvd.allgather(y[: rank + 1]),
            "broadcast": tf.square(hvd.broadcast(y, size - 1)),
            "alltoall": hvd.alltoall(tf.tile(y, [size])),
            "reducescatter": hvd.reducescatter(tf.tile(y, [size]), op=hvd.Sum),
        }

    parts = [_squares(r) for r in range(size)]
    wanted = {
        "allreduce": _sum_of_squares() ** 2,
        "grouped": _sum_of_squares() + size,
        "allgather": np.concatenate([parts[r][: r + 1] for r in range(size)]),
        "broadcast": parts[-1] ** 2,
        "alltoall": np.concatenate(parts),
        "reducescatter": _sum_of_squares(),
    }
    for step in range(5):
        got = moved(_on_gpu(_mine()))
        for name, value in wanted.items():
            result = got[name][0] if isinstance(got[name], (tuple, list)) else got[name]
            equal(result, value, f"{name} in step {step}")
    return hvd.stats()["nccl_collectives"] - before


def _trains_as_one_process():
    """Variables and gradients of two layers on the GPU; several buckets; whole numbers."""
    with tf.device(GPU):
        weights = [tf.Variable(tf.ones([ROWS, 3])), tf.Variable(tf.ones([3]))]

    def loss_of(weights, x):
        hidden = tf.square(tf.linalg.matvec(tf.transpose(weights[0]), x))
        return tf.reduce_sum(hidden * weights[1])

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = loss_of(weights, x)
        tape = hvd.DistributedGradientTape(tape, op=hvd.Sum)
        gradients = tape.gradient(loss, weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign(weight - tf.round(gradient / 256.0))
        return gradients

    alone = [tf.Variable(tf.ones([ROWS, 3])), tf.Variable(tf.ones([3]))]
    for number in range(4):
        got = step(_on_gpu(_mine() + number))
        with tf.GradientTape() as tape:
            inputs = [tf.range(ROWS, dtype=tf.float32) + r + number for r in range(size)]
            loss = tf.add_n([loss_of(alone, x) for x in inputs])
        wanted = tape.gradient(loss, alone)
        for i in range(2):
            equal(got[i], wanted[i], f"gradient {i} of step {number}")
            alone[i].assign(alone[i] - tf.round(wanted[i] / 256.0))
            equal(weights[i], alone[i], f"weight {i} after step {number}")


def _sixteen_bit_floats_are_summed_in_float32():
    """In float16 2048 + 1 is 2048, and in bfloat16 256 + 1 is 256."""
    for dtype, large in ((tf.float16, 2048.0), (tf.bfloat16, 256.0)):
        x = _on_gpu(tf.fill([ROWS], large if rank == 0 else 1.0))
        got = hvd.grouped_allreduce([tf.cast(x, dtype), tf.cast(x[:2], dtype)], op=hvd.Sum)
        for part, count in zip(got, (ROWS, 2), strict=True):
            equal(tf.cast(part, tf.float32), [large + size - 1] * count)


def _gradients_are_compressed():
    """By TensorFlow's ops, of a matrix and a vector whose sums both compressors have exactly."""
    for compression in (hvd.Compression.int8, hvd.Compression.topk(1.0)):
        with tf.device(GPU):
            weights = [tf.Variable(tf.ones([40, 30])), tf.Variable(tf.ones([30]))]

        @tf.function
        def gradients(x, weights=weights, compression=compression):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.linalg.matvec(weights[0], weights[1]) * x)
            tape = hvd.DistributedGradientTape(tape, op=hvd.Sum, compression=compression)
            return tape.gradient(loss, weights)

        for step in range(3):
            got = gradients(_on_gpu(tf.fill([40], 127.0 * (rank + 1 + step))))
            summed = sum(127.0 * (r + 1 + step) for r in range(size))
            equal(got[0], np.full([40, 30], summed), f"{compression}: matrix in step {step}")
            equal(got[1], np.full([30], 40 * summed), f"{compression}: vector in step {step}")


def _process_sets_use_the_host():
    """NCCL serves all ranks of the job alone; a set of some of them has the same numbers."""
    some = hvd.add_process_set([0, size - 1])
    before = hvd.stats()["nccl_collectives"]
    if some.included():
        got = hvd.allreduce(tf.square(_on_gpu(_mine())), op=hvd.Sum, process_set=some)
        equal(got, _squares(0) + _squares(size - 1))
        assert _device(got) == ("GPU" if config.gpu_kernels() else "CPU"), got.device
    assert hvd.stats()["nccl_collectives"] == before
    hvd.remove_process_set(some)
    _where_results_are()


def _ranks_differ_in_where_tensors_are():
    """One rank's tensor is on its GPU, the others' on the CPU: an error that says so."""
    x = tf.ones([3])
    with tf.device(GPU if rank == 0 else "/CPU:0"):
        x = tf.identity(x)
        if config.gpu_kernels():
            with raises(tf.errors.FailedPreconditionError, "Mismatched", "in cuda memory"):
                hvd.allreduce(x, name="x")
        else:
            equal(hvd.allreduce(x, name="x"), [1.0] * 3)
    equal(hvd.allreduce(_on_gpu(tf.fill([2], rank + 1.0)), op=hvd.Sum), [total] * 2)


def every_way():
    """All of the above in one job."""
    _where_results_are()
    in_function = _every_collective_in_a_function()
    _trains_as_one_process()
    _sixteen_bit_floats_are_summed_in_float32()
    _gradients_are_compressed()
    _process_sets_use_the_host()
    _ranks_differ_in_where_tensors_are()
    stats = hvd.stats()
    report(
        nccl_in_function=in_function,
        nccl_collectives=stats["nccl_collectives"],
        nccl_packed=stats["nccl_packed"],
        kernels=native.kernels(),
    )


def one_gpu():
    """All ranks' tensors are on the same; NCCL may be required."""
    got = hvd.allreduce(_on_gpu(_mine()), op=hvd.Sum)
    equal(got, sum(np.arange(ROWS) + r for r in range(size)))
    assert hvd.stats()["nccl"] == "none"
    report(done=True)


def dies_while_nccl_reduces():
    """Rank 1, whose kernel has not begun by then."""
    x = _on_gpu(_mine())
    hvd.allreduce(x, op=hvd.Sum)
    if rank == 1:
        os.environ["FAKE_NCCL_HANG"] = "1"
        threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    begin = machine_time.now()
    try:
        hvd.allreduce(x, op=hvd.Sum)
    except tf.errors.OpError as error:
        report_in_time(
            error=type(error).__name__, text=error.message, seconds=machine_time.now() - begin
        )
        raise


def pin_gpu(expected):
    """Before anything has used a device; a list of one answer, or error, for each rank."""
    if expected[rank].startswith("/"):
        name = hvd.pin_gpu()
        assert name == expected[rank], name
        [device] = tf.config.list_logical_devices("GPU")  # uses the devices
        equal(tf.square(_on_gpu(_mine())), _squares(rank))
        assert hvd.pin_gpu() == name, "asking again changes nothing"
        report(name=device.name)
    else:
        with raises(ValueError, expected[rank]):
            hvd.pin_gpu()
        report(name=None)


def pin_gpu_too_late():
    """After a tensor was made."""
    equal(tf.square(_on_gpu(_mine())), _squares(rank))
    with raises(RuntimeError, "used its devices already", "right after init()"):
        hvd.pin_gpu()
    report(done=True)
