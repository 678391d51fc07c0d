"""What ranks do in test_tape.py."""

import numpy as np
import tensorflow as tf
from checks import WAYS, raises
from harness import rank, report, size

import smddp_tf as hvd

STEPS, BATCH = 6, 12
data = np.random.default_rng(7)
X = data.normal(size=(STEPS, BATCH, 5)).astype("float32")
Y = data.integers(0, 3, size=(STEPS, BATCH))


def _variables(seed):
    values = np.random.default_rng(seed)
    shapes = [(5, 16), (16,), (16, 3), (3,)]
    return [
        tf.Variable(values.normal(size=s).astype("float32") * 0.5, name=f"v{i}")
        for i, s in enumerate(shapes)
    ]


def _loss_of(v, x, y):
    h = tf.nn.tanh(tf.matmul(x, v[0]) + v[1])
    logits = tf.matmul(h, v[2]) + v[3]
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))


def _train(v, part, tape_of, wrap):
    @wrap
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = _loss_of(v, x, y)
        for variable, grad in zip(v, tape_of(tape).gradient(loss, v), strict=True):
            variable.assign_sub(0.5 * grad)

    for i in range(STEPS):
        step(tf.constant(X[i][part]), tf.constant(Y[i][part]))
    return np.concatenate([variable.numpy().ravel() for variable in v])


def _train_together(wrap, **options):
    v = _variables(rank)  # different weights on every rank, until the broadcast
    hvd.broadcast_variables(v, root_rank=0)
    mine = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
    weights = _train(v, mine, lambda tape: hvd.DistributedGradientTape(tape, **options), wrap)
    low = hvd.allreduce(tf.constant(weights), op=hvd.Min).numpy()
    assert np.array_equal(low, hvd.allreduce(tf.constant(weights), op=hvd.Max).numpy())
    return weights


def trains_as_one_process():
    alone = _train(_variables(0), slice(None), lambda tape: tape, WAYS["function"])
    settings = {
        "plain": {},
        "one group": {"num_groups": 1},
        "three groups": {"num_groups": 3},
        "predivide": {"gradient_predivide_factor": 2.0},
        "bf16": {"compression": hvd.Compression.bf16},
    }
    worst = {}
    for way, wrap in WAYS.items():
        for name, options in settings.items():
            weights = _train_together(wrap, **options)
            worst[f"{way}, {name}"] = float(np.abs(weights - alone).max())
    report(worst=worst)


def _none_and_sparse(table, w):
    unused = tf.Variable(1.0)

    def run(sparse_as_dense):
        with hvd.DistributedGradientTape(tf.GradientTape(), sparse_as_dense=sparse_as_dense) as t:
            rows = tf.gather(table, list(range(rank + 1)))
            loss = tf.reduce_sum(rows) + tf.reduce_sum(w) * (rank + 1.0)
        return t.gradient(loss, {"table": table, "rest": [unused, w]})

    def of_the_table(dense):
        return {k: v for k, v in run(dense).items() if k == "table"}

    for wrap in (lambda f: f, tf.function):
        for dense in (False, True):
            grads = wrap(lambda dense=dense: of_the_table(dense))()
            assert isinstance(grads["table"], tf.IndexedSlices) != dense
            got = tf.convert_to_tensor(grads["table"]).numpy()
            want = np.array([(size - i) / size if i < size else 0 for i in range(10)], "float32")
            assert np.allclose(got, want[:, None] * np.ones(4), atol=1e-7), got
        grads = run(False)
        assert grads["rest"][0] is None
        assert np.allclose(grads["rest"][1], (size + 1) / 2)


def _local_sources(w):
    """Returns a tape that is distributed already."""
    local = tf.Variable(1.0)
    tape = hvd.DistributedGradientTape(tf.GradientTape(persistent=True))
    tape.register_local_source(local)
    with tape:
        loss = (local + w[0]) * (rank + 1.0)
    got = tape.gradient(loss, [local, w])
    assert float(got[0]) == np.float32(rank + 1) / np.float32(size), got
    assert isinstance(tape, tf.GradientTape)
    single = tape.gradient(loss, w)
    assert np.allclose(tf.convert_to_tensor(single)[0], (size + 1) / 2)
    own, reduced = tape.get_local_and_global_gradients(loss, [local, w])
    assert [source is local for source, _ in own] == [True] and float(own[0][1]) == float(got[0])
    assert [source is w for source, _ in reduced] == [True]
    assert np.allclose(tf.convert_to_tensor(reduced[0][1])[0], (size + 1) / 2)
    return tape


