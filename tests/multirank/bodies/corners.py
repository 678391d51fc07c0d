"""What ranks do in test_corners.py: numbers that only some dtypes, factors and losses have."""

import math
import warnings

import numpy as np
import tensorflow as tf
from checks import WAYS, equal, raises, total
from harness import rank, report, size

import smddp_tf.keras as hvd

keras = tf.keras


def factors():
    """Factors of float64 have its precision in every way to call; infinite ones are for floats."""
    x = tf.constant([1.0, 3.0], tf.float64)
    want = np.array([1.0, 3.0]) * size * 0.1
    for way, wrap in WAYS.items():
        calls = {
            "allreduce": lambda: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.1),
            "grouped": lambda: hvd.grouped_allreduce([x], op=hvd.Sum, postscale_factor=0.1)[0],
            "adasum": lambda: hvd.allreduce(x * size, op=hvd.Adasum, postscale_factor=0.1),
        }
        for name, call in calls.items():
            equal(wrap(call)(), want, way, name)
        rows = tf.ones([size], tf.float64)
        scattered = wrap(lambda r=rows: hvd.reducescatter(r, op=hvd.Sum, prescale_factor=0.1))()
        equal(scattered, size * 0.1, way)

        def gradient():
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.1)
            return tape.gradient(y, x)

        equal(wrap(gradient)(), size * 0.1, way, "gradient")

        def scattered_gradient(rows=rows):
            with tf.GradientTape() as tape:
                tape.watch(rows)
                y = hvd.reducescatter(rows, op=hvd.Sum, prescale_factor=0.1)
            return tape.gradient(y, rows)

        equal(wrap(scattered_gradient)(), size * 0.1, way, "gradient of reducescatter")
        v = tf.Variable(x)

        def planned(v=v):
            tape = hvd.DistributedGradientTape(tf.GradientTape(), gradient_predivide_factor=10.0)
            with tape:
                loss = tf.reduce_sum(v)
            return tape.gradient(loss, v)

        equal(wrap(planned)(), size * (0.1 * (10.0 / size)), way, "plan")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        y = hvd.allreduce(tf.constant([1.0], tf.float64), op=hvd.Sum, prescale_factor=0.1)
        assert session.run(y).tolist() == [size * 0.1]

    for bad in (math.inf, -math.inf):
        for arguments in ({"prescale_factor": bad}, {"postscale_factor": bad}):
            for op in (hvd.Average, hvd.Sum, hvd.Max):
                with raises(ValueError, "inf, of int32: integers cannot be infinite"):
                    hvd.allreduce(tf.constant([1]), op=op, **arguments)
            with raises(ValueError, "integers cannot be infinite"):
                hvd.reducescatter(tf.ones([size], tf.int32), op=hvd.Sum, **arguments)
    with raises(TypeError, "which is not a number"):
        hvd.allreduce(tf.constant([1]), postscale_factor=math.nan)
    equal(hvd.allreduce(tf.constant([1.0]), postscale_factor=math.inf), math.inf)
    report()


def _variable(dtype):
    """Of a dtype, with a value of each rank's own."""
    base = tf.constant([[1 + rank, 0], [2, 1 + rank]])
    if dtype == "string":
        return tf.Variable(["x" * (rank + 1), "", "\u00e9"])
    if dtype.startswith("q"):
        return tf.Variable(tf.bitcast(tf.cast(base, dtype[1:]), dtype))
    if dtype.startswith("complex"):
        part = tf.cast(base, tf.float64 if dtype == "complex128" else tf.float32)
        return tf.Variable(tf.complex(part, -3 * part))
    if dtype.startswith("float8"):
        return tf.Variable(tf.cast(tf.cast(base, tf.float16), dtype))
    return tf.Variable(tf.cast(base, dtype))


SENT = (
    "bool int16 uint16 uint32 uint64 int4 uint4 complex64 complex128 float8_e4m3fn float8_e5m2 "
    "qint8 quint8 qint32"
)


def dtypes_of_variables():
    """Each is sent as it is; what is not is refused by name."""
    for dtype in [*SENT.split(), "string"]:
        want = hvd.broadcast_object(repr(_variable(dtype).numpy().tolist()), size - 1)
        for way, wrap in WAYS.items():
            if dtype == "string" and way != "eager":
                continue
            if way == "jit" and dtype.startswith(("int4", "uint4", "q")):
                continue  # XLA itself has no such variables on the CPU
            v = _variable(dtype)
            wrap(lambda v=v: hvd.broadcast_variables([v], size - 1) and None)()
            assert repr(v.numpy().tolist()) == want, (dtype, way, v.numpy(), want)
    text = tf.Variable("a")
    with raises(TypeError, "is of string, which cannot be broadcast", "outside of tf.function"):
        tf.function(lambda: hvd.broadcast_variables([text], 0))()
    report()


class Odd(keras.Model):
    """A model with variables that hold no numbers of the usual kinds."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.words = tf.Variable(["a" * (rank + 1)], trainable=False)
        self.phase = tf.Variable(tf.constant([1.0 + rank], tf.complex128), trainable=False)
        self.few = tf.Variable(tf.cast([rank], "int4"), trainable=False)
        self.handle = tf.Variable(
            tf.raw_ops.EmptyTensorList(
                element_shape=tf.constant([], tf.int32),
                max_num_elements=3,
                element_dtype=tf.float32,
            ),
            trainable=False,
        )

    def call(self, x):
        """Uses the numbers."""
        return self.dense(x) + tf.cast(tf.math.real(self.phase), tf.float32)


def models_with_odd_variables():
    """They train, and what can be sent is the root's."""
    model = Odd()
    model(np.ones([1, 2], "float32"))
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    data = np.ones([4, 2], "float32") * rank, np.ones([4, 1], "float32")
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(size - 1)
    with warnings.catch_warnings(record=True):
        model.fit(*data, batch_size=2, verbose=0, callbacks=[callback])
    assert model.words.numpy()[0] == b"a" * size, model.words
    assert model.phase.numpy()[0] == size
    assert int(tf.cast(model.few, tf.int32)[0]) == size - 1
    kernels = hvd.allgather(model.dense.kernel[tf.newaxis])
    assert np.array_equal(kernels[0], kernels[-1])
    report()


def _trained(reduction_ranks, distribute):
    """A kernel after two steps of a summed loss with a penalty, of rows of all ranks or our own."""
    penalty = keras.regularizers.L2(0.05 / reduction_ranks)
    dense = keras.layers.Dense(
        1, kernel_initializer="ones", use_bias=False, kernel_regularizer=penalty
    )
    model = keras.Sequential([keras.Input([2]), dense])
    optimizer = keras.optimizers.SGD(0.125)
    if distribute:
        optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Sum)
    model.compile(optimizer, keras.losses.MeanSquaredError(reduction="sum"))
    x = np.array([[1, r] for r in range(size)], "float32") / 4
    x = x[rank : rank + 1] if distribute else x
    model.fit(x, np.zeros([len(x), 1], "float32"), batch_size=len(x), epochs=2, verbose=0)
    return dense.kernel.numpy()


def regularizers_of_summed_losses():
    """With op=Sum they count once for each rank, unless they are divided as docs/keras.md says."""
    want = _trained(1, distribute=False)
    # Sums of a few products of numbers up to 1.
    assert np.allclose(_trained(size, distribute=True), want, rtol=0, atol=1e-6)
    assert not np.allclose(_trained(1, distribute=True), want, rtol=0, atol=1e-3)
    equal(hvd.allreduce(tf.constant(rank + 1.0), op=hvd.Sum), total)
    report()
