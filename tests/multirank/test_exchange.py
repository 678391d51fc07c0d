"""Alltoall, reducescatter and the grouped collectives, through mpirun."""

import pytest
from conftest import PYTHONS, on_ranks
from scripts import with_checks

MOVES = """
# Row k of what rank r sends to rank p is 100 r + 10 p + k.
def rows(r, p, n):
    return [100 * r + 10 * p + k for k in range(n)]
MOVABLE = [*DTYPES[2:4], tf.float16, tf.int32, tf.int64, tf.int16, tf.uint16]
for way, wrap in WAYS.items():
    for dtype in MOVABLE if way != "jit" else MOVABLE[:2]:
        x = tf.cast(tf.concat([rows(rank, p, 2) for p in range(size)], 0), dtype)
        got = wrap(lambda x=x: hvd.alltoall(x))()
        equal(got, np.concatenate([rows(r, rank, 2) for r in range(size)]), way, dtype)
    flags = tf.constant([rank == 0] * size)
    equal(wrap(lambda: hvd.alltoall(flags))(), np.arange(size) == 0, way, "bool")
    empty = wrap(lambda: hvd.alltoall(tf.zeros([0, 3])))()
    assert empty.shape == (0, 3)
    v = tf.ones([size, 2]) * (rank + 1.0)
    def gradient(v=v):
        with tf.GradientTape() as tape:
            tape.watch(v)
            y = tf.reduce_sum(hvd.alltoall(v) * (rank + 1.0))
        return tape.gradient(y, v)
    # What went to rank p was multiplied by p + 1 there.
    equal(wrap(gradient)(), np.arange(1, size + 1)[:, None] * np.ones(2), way, "gradient")
    if way == "jit":
        continue
    # Rank r sends r + p rows to rank p.
    splits = [rank + p for p in range(size)]
    x = tf.constant(sum((rows(rank, p, rank + p) for p in range(size)), []), tf.float32)
    got, received = wrap(lambda: hvd.alltoall(x, splits=splits))()
    equal(got, sum((rows(r, rank, r + rank) for r in range(size)), []), way, "splits")
    equal(received, [r + rank for r in range(size)], way, "received")
    # Everything to rank 0, from a big tensor.
    big = tf.fill([50000, 3], float(rank))
    got, received = wrap(lambda: hvd.alltoall(big, splits=[50000] + [0] * (size - 1)))()
    want = np.repeat(np.arange(size), 50000)[:, None] if rank == 0 else np.zeros((0, 3))
    equal(got, want, way, "to one")
    def split_gradient():
        v = tf.cast(x, tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(v)
            y = tf.reduce_sum(hvd.alltoall(v, splits=splits)[0] * (rank + 1.0))
        return tape.gradient(y, v)
    equal(wrap(split_gradient)(), np.repeat(np.arange(1, size + 1), splits), way, "gradient")
for dims in ([], [rank + 1, 2]):
    gathered = hvd.grouped_allgather([tf.fill(dims, rank), tf.fill([2], rank)])
    n = [1 if not dims else r + 1 for r in range(size)]
    equal(gathered[0][..., 0] if dims else gathered[0], np.repeat(np.arange(size), n))
    equal(gathered[1], np.repeat(np.arange(size), 2))
# One rank's mistake is everybody's error, and the job goes on.
bad = [
    (lambda: hvd.alltoall(tf.ones([size + (rank == 1)])), "rank 1"),
    (lambda: hvd.alltoall(tf.ones([4]), splits=[4] + [0] * (size - 1 - (rank == 1))), "splits for"),
    (lambda: hvd.alltoall(tf.ones([4]), splits=[3 + (rank != 1)] + [0] * (size - 1)), "sum to 3"),
    (lambda: hvd.alltoall(tf.ones([4]), splits=[5 if rank == 1 else 4, -1 if rank == 1 else 0]
                          + [0] * (size - 2)), "-1"),
    (lambda: hvd.alltoall(tf.ones([size, 2 + (rank == 1)])), "elements a row"),
    (lambda: hvd.alltoall(tf.ones([]) if rank == 1 else tf.ones([size])), "scalar"),
    (lambda: hvd.alltoall(tf.ones([4]), splits=[]), "splits for"),
]
for call, text in bad:
    for wrap in (lambda f: f, lambda f: tf.function(f)):
        try:
            wrap(call)()
            raise SystemExit(f"accepted: {text}")
        except tf.errors.InvalidArgumentError as error:
            assert text in error.message, (text, error.message)
try:
    hvd.alltoall(tf.ones([size]), splits=[1.0] * size)
    raise SystemExit("float splits were accepted")
except TypeError as error:
    assert "integers" in str(error)
equal(hvd.allreduce(tf.constant(1.0), op=hvd.Sum), size, "afterwards")
report(checks=checks)
"""


@on_ranks("python", PYTHONS, 2, 3, 4)
def test_alltoall_and_grouped_allgather(job, python, ranks):
    """With and without splits, gradients, and mistakes of one rank."""
    job(with_checks(MOVES), ranks, python=python).check(ranks)


