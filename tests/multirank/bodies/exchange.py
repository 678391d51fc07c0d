"""What ranks do in test_exchange.py."""

import time

import numpy as np
import tensorflow as tf
from checks import DTYPES, WAYS, checked, equal, raises, total
from harness import rank, report, size

import smddp_tf as hvd

MOVABLE = [*DTYPES[2:4], tf.float16, tf.int32, tf.int64, tf.int16, tf.uint16]


def _rows(r, p, n):
    """Row k of what rank r sends to rank p is 100 r + 10 p + k."""
    return [100 * r + 10 * p + k for k in range(n)]


def _even_parts(way, wrap):
    for dtype in MOVABLE if way != "jit" else MOVABLE[:2]:
        x = tf.cast(tf.concat([_rows(rank, p, 2) for p in range(size)], 0), dtype)
        got = wrap(lambda x=x: hvd.alltoall(x))()
        equal(got, np.concatenate([_rows(r, rank, 2) for r in range(size)]), way, dtype)
    flags = tf.constant([rank == 0] * size)
    equal(wrap(lambda: hvd.alltoall(flags))(), np.arange(size) == 0, way, "bool")
    empty = wrap(lambda: hvd.alltoall(tf.zeros([0, 3])))()
    assert empty.shape == (0, 3)
    v = tf.ones([size, 2]) * (rank + 1.0)

    def gradient():
        with tf.GradientTape() as tape:
            tape.watch(v)
            y = tf.reduce_sum(hvd.alltoall(v) * (rank + 1.0))
        return tape.gradient(y, v)

    # What went to rank p was multiplied by p + 1 there.
    equal(wrap(gradient)(), np.arange(1, size + 1)[:, None] * np.ones(2), way, "gradient")


