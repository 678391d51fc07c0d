"""What ranks do in test_what_must_agree.py: each property that must agree differs once."""

import numpy as np
import tensorflow as tf
from checks import equal, raises
from harness import rank, report, size

import smddp_tf as hvd

MISMATCH = tf.errors.FailedPreconditionError
one = rank == 1  # the rank that differs from rank 0
x = tf.ones([4]) * (rank + 1.0)
rows = tf.reshape(tf.range(12.0), [2, 2, 3])
whole = tf.constant([4, 8]) * (rank + 1)
checked: list = []


class Doubles:
    """A compressor of a script's own."""

    @staticmethod
    def compress(tensor):
        """Twice the tensor."""
        return tensor * 2, None

    @staticmethod
    def decompress(tensor, context):
        """The half."""
        del context
        return tensor / 2


def _either(first, other):
    """What rank 1 has, and what the others have."""
    return other if one else first


def _mismatch(call, *sides):
    """The call is an error on all ranks, with what both sides have, and the job goes on."""
    with raises(MISMATCH, "rank 0", "rank 1", *sides):
        call()
    checked.append(sides)
    equal(hvd.allreduce(tf.constant(rank + 1.0), op=hvd.Sum, name="after"), size * (size + 1) / 2)


def _slices(table_rows=5, width=2, dtype=tf.float32):
    values = tf.cast(tf.ones([1 + rank, width]), dtype)
    indices = tf.range(1 + rank)
    return tf.IndexedSlices(values, indices, dense_shape=[table_rows, width])


def _allreduce():
    both = _either
    _mismatch(lambda: hvd.allreduce(both(x, x[:2])), "[float32 [4]]", "[float32 [2]]")
    same_count = both(rows, tf.reshape(rows, [2, 3, 2]))
    _mismatch(lambda: hvd.allreduce(same_count), "[2, 2, 3]", "[2, 3, 2]")
    _mismatch(lambda: hvd.allreduce(both(x, tf.cast(x, tf.float64))), "float32 [4]", "float64 [4]")
    _mismatch(lambda: hvd.allreduce(x, op=both(hvd.Sum, hvd.Max)), "op=Sum", "op=Max")
    _mismatch(lambda: hvd.allreduce(x, name=both("a", "b")), "'a'", "'b'")
    factors = both(0.1, 0.1000000001)
    _mismatch(lambda: hvd.allreduce(x, prescale_factor=factors), "=0.1]", "=0.1000000001]")
    for op in (hvd.Sum, hvd.Average, hvd.Max):  # whose factors ranks apply by themselves
        _mismatch(
            lambda op=op: hvd.allreduce(whole, op=op, postscale_factor=both(1.0, 2.0)),
            f"op={op}]",
            "postscale_factor=2.0]" if op != hvd.Average else "postscale=2",
        )
    _mismatch(
        lambda: hvd.allreduce(x, op=hvd.Min, prescale_factor=both(2.0, 3.0)),
        "prescale_factor=2.0",
        "prescale_factor=3.0",
    )
    compressors = both(hvd.Compression.none, Doubles)
    _mismatch(lambda: hvd.allreduce(x, compression=compressors), "compression=Doubles")
    _mismatch(lambda: both(hvd.allreduce, hvd.barrier)(**both({"tensor": x}, {})), "barrier")


def _lists():
    both, whole_and_x = _either, [x, whole, x]
    _mismatch(
        lambda: hvd.grouped_allreduce(both([x, x, whole], whole_and_x), op=hvd.Sum),
        "places [0, 1] of a list of 3",
        "places [0, 2] of a list of 3",
    )
    _mismatch(
        lambda: hvd.grouped_allreduce(both([x], [x, x])), "rank 0 has 1 tensors, rank 1 has 2"
    )
    for call, other in (
        (lambda n: hvd.grouped_allgather([x] * n), {}),
        (lambda n, **k: hvd.grouped_allreduce([x] * n, **k), {"op": hvd.Adasum}),
        (lambda n: hvd.grouped_allreduce([_slices()] * n), {}),
    ):
        _mismatch(lambda c=call, k=other: c(both(1, 2), **k), "place 0 of a list of 2")
    _mismatch(
        lambda: hvd.grouped_reducescatter([x] * both(1, 2)), "rank 0 has 1 tensors, rank 1 has 2"
    )


