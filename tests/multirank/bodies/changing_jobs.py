"""What ranks do in test_changing_jobs.py: jobs of other ranks follow each other in a process."""

import numpy as np
from harness import rank, report, without_init

# The jobs of each turn, by mpirun's ranks. The last one numbers them anew.
TURNS = [
    [[0], [1], [2]],
    [[0, 1], [2]],
    [[0], [1], [2]],
    [[2, 0, 1]],
    [[1, 2], [0]],
]


def _jobs(hvd):
    """Begins and ends this rank's job of each turn, and says which ranks are in it."""
    for jobs in TURNS:
        own = next(job for job in jobs if rank in job)
        hvd.init(own)
        assert (hvd.size(), hvd.rank()) == (len(own), own.index(rank)), own
        yield own
        hvd.shutdown()


def _functions(tf, hvd) -> dict:
    """Functions of a tensor of shape [6, 2] with integers of this rank; their results are exact."""
    table = tf.Variable(tf.zeros([6, 2]))

    def gradient_of(collective):
        def gradient(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = collective(x)
                weights = tf.reshape(tf.range(tf.cast(tf.size(y), tf.float32)), tf.shape(y))
                loss = tf.reduce_sum(weights * y) * x[0, 0]
            return tape.gradient(loss, x)

        return gradient

    def tape_of(op, factor=1.0, **options):
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(table * x)
            tape = hvd.DistributedGradientTape(
                tape, op=op, gradient_predivide_factor=factor, **options
            )
            return tape.gradient(loss, [table])[0]

        return step

    def rows_of(op):
        def reduced(x):
            slices = tf.IndexedSlices(x[:2], tf.constant([1, 4]), tf.constant([6, 2]))
            return tf.convert_to_tensor(hvd.allreduce(slices, op=op))

        return reduced

    def local(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(table * x)
        tape = hvd.DistributedGradientTape(tape)
        tape.register_local_source(table)
        return tape.gradient(loss, [table])[0]

    in_jit_too = {
        "allreduce, Sum": lambda x: hvd.allreduce(x, op=hvd.Sum),
        "allreduce, Average": lambda x: hvd.allreduce(x),
        "broadcast": lambda x: hvd.broadcast(x, 0),
        "tape, Average": tape_of(hvd.Average),
        "tape, Sum": tape_of(hvd.Sum),
        "tape, predivided": tape_of(hvd.Average, factor=2.0),
        "tape, fp16": tape_of(hvd.Average, compression=hvd.Compression.fp16),
        "a local source": local,
        "gradient of allreduce": gradient_of(hvd.allreduce),
    }
    not_in_jit = {
        "rows, Sum": rows_of(hvd.Sum),
        "rows, Average": rows_of(hvd.Average),
        "allgather": hvd.allgather,
        "alltoall": hvd.alltoall,
        "reducescatter": lambda x: hvd.reducescatter(x, op=hvd.Sum),
        "gradient of allgather": gradient_of(hvd.allgather),
        "gradient of alltoall": gradient_of(lambda x: hvd.alltoall(x)),
        "gradient of broadcast": gradient_of(lambda x: hvd.broadcast(x, 0)),
        "gradient of reducescatter, Sum": gradient_of(lambda x: hvd.reducescatter(x, op=hvd.Sum)),
        "gradient of reducescatter": gradient_of(hvd.reducescatter),
    }
    return {"jit": in_jit_too, "graph": {**in_jit_too, **not_in_jit}}


@without_init
def traced_once(ways):
    """What was traced in the first job gives in each other what an eager call gives.

    ways: "graph" and "jit".
    """
    import tensorflow as tf
    from mpi4py import MPI

    import smddp_tf as hvd

    assert MPI.COMM_WORLD.size == 3
    x = tf.reshape(tf.range(12.0), [6, 2]) + 6.0 * (rank + 1)
    traces, sums, functions = [], [], {}
    for own in _jobs(hvd):
        if not functions:
            for way in ways:
                for name, function in _functions(tf, hvd)[way].items():

                    def traced(x, function=function, name=(way, name)):
                        traces.append(name)
                        return function(x)

                    compiled = tf.function(traced, jit_compile=way == "jit")
                    functions[way, name] = (compiled, function)
        for (way, name), (compiled, function) in functions.items():
            got, wanted = compiled(x), function(x)
            difference = np.abs(got - wanted).max()
            assert got.shape == wanted.shape and difference == 0, (own, way, name, got, wanted)
            if name == "allreduce, Sum":
                sums.append((float(got[0, 0]), 6.0 * sum(one + 1 for one in own)))
    report(traces=len(traces), functions=len(functions), sums=sums)


@without_init
def built_for_one_size():
    """What is right in its own job, and in another one an error."""
    import tensorflow as tf
    from mpi4py import MPI  # noqa: F401 - it begins MPI

    import smddp_tf as hvd

    def gradient_of_broadcast(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(hvd.broadcast(x, 0) * x)
        return tape.gradient(y, x)

    def rows(x):
        slices = tf.IndexedSlices(x[:2], tf.constant([1, 4]), tf.constant([60, 2]))
        return tf.convert_to_tensor(hvd.allreduce(slices, op=hvd.Sum))

    def adasum(x):
        return hvd.allreduce(x, op=hvd.Adasum)

    def int8(x):
        return hvd.allreduce(x, compression=hvd.Compression.int8)

    in_jit = {
        "allgather": hvd.allgather,
        "alltoall": lambda x: hvd.alltoall(x),
        "reducescatter": lambda x: hvd.reducescatter(x, op=hvd.Sum),
        "gradient of broadcast": gradient_of_broadcast,
        "rows": rows,
        "Adasum, jit": adasum,
    }
    in_graphs = {"Adasum": adasum, "int8": int8}
    x = tf.reshape(tf.range(12.0), [6, 2]) + rank
    hvd.init()
    functions = {name: tf.function(one, jit_compile=True) for name, one in in_jit.items()}
    functions |= {name: tf.function(one) for name, one in in_graphs.items()}
    for name, function in functions.items():
        wanted = {**in_jit, **in_graphs}[name](x)
        difference = np.abs(function(x) - wanted).max()
        assert difference < 1e-4, (name, difference)  # XLA adds Adasum's products in its own order
    hvd.shutdown()

    hvd.init([rank])
    told = {}
    for name, function in functions.items():
        try:
            function(x)
        except tf.errors.OpError as error:
            told[name] = error.message
    hvd.shutdown()
    report(told=told, functions=list(functions))


@without_init
def fit(jit):
    """One compiled model makes a step in each job, of which one process makes the same."""
    import tensorflow as tf
    from mpi4py import MPI

    import smddp_tf.keras as hvd

    def model_of(normalization):
        dense = tf.keras.layers.Dense
        return tf.keras.Sequential([tf.keras.Input([3]), dense(4), normalization, dense(1)])

    values = np.random.default_rng(1)
    x, y = values.normal(size=[len(TURNS), 3, 4, 3]), values.normal(size=[len(TURNS), 3, 4, 1])
    alone = model_of(tf.keras.layers.BatchNormalization())
    alone.compile(tf.keras.optimizers.SGD(0.05), "mse", jit_compile=False)
    model, differences, losses = None, [], []
    for turn, own in enumerate(_jobs(hvd)):
        if model is None:
            model = model_of(hvd.SyncBatchNormalization())
            optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.05))
            model.compile(optimizer, "mse", jit_compile=jit)
        callbacks = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
        ]
        before = MPI.COMM_WORLD.allgather(model.get_weights())[own[0]]
        told = model.fit(x[turn, rank], y[turn, rank], 4, verbose=0, callbacks=callbacks)
        alone.set_weights(before)
        rows = [np.concatenate(values[turn, own]) for values in (x, y)]
        wanted = alone.fit(*rows, 4 * len(own), verbose=0)
        differences += [
            float(np.abs(a - b).max())
            for a, b in zip(model.get_weights(), alone.get_weights(), strict=True)
        ]
        losses.append(abs(told.history["loss"][0] - wanted.history["loss"][0]))
    report(difference=max(differences), loss=max(losses), compared=len(differences))


@without_init
def what_an_earlier_job_had():
    """A set of an earlier job with the number of a new one, and a root that is no rank any more."""
    import tensorflow as tf
    from mpi4py import MPI  # noqa: F401 - it begins MPI

    import smddp_tf as hvd

    hvd.init()
    of_two = hvd.add_process_set([0, 1])

    @tf.function
    def in_the_set(x):
        return hvd.allreduce(x, op=hvd.Sum, process_set=of_two)

    @tf.function
    def from_rank_2(x):
        return hvd.broadcast(x, 2)

    x = tf.constant(rank + 1.0)
    before = [float(from_rank_2(x))] + ([float(in_the_set(x))] if rank < 2 else [])
    hvd.shutdown()

    hvd.init()
    hvd.add_process_set([0, 2])
    told = []
    if rank < 2:
        try:
            in_the_set(x)
        except tf.errors.OpError as error:
            told.append(error.message)
    hvd.barrier()
    hvd.shutdown()

    hvd.init([0, 1])
    try:
        from_rank_2(x)
    except tf.errors.OpError as error:
        told.append(error.message)
    total = float(hvd.allreduce(x, op=hvd.Sum))
    hvd.shutdown()
    report(before=before, told=told, total=total)
