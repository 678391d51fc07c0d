"""What ranks do on a GPU of NVIDIA's (tests/gpu/test_tensorflow_on_a_gpu.py)."""

import time

import numpy as np
import tensorflow as tf
from checks import equal, total
from harness import rank, report, size

import smddp_tf as hvd

GPU = "/GPU:0"
SIDE, PRODUCTS, STEPS = 4096, 8, 5


def _late(value):
    """A tensor that the GPU's stream has only after milliseconds; sums of it are exact."""
    made = tf.fill([SIDE, SIDE], value)
    for _ in range(PRODUCTS):
        made = tf.matmul(made, tf.eye(SIDE))
    return made


def _collectives(value):
    x = _late(value)
    reduced = hvd.allreduce(x, op=hvd.Sum)
    one, two = hvd.grouped_allreduce([x[0] + 1.0, x[1:3]], op=hvd.Sum)
    return {
        "allreduce": tf.square(reduced[:2]),
        "first of a group": one,
        "second of a group": two,
        "allgather": hvd.allgather(x[:1]),
        "broadcast": hvd.broadcast(x[:3], size - 1) + 1.0,
        "alltoall": hvd.alltoall(x[:size]),
        "reducescatter": hvd.reducescatter(x[: 2 * size], op=hvd.Sum),
    }


def _check(got, step):
    values = [r + 1.0 + step for r in range(size)]
    summed = sum(values)
    wanted = {
        "allreduce": np.full([2, SIDE], summed**2),
        "first of a group": np.full([SIDE], summed + size),
        "second of a group": np.full([2, SIDE], summed),
        "allgather": np.repeat(values, SIDE).reshape(size, SIDE),
        "broadcast": np.full([3, SIDE], values[-1] + 1),
        "alltoall": np.repeat(values, SIDE).reshape(size, SIDE),
        "reducescatter": np.full([2, SIDE], summed),
    }
    for name, value in wanted.items():
        equal(got[name], value, f"{name} in step {step}")


def behind_late_kernels(jit):
    """Results do not depend on how late the GPU is: eagerly, in a function, or compiled."""
    run = {None: _collectives}.get(jit) or tf.function(_collectives, jit_compile=jit)
    with tf.device(GPU):
        for step in range(STEPS):
            _check(run(tf.constant(rank + 1.0 + step)), step)
    stats = hvd.stats()
    report(nccl=stats["nccl"], nccl_collectives=stats["nccl_collectives"])


def _model(jit):
    keras = tf.keras
    keras.utils.set_random_seed(5)
    layers = [keras.layers.Dense(256, activation="tanh") for _ in range(4)]
    model = keras.Sequential([*layers, keras.layers.BatchNormalization(), keras.layers.Dense(3)])
    model.build((None, 64))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    return model, lambda wrap: model.compile(wrap(optimizer), loss, jit_compile=jit)


def fit(jit):
    """Keras trains with the callbacks that the docs recommend: the ranks stay equal, and learn."""
    import smddp_tf.keras as hvd_keras

    data = np.random.default_rng(3 + rank)
    x = data.normal(size=(512, 64)).astype("float32")
    y = np.argmax(x[:, :3], axis=1)
    model, compile_with = _model(jit)
    if rank:
        model.set_weights([w + 1 for w in model.get_weights()])
    compile_with(hvd_keras.DistributedOptimizer)
    callbacks = [
        hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd_keras.callbacks.MetricAverageCallback(),
        hvd_keras.callbacks.CheckRanksEqual(),
    ]
    history = model.fit(x, y, batch_size=64, epochs=8, verbose=0, callbacks=callbacks)
    weights = np.concatenate([one.ravel() for one in model.get_weights()[:8]])
    low, high = (hvd.allreduce(weights, op=op).numpy() for op in (hvd.Min, hvd.Max))
    assert np.array_equal(low, high), np.abs(low - high).max()
    losses = history.history["loss"]
    assert losses[-1] < 0.7 * losses[0], losses
    report(losses=losses, nccl_collectives=hvd.stats()["nccl_collectives"])


def step_times(counts, repeats):
    """Seconds of a grouped allreduce of float32 tensors of so many elements, of which sums tell."""
    with tf.device(GPU):
        tensors = [tf.fill([count], rank + 1.0) for count in counts]

        @tf.function
        def reduce(tensors):
            return hvd.grouped_allreduce(tensors, op=hvd.Sum)

        seconds = []
        for _ in range(repeats):
            hvd.barrier()
            begin = time.perf_counter()
            got = reduce(tensors)
            ends = [float(one[-1]) for one in (got[0], got[-1])]
            seconds.append(time.perf_counter() - begin)
            assert ends == [total, total], ends
    report(seconds=seconds, nccl_collectives=hvd.stats()["nccl_collectives"])