def _reducescatter():
    both = _either
    other = tf.reshape(rows, [2, 3, 2])
    _mismatch(lambda: hvd.reducescatter(both(rows, other)), "[2, 2, 3]", "[2, 3, 2]")
    _mismatch(lambda: hvd.reducescatter(x, op=both(hvd.Sum, hvd.Average)), "op=Sum", "op=Average")
    _mismatch(
        lambda: hvd.reducescatter(whole, op=hvd.Sum, prescale_factor=both(1.0, 3.0)),
        "prescale_factor=3.0",
    )


def _moves():
    both = _either
    other = tf.reshape(rows, [2, 3, 2])
    for call in (hvd.allgather, hvd.alltoall):
        _mismatch(lambda c=call: c(both(rows, other)), "shape [2, 2, 3]", "one of [2, 3, 2]")
        _mismatch(lambda c=call: c(both(rows, rows[..., 0])), "[2, 2, 3]", "one of [2, 2]")
        cast = both(rows, tf.cast(rows, tf.int32))
        _mismatch(lambda c=call, cast=cast: c(cast), "float32 [", "int32 [")
        _mismatch(lambda c=call: c(rows, name=both("a", "b")), "'a", "'b")
    _mismatch(lambda: hvd.broadcast(both(rows, other), 0), "[2, 2, 3]", "[2, 3, 2]")
    _mismatch(lambda: hvd.broadcast(x, both(0, 1)), "root_rank=0", "root_rank=1")
    ints = both(x, tf.cast(x, tf.int32))
    _mismatch(lambda: hvd.broadcast(ints, 0), "float32 [4]", "int32 [4]")
    _mismatch(lambda: hvd.broadcast_object(1, both(0, 1)), "root_rank=0", "root_rank=1")
    variables = [tf.Variable(both(rows, other))]
    _mismatch(lambda: hvd.broadcast_variables(variables, 0), "[2, 2, 3]", "[2, 3, 2]")
    _mismatch(lambda: hvd.barrier(name=both("a", "b")), "'a'", "'b'")
    with raises(ValueError, "rank 0 has [add_process_set([0])]", "([1])]"):
        hvd.add_process_set(both([0], [1]))


def _by_themselves():
    """What each rank combines by itself, of what all have gathered."""
    both = _either
    ops, compression = both(hvd.Sum, hvd.Average), hvd.Compression
    for kind in (compression.int8, compression.topk(0.5)):
        _mismatch(
            lambda k=kind: hvd.allreduce(x, op=ops, compression=k, name="x"),
            "op=Sum compression=",
            "op=Average compression=",
        )
    ratios = both(compression.topk(0.5), compression.topk(0.6))  # as many elements
    _mismatch(
        lambda: hvd.allreduce(x, compression=ratios, name="x"),
        "TopKCompressor(0.5)",
        "TopKCompressor(0.6)",
    )
    _mismatch(
        lambda: hvd.allreduce(x, op=hvd.Adasum, postscale_factor=both(1.0, 2.0)),
        "postscale_factor=2.0",
    )
    _mismatch(lambda: hvd.allreduce(_slices(), op=ops), "op=Sum", "op=Average")
    _mismatch(lambda: hvd.allreduce(_slices(both(5, 6))), "dense_shape=[5, 2]", "[6, 2]")
    _mismatch(lambda: hvd.allreduce(_slices(width=both(2, 3))), "[5, 2]", "[5, 3]")
    equal(hvd.allreduce(_slices(), op=hvd.Sum).values, 1.0)  # rows may differ


def _gradients(wrap, **options):
    """Of a table, and of two variables with as many elements, one of which may have none."""
    a = tf.Variable(rows, name="a")
    b = tf.Variable(tf.reshape(rows, [2, 3, 2]), name="b")
    table = tf.Variable(tf.ones([4, 2]), name="table")

    def gradients(sources, loss_of):
        with hvd.DistributedGradientTape(tf.GradientTape(), **options) as tape:
            loss = loss_of()
        return tape.gradient(loss, sources)

    def everything():
        picked = tf.gather(table, [0, 1])
        return tf.reduce_sum(a) + tf.reduce_sum(b) + tf.reduce_sum(picked)

    return lambda sources: lambda: wrap(lambda: gradients(sources(a, b, table), everything))


