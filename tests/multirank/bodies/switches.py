"""What ranks do in test_switches.py: TensorFlow's and Keras's switches for a whole process."""

import numpy as np
import tensorflow as tf
from checks import equal
from harness import rank, report, size

import smddp_tf as hvd
import smddp_tf.keras as hvd_keras

v1 = tf.compat.v1
keras = tf.keras


def _in_session(make):
    """The values of the tensors that make() returns, in a graph and session of their own."""
    with tf.Graph().as_default():
        tensors = make()
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            return session.run(tensors)


def _same(got, want):
    assert got.shape == want.shape and (got == want).all(), (got, want)


def _collectives():
    base = np.arange(2 * size)

    def make():
        x = tf.cast(tf.range(2 * size) + rank, tf.float32)
        return {
            "sum": hvd.allreduce(x, op=hvd.Sum),
            "int8": hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.int8),
            "topk": hvd.allreduce(x, compression=hvd.Compression.topk(1.0), name="topk"),
            "rows": hvd.reducescatter(x, op=hvd.Sum),
            "all": hvd.allgather(x),
            "to all": hvd.alltoall(x),
        }

    got = _in_session(make)
    total = size * base + sum(range(size))
    _same(got["sum"], total)
    assert np.abs(got["int8"] - total).max() <= size * total.max() / 127, got["int8"]
    assert np.allclose(got["topk"], total / size), got["topk"]
    _same(got["rows"], total[2 * rank : 2 * rank + 2])
    _same(got["all"], np.concatenate([base + r for r in range(size)]))
    own = [base[2 * rank : 2 * rank + 2] + r for r in range(size)]
    _same(got["to all"], np.concatenate(own))


def _sparse_training():
    """Rows of a table, gathered or as dense, with an optimizer that has slots."""

    def make(sparse_as_dense):
        table = v1.get_variable("table", initializer=tf.ones([8, 2]) * (rank + 1.0))
        rows = tf.nn.embedding_lookup(table, tf.constant([rank, 5]))
        optimizer = v1.train.AdagradOptimizer(0.5)
        optimizer = hvd.DistributedOptimizer(optimizer, sparse_as_dense=sparse_as_dense)
        with tf.control_dependencies([hvd.broadcast_global_variables(0)]):
            train = optimizer.minimize(tf.reduce_sum(rows * tf.constant([1.0, 2.0])))
        with tf.control_dependencies([train]):
            return hvd.allgather(tf.expand_dims(tf.identity(table.read_value()), 0))

    for sparse_as_dense in (False, True):
        tables = _in_session(lambda dense=sparse_as_dense: make(dense))
        assert all((one == tables[0]).all() for one in tables), tables
        assert (tables[0][: size - 1] < 1).all() and (tables[0][5] < 1).all(), tables
        assert (tables[0][6:] == 1).all(), tables


def v2_behavior_disabled():
    """As many TF1 scripts begin: shapes have Dimension objects, variables are references."""
    v1.disable_v2_behavior()
    _collectives()
    _sparse_training()
    report()


def bfloat16_everywhere():
    """Also the metrics, whose results are bfloat16 scalars then, and the learning rate."""
    keras.backend.set_floatx("bfloat16")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.125))
    model.compile(optimizer, "mse", metrics=["mae"])
    x = np.full((8, 4), rank, "float32")
    callbacks = [
        hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd_keras.callbacks.MetricAverageCallback(),
        hvd_keras.callbacks.LearningRateWarmupCallback(0.125, warmup_epochs=1),
    ]
    y = x[:, :2]
    history = model.fit(
        x, y, epochs=2, batch_size=4, verbose=0, validation_data=(x, y), callbacks=callbacks
    )
    found = hvd.allgather_object({name: values for name, values in history.history.items()})
    assert found[0] == found[-1] and "val_mae" in found[0], found
    weights = hvd.allgather(tf.cast(model.trainable_variables[0], tf.float32)[None])
    equal(weights[0], weights[-1], "weights")
    report()


def numpy_rules():
    """Constants of Python are int32 and float32 then, and mixed dtypes are promoted as NumPy's."""
    tf.experimental.numpy.experimental_enable_numpy_behavior(dtype_conversion_mode="all")
    generator = tf.random.Generator.from_seed(7)
    seeds = keras.random.SeedGenerator(7) if hasattr(keras, "random") else None
    states = [generator.state] + ([seeds.state] if seeds is not None else [])
    before = [state.numpy() for state in states]
    hvd.broadcast_variables(states, 0)
    for state, own in zip(states, before, strict=True):
        rows = hvd.allgather(tf.cast(state, tf.int64)[None]).numpy()
        assert (rows[0] == own).all() and (rows[1] != own).any(), (rows, own)
    x = tf.range(2 * size, dtype=tf.float32) + tf.constant(rank, tf.float32)
    equal(hvd.allreduce(x, op=hvd.Sum), size * np.arange(2 * size) + sum(range(size)), "sum")
    w = tf.Variable([1.0, 2.0])
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(w * w) * tf.constant(rank + 1.0)
    equal(tape.gradient(loss, w), np.array([1.0, 2.0]) * (size + 1), "gradient")
    report()