def _two_plans_in_a_step():
    """Two models in one step, and an unused gradient: nothing is pruned, nothing deadlocks."""
    a, b = tf.Variable(tf.ones([3])), tf.Variable(tf.ones([70000]))

    @tf.function
    def both():
        with tf.GradientTape() as ta, tf.GradientTape() as tb:
            la, lb = tf.reduce_sum(a) * (rank + 1.0), tf.reduce_sum(b) * (rank + 1.0)
        hvd.DistributedGradientTape(ta).gradient(la, [a])
        gb = hvd.DistributedGradientTape(tb).gradient(lb, [b])
        return gb[0]

    for _ in range(20):
        assert np.allclose(both().numpy(), (size + 1) / 2)


def _a_loop_in_a_function():
    c = tf.Variable(tf.zeros([5]))

    @tf.function
    def loop():
        for i in tf.range(10):
            with tf.GradientTape() as t:
                loss = tf.reduce_sum(c) * (rank + 1.0) * tf.cast(i, tf.float32)
            c.assign_add(hvd.DistributedGradientTape(t).gradient(loss, c))

    loop()
    assert np.allclose(c.numpy(), 45 * (size + 1) / 2), c


def _sources_in_another_order():
    """Of equal shapes, as of a set of Keras's variables: an error, and no sum of two variables."""
    first, second = (tf.Variable(tf.ones([2]), name=f"dense_{3 + rank + i}/kernel") for i in (0, 1))
    for compression in (hvd.Compression.none, hvd.Compression.int8):
        for wrap in WAYS.values():

            def gradient(sources, compression=compression):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(first + 2.0 * second)
                tape = hvd.DistributedGradientTape(tape, compression=compression)
                return tape.gradient(loss, sources)

            got = wrap(lambda: gradient([first, second]))()  # noqa: B023 - called at once
            assert np.allclose(got, [[1, 1], [2, 2]], atol=1e-2), got
            sources = [first, second][:: -1 if rank == 1 else 1]
            with raises(tf.errors.OpError, "Mismatched", "dense/kernel", "dense_1/kernel"):
                wrap(lambda: gradient(sources))()  # noqa: B023


def kinds_of_gradients():
    w = tf.Variable(tf.ones([2]))
    _none_and_sparse(tf.Variable(tf.ones([10, 4])), w)
    tape = _local_sources(w)
    _two_plans_in_a_step()
    _a_loop_in_a_function()
    _sources_in_another_order()
    with raises(ValueError, "twice"):
        hvd.DistributedGradientTape(tape)
    report(done=True)


def mean_of_what_a_mask_leaves():
    """The loss of docs/custom-loops.md, divided by all ranks' tokens, which differ by rank."""
    rows = tf.range(4.0 * size)[:, None]
    mask = tf.cast(tf.range(4 * size) < 4 * size - 3, tf.float32)  # the last rank has one

    def gradient_of(rows, mask, distributed):
        w = tf.Variable([[2.0]])
        count = tf.reduce_sum(mask)
        with tf.GradientTape() as one:
            losses = tf.square(tf.squeeze(tf.matmul(rows, w), 1))
            loss = tf.reduce_sum(losses * mask)
            loss /= hvd.allreduce(count) if distributed else count
        return (hvd.DistributedGradientTape(one) if distributed else one).gradient(loss, [w])[0]

    own = slice(4 * rank, 4 * rank + 4)
    got = gradient_of(rows[own], mask[own], True)
    # Sums of squares of small integers are exact; the division and the average round.
    np.testing.assert_allclose(got, gradient_of(rows, mask, False), rtol=1e-6)
    report()
