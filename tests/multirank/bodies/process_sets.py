"""What ranks do in test_process_sets.py."""

import threading
import time

import numpy as np
import tensorflow as tf
from checks import WAYS, checked, equal, raises, refused
from harness import rank, report, size

import smddp_tf as hvd
import smddp_tf.keras as hvd_keras


def _reductions(s, way, wrap):
    ranks, n = s.ranks, s.size()
    total, first, last = sum(r + 1 for r in ranks), ranks[0], ranks[-1]
    for count in (0, 1, 5, 70001):
        x = tf.ones([count]) * (rank + 1.0)
        equal(wrap(lambda x=x: hvd.allreduce(x, op=hvd.Sum, process_set=s))(), total, way)
    base = np.array([4.0, 8.0])
    x = tf.constant([4.0, 8.0]) * (rank + 1.0)
    for op, want in ((hvd.Average, total / n), (hvd.Max, last + 1), (hvd.Min, first + 1)):
        if op != hvd.Average or n in (1, 2, 4):
            got = wrap(lambda op=op: hvd.allreduce(x, op=op, process_set=s))()
            equal(got, base * want, way, op)
    got = wrap(lambda: hvd.allreduce(tf.cast(x, tf.int32), process_set=s))()
    equal(got, (base * total).astype(int) // n, way, "integer average")
    for got in wrap(lambda: hvd.grouped_allreduce([x, x], op=hvd.Sum, process_set=s))():
        equal(got, base * total, way, "grouped")
    for root in (first, last):  # ranks of the job
        got = wrap(lambda root=root: hvd.broadcast(x, root, process_set=s))()
        equal(got, base * (root + 1), way, "broadcast")


def _gradients_and_rows(s, way, wrap):
    ranks, n = s.ranks, s.size()
    total, last, weight = sum(r + 1 for r in ranks), ranks[-1], rank + 1.0
    mean = np.float32(total) * np.float32(1 / n)  # as it is rounded
    x = tf.constant([4.0, 8.0]) * weight

    def gradient_of(call):
        def gradient():
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(call(x) * weight)
            return tape.gradient(y, x)

        return wrap(gradient)()

    got = gradient_of(lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=s))
    equal(got, total, way, "gradient of allreduce")
    got = gradient_of(lambda x: hvd.broadcast(x, last, process_set=s))
    equal(got, mean if rank == last else 0, way, "averaged, as in Horovod")
    if way == "jit":
        return
    rows = wrap(lambda: hvd.allgather(tf.fill([rank + 1, 2], rank), process_set=s))()
    equal(rows[:, 0], np.repeat(ranks, [r + 1 for r in ranks]), way, "allgather")
    got = gradient_of(lambda x: hvd.allgather(x, process_set=s))
    equal(got, mean, way, "averaged, as in Horovod")
    slices = tf.IndexedSlices(tf.ones([1, 2]) * weight, tf.constant([rank]))
    got = wrap(lambda: hvd.allreduce(slices, op=hvd.Sum, process_set=s))()
    equal(got.indices, ranks, way, "slices")
    equal(got.values[:, 0], np.array(ranks) + 1, way, "slices")


def _everything(s, ways=WAYS):
    """Every collective on one set, which this rank is in."""
    for way, wrap in ways.items():
        _reductions(s, way, wrap)
        _gradients_and_rows(s, way, wrap)
    last = s.ranks[-1]
    variables = [tf.Variable([rank, rank]), tf.Variable(float(rank))]
    hvd.broadcast_variables(variables, root_rank=last, process_set=s)
    for variable in variables:
        equal(variable, last, "variables")
    assert hvd.broadcast_object({"root": rank}, last, process_set=s) == {"root": last}
    assert hvd.allgather_object("x" * rank, process_set=s) == ["x" * r for r in s.ranks]
    hvd.barrier(process_set=s)


def _refused_outside(s):
    """Who is not in a set is refused before anything is sent."""
    assert s.rank() is None
    for call in (
        lambda: hvd.allreduce(1.0, process_set=s),
        lambda: hvd.grouped_allreduce([1.0], process_set=s),
        lambda: hvd.allgather(1.0, process_set=s),
        lambda: hvd.broadcast(1.0, 2, process_set=s),
        lambda: hvd.barrier(process_set=s),
        lambda: hvd.broadcast_variables([], 2, process_set=s),
        lambda: hvd.broadcast_object(1, 2, process_set=s),
        lambda: hvd.allgather_object(1, process_set=s),
        tf.function(lambda: hvd.allreduce(1.0, process_set=s)),
    ):
        refused(call, f"rank {rank} is not in", str(s.ranks))


def own_gradients_outside():
    """Tape and optimizers leave gradients alone there, as Horovod's."""
    s = hvd.add_process_set([0])
    if s.included():
        report(checks=0)
        return
    variable = tf.Variable([1.0, 2.0])

    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * (rank + 1.0))
        return hvd.DistributedGradientTape(tape, process_set=s).gradient(loss, [variable])[0]

    equal(gradient(), rank + 1.0)
    equal(tf.function(gradient)(), rank + 1.0)
    for make in (hvd_keras.DistributedOptimizer, hvd_keras.PartialDistributedOptimizer):
        optimizer = make(tf.keras.optimizers.SGD(1.0), process_set=s)
        optimizer.apply_gradients([(tf.fill([2], rank + 1.0), variable)])
        equal(variable, np.array([1.0, 2.0]) - rank - 1)
        variable.assign([1.0, 2.0])
    sgd = tf.keras.optimizers.SGD(1.0)
    passes = {"backward_passes_per_step": 2}
    refused(
        lambda: hvd_keras.DistributedOptimizer(sgd, process_set=s, **passes), f"rank {rank} is not"
    )
    report(checks=checked())