SCATTERS = """
def own(n):
    each, odd = divmod(n, size)
    begin = rank * each + min(rank, odd)
    return slice(begin, begin + each + (rank < odd))
for way, wrap in WAYS.items():
    for n in (0, 1, size, 7, 5000):
        base = (np.arange(n) % 3 + 1).astype(np.float64)
        x = tf.cast(base * (rank + 1), tf.float32)
        if way == "jit" and n in (0, 1):
            continue
        got = wrap(lambda x=x: hvd.reducescatter(x, op=hvd.Sum))()
        assert got.shape == base[own(n)].shape, (got.shape, n)
        equal(got, base[own(n)] * total, way, n)
    base = np.arange(7) % 3 + 1
    for dtype in DTYPES:
        x = tf.cast(base * (rank + 1), dtype)
        equal(wrap(lambda x=x: hvd.reducescatter(x, op=hvd.Sum))(), (base * total)[own(7)], dtype)
    x = tf.cast(base * (rank + 1), tf.float32)
    for op, want in ((hvd.Min, base), (hvd.Max, base * size)):
        equal(wrap(lambda op=op: hvd.reducescatter(x, op=op))(), want[own(7)], way, op)
    if size != 3:
        equal(wrap(lambda: hvd.reducescatter(x))(), (base * total / size)[own(7)], way, "average")
    scaled = wrap(lambda: hvd.reducescatter(
        x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0))()
    equal(scaled, 2.0 * (base * total)[own(7)], way, "scaled")
    grouped = wrap(lambda: hvd.grouped_reducescatter(
        [x, tf.ones([5, 2], tf.int32), tf.ones([3, 1])], op=hvd.Sum))()
    for got, want in zip(grouped, (
            (base * total)[own(7)], np.full((5, 2), size)[own(5)], np.full((3, 1), size)[own(3)])):
        equal(got, want, way, "grouped")
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
        equal(wrap(lambda: hvd.reducescatter(counts, op=hvd.Sum, prescale_factor=2.9,
                                             postscale_factor=1.7))(), int(1.7 * 2 * size), way)
    y = wrap(lambda: hvd.reducescatter(x, op=hvd.Sum, compression=hvd.Compression.fp16))()
    assert y.dtype == tf.float32
    equal(y, (base * total)[own(7)], way, "compressed")
# Inside jit the shapes of all ranks are those of this one.
jit = WAYS["jit"]
equal(jit(lambda: hvd.allgather(tf.fill([2], rank)))(), np.repeat(np.arange(size), 2), "jit")
equal(jit(lambda: hvd.allgather(tf.constant(rank)))(), np.arange(size), "jit, scalars")
try:
    jit(lambda: hvd.allgather(tf.ones([1 + (rank == 0)])))()
    raise SystemExit("uneven parts were accepted inside jit")
except (tf.errors.FailedPreconditionError, tf.errors.InternalError) as error:
    legacy = tf.__version__.startswith("2.15")  # there XLA has one class only
    assert isinstance(error, tf.errors.InternalError) == legacy, type(error)
    assert "Mismatched" in error.message, error.message
@tf.function(jit_compile=True)
def gradient_of_allgather(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(hvd.allgather(x) * (rank + 1.0))
    return tape.gradient(y, x)
equal(gradient_of_allgather(tf.ones([2])), total / size, "averaged, as in Horovod")
slices = tf.IndexedSlices(tf.ones([1, 2]) * (rank + 1), [rank], dense_shape=[size, 2])
dense, sparse = hvd.grouped_allreduce([tf.ones([2]) * (rank + 1), slices], op=hvd.Sum)
equal(dense, total)
equal(tf.convert_to_tensor(sparse), np.arange(1, size + 1)[:, None] * np.ones(2))
try:
    hvd.reducescatter(tf.ones([4 + (rank == 0)]))
    raise SystemExit("different shapes were accepted")
except tf.errors.FailedPreconditionError as error:
    assert "[5]" in error.message and "[4]" in error.message, error.message
for error, call in (
    (ValueError, lambda: hvd.reducescatter(1.0)),
    (TypeError, lambda: hvd.reducescatter(tf.constant([True]))),
    (NotImplementedError, lambda: hvd.reducescatter(slices)),
):
    try:
        call()
        raise SystemExit("accepted")
    except error:
        pass
assert hvd.grouped_reducescatter([]) == [] and hvd.grouped_allgather([]) == []
equal(hvd.allreduce(tf.constant(1.0), op=hvd.Sum), size, "afterwards")
report(checks=checks)
"""


@on_ranks("python", PYTHONS, 2, 3, 4)
def test_reducescatter_and_grouped_allreduce(job, python, ranks):
    """Ops, dtypes, uneven rows, gradients; what XLA programs can have."""
    job(with_checks(SCATTERS), ranks, python=python).check(ranks)


SETS_AND_NODES = """
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
report(checks=checks)
"""


@pytest.mark.parametrize("nodes", [1, 2])
def test_sets_and_nodes(job, nodes):
    """On process sets, and between nodes."""
    env = {"SMDDP_NODES": str(nodes)}
    job(with_checks(SETS_AND_NODES), 4, env=env).check(4)