def _plans(wrap):
    both = _either
    step = _gradients(wrap)
    order = both(lambda a, b, _: [a, b], lambda a, b, _: [b, a])
    _mismatch(step(order), "[a float32 [2, 2, 3]]", "[b float32 [2, 3, 2]]")
    _mismatch(step(both(lambda a, b, t: [a, b], lambda a, b, t: [a])), "b float32 [2, 3, 2]")
    unused = tf.Variable(tf.ones([3]), name="unused")
    sources = both(lambda a, *_: [a], lambda a, *_: [a, unused])
    _mismatch(step(sources), "unused has no gradient (None)")
    for option, first, other, words in (
        ("op", hvd.Sum, hvd.Average, ("op=Sum", "op=Average")),
        ("gradient_predivide_factor", 2.0, 4.0, ("prescale=0.5", "prescale=0.25")),
        ("num_groups", 1, 2, ("buckets=1-0", "buckets=1 | 0")),
        ("compression", hvd.Compression.none, Doubles, ("NoneCompressor", "Doubles")),
        ("compression", hvd.Compression.fp16, hvd.Compression.bf16, ("float16", "bfloat16")),
    ):
        step = _gradients(wrap, **{option: both(first, other)})
        _mismatch(step(lambda a, b, _: [a, b]), *words)
    sparse = _gradients(wrap, sparse_as_dense=both(False, True))
    if wrap is not JIT:
        _mismatch(
            sparse(lambda a, b, t: [a, t]), "table float32 [2] sparse", "table float32 [4, 2]"
        )


def JIT(function):  # noqa: N802 - a way
    """Compiled by XLA."""
    return tf.function(function, jit_compile=True)()


def _alone(wrap):
    """Gradients that are reduced one by one."""
    both = _either
    unused = tf.Variable(tf.ones([3]), name="unused")
    for options in ({"op": hvd.Adasum}, {"compression": hvd.Compression.int8}):
        step = _gradients(wrap, **options)
        sources = both(lambda a, b, _: [a, unused], lambda a, b, _: [a, b])
        _mismatch(step(sources), "unused has no gradient (None)", "b float32 [2, 3, 2]")
    step = _gradients(wrap, op=both(hvd.Sum, hvd.Average), compression=hvd.Compression.int8)
    _mismatch(step(lambda a, b, _: [a]), "op=Sum", "op=Average")


def explicit():
    """The collectives that scripts call."""
    _allreduce()
    _lists()
    _reducescatter()
    _moves()
    _by_themselves()
    report(checked=len(checked))


def compiled():
    """The same properties in compiled functions."""
    both, other = _either, tf.reshape(rows, [2, 3, 2])
    for call in (hvd.allgather, hvd.alltoall, hvd.allreduce, hvd.reducescatter):
        shapes = both(rows, other)
        _mismatch(lambda c=call, s=shapes: JIT(lambda: c(s)), "[2, 2, 3]", "[2, 3, 2]")
    shapes = both(rows, other)
    _mismatch(lambda: JIT(lambda: hvd.broadcast(shapes, 0)), "[2, 2, 3]", "[2, 3, 2]")
    ragged = tf.ones([2 + 2 * one, 3])  # parts are as many rows there
    _mismatch(lambda: JIT(lambda: hvd.allgather(ragged)), "[2, 3]", "[4, 3]")
    factor = both(1.0, 3.0)
    _mismatch(
        lambda: JIT(lambda: hvd.allreduce(whole, op=hvd.Sum, postscale_factor=factor)),
        "postscale_factor=3.0",
    )
    _mismatch(
        lambda: JIT(lambda: hvd.allreduce(x, op=hvd.Adasum, prescale_factor=factor)),
        "prescale_factor=3.0",
    )
    report(checked=len(checked))


def gradients(way):
    """Of tapes: plans, and what is reduced one by one."""
    wrap = {"function": lambda f: tf.function(f)(), "jit": JIT}[way]
    _plans(wrap)
    _alone(wrap)
    report(checked=len(checked))


def passes():
    """Optimizers that add up another number of passes."""
    model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(
        tf.keras.optimizers.SGD(0.1), backward_passes_per_step=_either(1, 2)
    )
    model.compile(optimizer, "mse")
    data = np.ones([8, 2], "float32"), np.ones([8, 1], "float32")
    with raises(Exception, "passes=2 average_passes=False"):
        model.fit(*data, batch_size=2, epochs=2, verbose=0)
    report(done=True)