def every_collective():
    sets = [hvd.add_process_set([2, 0]), hvd.add_process_set(hvd.ProcessSet([1, 2]))]
    assert [s.ranks for s in sets] == [[0, 2], [1, 2]] and sets[0].process_set_id == 1
    for s in sets:
        assert s.size() == 2 and s.included() == (rank in s.ranks)
        if s.included():
            assert s.ranks[s.rank()] == rank
            _everything(s)
            outsider = ({0, 1, 2} - set(s.ranks)).pop()
            with raises(ValueError, "root_rank", "in the job"):
                hvd.broadcast(1.0, outsider, process_set=s)
        else:
            _refused_outside(s)
    refused(lambda: hvd.allreduce(1.0, process_set=1), "not a ProcessSet")
    refused(lambda: hvd.allreduce(1.0, process_set=hvd.ProcessSet([0, 1])), "not in the job")
    _everything(hvd.global_process_set)
    report(checks=checked())


def between_nodes():
    assert hvd.cross_size() == 2
    ways = {"eager": WAYS["eager"], "function": WAYS["function"]}
    sets = [hvd.add_process_set(ranks) for ranks in ([0, 2], [0, 1, 3], [2, 3], [1])]
    for s in sets:
        if not s.included():
            continue
        _everything(s, ways)
        one = rank == s.ranks[-1] and s.size() > 1
        try:
            hvd.allreduce(tf.ones([1 + one]), name="odd", process_set=s)
            alone = True
        except tf.errors.FailedPreconditionError as error:
            alone = False
            assert f"rank {s.ranks[-1]} has [float32 [2]]" in error.message, error.message
        assert alone == (s.size() == 1)
        equal(hvd.allreduce(1.0, op=hvd.Sum, process_set=s), s.size())
    for s in sets:
        assert hvd.remove_process_set(s)
    equal(hvd.allreduce(1.0, op=hvd.Sum), size)
    report(checks=checked())


def _use(s, delay):
    """100 steps in a set; after each ten, one of rows."""
    time.sleep(delay)
    step = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=s))
    table = tf.Variable(tf.ones([4, 1]))

    @tf.function
    def rows():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [0])) * rank
        tape = hvd.DistributedGradientTape(tape, op=hvd.Sum, process_set=s)
        return tf.reduce_sum(tape.gradient(loss, table).values)

    for i in range(100):
        if i % 10 == 0:
            equal(rows(), sum(s.ranks), "slices")
        x = tf.ones([1 + i * 50]) * (rank + i)
        want = sum(r + i for r in s.ranks)
        equal(step(x) if i % 2 == 0 else hvd.allreduce(x, op=hvd.Sum, process_set=s), want)


def _step_of(s, v):
    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v) * (rank + 1.0)
        return hvd.DistributedGradientTape(tape, op=hvd.Sum, process_set=s).gradient(loss, v)

    return tf.function(gradient)


def overlapping_sets_at_once():
    tf.config.threading.set_inter_op_parallelism_threads(1)
    lists = [0, 1, 2], [0, 1, 3], [2, 3], [1, 2, 3]
    a, b, c, d = (hvd.add_process_set(ranks) for ranks in lists)
    errors = []

    def use(s, delay):
        try:
            _use(s, delay)
        except BaseException as error:
            errors.append(repr(error))

    # Rank 0 comes to set a first and rank 1 to set b: each waits for the other in a different set.
    delays = {a: 0 if rank == 0 else 1, b: 0 if rank == 1 else 1, c: 0}
    threads = [
        threading.Thread(target=use, args=item) for item in delays.items() if item[0].included()
    ]
    for thread in threads:
        thread.start()
    # Meanwhile all ranks train, and another set does besides; plans of one set come in one order.
    v = tf.Variable(tf.zeros([50000]))
    steps = [(s, _step_of(s, v)) for s in (hvd.global_process_set, d) if s.included()]
    for _ in range(50):
        for s, step in steps:
            equal(step(), sum(r + 1 for r in s.ranks), "gradient")
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a set waits for another"
    assert not errors, errors
    report(checks=checked())


def _train(mine, shapes, way, wrap, **options):
    """Five steps of a model of this half of the job."""
    variables = [tf.Variable(tf.fill(shape, float(rank))) for shape in shapes]
    hvd.broadcast_variables(variables, root_rank=mine.ranks[1], process_set=mine)

    @wrap
    def step():
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(v) for v in variables) * (rank + 1.0)
        tape = hvd.DistributedGradientTape(tape, process_set=mine, **options)
        for v, grad in zip(variables, tape.gradient(loss, variables), strict=True):
            v.assign_sub(grad)

    for _ in range(5):
        step()
    for v in variables:
        equal(v, mine.ranks[1] - 5 * (sum(mine.ranks) + 2) / 2, way, options)


def two_models():
    halves = [hvd.ProcessSet([0, 1]), hvd.ProcessSet([2, 3])]
    for half in halves:
        hvd.add_process_set(half)
    mine = halves[rank // 2]
    shapes = [[300, 70], [70]] if rank < 2 else [[5], [3, 3], [40000]]
    for way, wrap in WAYS.items():
        for options in ({}, {"num_groups": 2}, {"gradient_predivide_factor": 2.0}):
            _train(mine, shapes, way, wrap, **options)
    local = tf.Variable(1.0)
    tape = hvd.DistributedGradientTape(tf.GradientTape(), process_set=mine)
    tape.register_local_source(local)
    with tape:
        loss = local * 8.0
    equal(tape.gradient(loss, local), 4.0, "local source")
    hvd.barrier()
    report(checks=checked())