def _with_splits(way, wrap):
    # Rank r sends r + p rows to rank p.
    splits = [rank + p for p in range(size)]
    x = tf.constant(sum((_rows(rank, p, rank + p) for p in range(size)), []), tf.float32)
    got, received = wrap(lambda: hvd.alltoall(x, splits=np.array(splits, np.int64)))()
    equal(got, sum((_rows(r, rank, r + rank) for r in range(size)), []), way, "splits")
    equal(received, [r + rank for r in range(size)], way, "received")
    # Everything to rank 0, from a big tensor.
    big = tf.fill([50000, 3], float(rank))
    got, received = wrap(lambda: hvd.alltoall(big, splits=[50000] + [0] * (size - 1)))()
    want = np.repeat(np.arange(size), 50000)[:, None] if rank == 0 else np.zeros((0, 3))
    equal(got, want, way, "to one")

    def gradient():
        v = tf.cast(x, tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(v)
            y = tf.reduce_sum(hvd.alltoall(v, splits=splits)[0] * (rank + 1.0))
        return tape.gradient(y, v)

    equal(wrap(gradient)(), np.repeat(np.arange(1, size + 1), splits), way, "gradient")


def _grouped_allgather():
    for dims in ([], [rank + 1, 2]):
        gathered = hvd.grouped_allgather([tf.fill(dims, rank), tf.fill([2], rank)])
        n = [1 if not dims else r + 1 for r in range(size)]
        equal(gathered[0][..., 0] if dims else gathered[0], np.repeat(np.arange(size), n))
        equal(gathered[1], np.repeat(np.arange(size), 2))


def _mistakes_of_one_rank():
    """One rank's mistake is everybody's error, and the job goes on."""
    one = rank == 1
    rest = [0] * (size - 1)
    negative = [5 if one else 4, -1 if one else 0] + [0] * (size - 2)
    bad = [
        (lambda: hvd.alltoall(tf.ones([size + one])), "rank 1"),
        (lambda: hvd.alltoall(tf.ones([4]), splits=[4] + [0] * (size - 1 - one)), "splits for"),
        (lambda: hvd.alltoall(tf.ones([4]), splits=[3 + (not one), *rest]), "sum to 3"),
        (lambda: hvd.alltoall(tf.ones([4]), splits=negative), "-1"),
        (lambda: hvd.alltoall(tf.ones([4]), splits=[2**32 + 4, *rest]), "to 2147483647 for 4"),
        (lambda: hvd.alltoall(tf.ones([]) if one else tf.ones([size])), "scalar"),
        (lambda: hvd.alltoall(tf.ones([4]), splits=[]), "splits for"),
    ]
    for call, text in bad:
        for wrap in (lambda f: f, lambda f: tf.function(f)):
            with raises(tf.errors.InvalidArgumentError, text):
                wrap(call)()
    # No rank is wrong by itself, as with the shapes of an allreduce.
    with raises(tf.errors.FailedPreconditionError, f"shape [{size}, 2], rank 1 one of [{size}, 3]"):
        hvd.alltoall(tf.ones([size, 2 + one]))
    with raises(TypeError, "integers"):
        hvd.alltoall(tf.ones([size]), splits=[1.0] * size)


def alltoall_and_grouped_allgather():
    for way, wrap in WAYS.items():
        _even_parts(way, wrap)
        if way != "jit":
            _with_splits(way, wrap)
    _grouped_allgather()
    _mistakes_of_one_rank()
    equal(hvd.allreduce(tf.constant(1.0), op=hvd.Sum), size, "afterwards")
    report(checks=checked())


def _own(n):
    """The rows of n that reducescatter leaves to this rank."""
    each, odd = divmod(n, size)
    begin = rank * each + min(rank, odd)
    return slice(begin, begin + each + (rank < odd))


SEVEN = np.arange(7) % 3 + 1


def _sizes_and_dtypes(way, wrap):
    for n in (0, 1, size, 7, 5000):
        base = (np.arange(n) % 3 + 1).astype(np.float64)
        x = tf.cast(base * (rank + 1), tf.float32)
        if way == "jit" and n in (0, 1):
            continue
        got = wrap(lambda x=x: hvd.reducescatter(x, op=hvd.Sum))()
        assert got.shape == base[_own(n)].shape, (got.shape, n)
        equal(got, base[_own(n)] * total, way, n)
    for dtype in DTYPES:
        x = tf.cast(SEVEN * (rank + 1), dtype)
        got = wrap(lambda x=x: hvd.reducescatter(x, op=hvd.Sum))()
        equal(got, (SEVEN * total)[_own(7)], dtype)


def _ops_and_groups(way, wrap):
    x = tf.cast(SEVEN * (rank + 1), tf.float32)
    summed = (SEVEN * total)[_own(7)]
    for op, want in ((hvd.Min, SEVEN), (hvd.Max, SEVEN * size)):
        equal(wrap(lambda op=op: hvd.reducescatter(x, op=op))(), want[_own(7)], way, op)
    if size != 3:
        got = wrap(lambda: hvd.reducescatter(x))()
        equal(got, (SEVEN * total / size)[_own(7)], way, "average")
    scales = {"prescale_factor": 0.5, "postscale_factor": 4.0}
    scaled = wrap(lambda: hvd.reducescatter(x, op=hvd.Sum, **scales))()
    equal(scaled, 2.0 * summed, way, "scaled")
    tensors = [x, tf.ones([5, 2], tf.int32), tf.ones([3, 1])]
    grouped = wrap(lambda: hvd.grouped_reducescatter(tensors, op=hvd.Sum))()
    wanted = (summed, np.full((5, 2), size)[_own(5)], np.full((3, 1), size)[_own(3)])
    for got, want in zip(grouped, wanted, strict=True):
        equal(got, want, way, "grouped")
    y = wrap(lambda: hvd.reducescatter(x, op=hvd.Sum, compression=hvd.Compression.fp16))()
    assert y.dtype == tf.float32
    equal(y, summed, way, "compressed")


def _gradients(way, wrap):
    x = tf.cast(SEVEN * (rank + 1), tf.float32)

    def gradient(op):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(hvd.reducescatter(x, op=op) * (rank + 1.0))
        return tape.gradient(y, x)

    owners = np.concatenate([np.full(7 // size + (r < 7 % size), r + 1) for r in range(size)])
    if way != "jit" or 7 % size == 0:
        equal(wrap(lambda: gradient(hvd.Sum))(), owners * size, way, "gradient, as in Horovod")
        equal(wrap(lambda: gradient(hvd.Average))(), owners, way, "gradient, as in Horovod")
        # 2.9 of each is 2; of the sum, 1.7 of it.
        counts = tf.fill([size], 1)
        scales = {"prescale_factor": 2.9, "postscale_factor": 1.7}
        got = wrap(lambda: hvd.reducescatter(counts, op=hvd.Sum, **scales))()
        equal(got, int(1.7 * 2 * size), way)


def _allgather_in_jit():
    """Inside jit the shapes of all ranks are those of this one."""
    jit = WAYS["jit"]
    equal(jit(lambda: hvd.allgather(tf.fill([2], rank)))(), np.repeat(np.arange(size), 2), "jit")
    equal(jit(lambda: hvd.allgather(tf.constant(rank)))(), np.arange(size), "jit, scalars")
    legacy = tf.__version__.startswith("2.15")  # there XLA has one class only
    kind = tf.errors.InternalError if legacy else tf.errors.FailedPreconditionError
    with raises(kind, "Mismatched"):
        jit(lambda: hvd.allgather(tf.ones([1 + (rank == 0)])))()

    @tf.function(jit_compile=True)
    def gradient_of_allgather(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(hvd.allgather(x) * (rank + 1.0))
        return tape.gradient(y, x)

    equal(gradient_of_allgather(tf.ones([2])), total / size, "averaged, as in Horovod")


def _what_is_refused(slices):
    with raises(tf.errors.FailedPreconditionError, "[5]", "[4]"):
        hvd.reducescatter(tf.ones([4 + (rank == 0)]))
    with raises(ValueError):
        hvd.reducescatter(1.0)
    with raises(TypeError):
        hvd.reducescatter(tf.constant([True]))
    with raises(NotImplementedError):
        hvd.reducescatter(slices)


def reducescatter_and_grouped_allreduce():
    for way, wrap in WAYS.items():
        _sizes_and_dtypes(way, wrap)
        _ops_and_groups(way, wrap)
        _gradients(way, wrap)
    _allgather_in_jit()
    slices = tf.IndexedSlices(tf.ones([1, 2]) * (rank + 1), [rank], dense_shape=[size, 2])
    dense, sparse = hvd.grouped_allreduce([tf.ones([2]) * (rank + 1), slices], op=hvd.Sum)
    equal(dense, total)
    equal(tf.convert_to_tensor(sparse), np.arange(1, size + 1)[:, None] * np.ones(2))
    _what_is_refused(slices)
    assert hvd.grouped_reducescatter([]) == [] and hvd.grouped_allgather([]) == []
    equal(hvd.allreduce(tf.constant(1.0), op=hvd.Sum), size, "afterwards")
    report(checks=checked())


def sets_and_nodes():
    halves = [hvd.add_process_set([0, 1]), hvd.add_process_set([2, 3])]
    mine = halves[rank // 2]
    first = mine.ranks[0]
    got = hvd.alltoall(tf.constant([rank * 10, rank * 10 + 1]), process_set=mine)
    equal(got, [first * 10 + rank - first, (first + 1) * 10 + rank - first])
    got = hvd.reducescatter(tf.ones([3]) * rank, op=hvd.Sum, process_set=mine)
    equal(got, [2 * first + 1] * (2 if rank == first else 1))
    x = tf.range(1000) * (rank + 1)
    equal(hvd.reducescatter(x, op=hvd.Sum), np.arange(1000)[rank * 250 : (rank + 1) * 250] * total)
    rows = tf.fill([rank * 4], float(rank))
    got, received = hvd.alltoall(rows, splits=[rank] * 4)
    equal(got, np.repeat(np.arange(4), np.arange(4)))
    equal(received, np.arange(4))
    report(checks=checked())


# By ranks: rows that each rank sends to each. Some ranks have nothing to send, or nothing more, and
# still receive; or the other way round.
SPLITS = {
    2: [[[0, 8], [0, 0]], [[0, 0], [2048, 0]], [[0, 300_000], [5, 0]], [[0, 0], [0, 0]]],
    3: [
        [[3000, 500, 200], [100, 100, 100], [50, 1200, 700]],
        [[0, 0, 0], [7, 0, 0], [0, 400_000, 0]],
        [[0, 1, 0], [0, 0, 1], [0, 0, 0]],
    ],
    4: [
        [[0, 0, 0, 9], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],
        [[0, 0, 90_000, 1], [0, 0, 0, 200_000], [0, 0, 0, 0], [70_000, 0, 0, 0]],
    ],
}


def uneven_between_nodes():
    """With any splits; a rank sees what each other rank meant for it."""
    for number, splits in enumerate(SPLITS[size]):
        for width in (1, 3):
            sent = sum(splits[rank])
            rows = np.arange(sent * width, dtype=np.float32).reshape(sent, width) % 1000
            got, received = hvd.alltoall(rows + 1000 * rank, splits=splits[rank])
            equal(received, [row[rank] for row in splits], number)
            want = []
            for r, row in enumerate(splits):
                begin = sum(row[:rank])
                of_r = np.arange(begin * width, (begin + row[rank]) * width) % 1000 + 1000 * r
                want.append(of_r.reshape(row[rank], width))
            equal(got, np.concatenate(want), number, width)
    report(checks=checked())


def one_stays_away():
    """The last rank comes when the others have given up."""
    hvd.alltoall(tf.zeros([size]))
    if rank == size - 1:
        time.sleep(9)
    try:
        hvd.alltoall(tf.zeros([size, 1000]))
    except tf.errors.OpError as error:
        report(error=error.message)
