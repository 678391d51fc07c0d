"""What would train the ranks apart without a word is noticed; CheckRanksEqual; copies."""

from conftest import KERASES, on_ranks

NOTICED = """
import copy, pickle, warnings
from smddp_tf.errors import RanksDifferError
C = hvd.callbacks
KERAS3 = not hasattr(keras.optimizers.Optimizer, "aggregate_gradients")
x = np.random.RandomState(rank).randn(24, 3).astype("float32")
y = np.random.RandomState(9 + rank).randn(24, 2).astype("float32")
def sgd():
    return keras.optimizers.SGD(0.1, momentum=0.5)
def make(optimizer, kind=keras.Sequential, run_eagerly=True):  # most need no trace
    keras.utils.set_random_seed(3)
    model = kind([keras.Input((3,)), keras.layers.Dense(4), keras.layers.BatchNormalization(),
                  keras.layers.Dropout(0.3), keras.layers.Dense(2)])
    model.compile(optimizer, "mse", run_eagerly=run_eagerly)
    return model
def fit(model, *callbacks, checked=False, **options):
    "The warnings of a fit, and what CheckRanksEqual said."
    callbacks = [C.BroadcastGlobalVariablesCallback(0), *callbacks]
    said = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model.fit(x, y, batch_size=12, verbose=0, shuffle=False, callbacks=callbacks, **options)
        except RanksDifferError as error:
            said = str(error)
    return [str(w.message) for w in caught if w.category is RuntimeWarning], said
# All is well: nothing is said, whatever the order of callbacks and the accumulation.
for options in ({}, {"backward_passes_per_step": 2}):
    model = make(hvd.DistributedOptimizer(sgd(), **options), run_eagerly=False)
    told = fit(model, C.CheckRanksEqual(every=2), C.CheckRanksEqual(), epochs=2)
    assert told == ([], ""), told
model = make(hvd.DistributedOptimizer(sgd()))
try:
    model.fit(x, y, batch_size=12, verbose=0, callbacks=[
        C.CheckRanksEqual(also_statistics=True), C.BroadcastGlobalVariablesCallback(0)])
    raise SystemExit("other moving statistics were not seen")
except RanksDifferError as error:
    assert "moving_mean differs on rank" in str(error) and "kernel" not in str(error), error
# Wrapped after fit(): takes effect.
model = make(sgd(), run_eagerly=False)
model.fit(x, y, batch_size=12, verbose=0)
hvd.DistributedOptimizer(model.optimizer)
told = fit(model, C.CheckRanksEqual(every=1))
assert told == ([], ""), told
# Wrapped after a loop's step was traced: said at once. A step of a loaded optimizer says nothing.
optimizer, w = sgd(), tf.Variable([1.0, 2.0])
@tf.function
def my_step(g):
    optimizer.apply_gradients([(g, w)])
my_step(tf.constant([1.0, 1.0]))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    hvd.DistributedOptimizer(optimizer)
assert len(caught) == 1 and "my_step" in str(caught[0].message), [str(c.message) for c in caught]
my_step(tf.constant([1.0, 1.0]) * rank)
try:
    hvd.check_ranks_equal([w])
    raise SystemExit("local gradients were not seen")
except RanksDifferError as error:
    assert "differs on rank" in str(error), error
# One of two optimizers is wrapped.
class Two(keras.Sequential):
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(data[0], training=True) - data[1]))
        v = self.trainable_variables
        g = tape.gradient(loss, v)
        self.optimizer.apply_gradients(list(zip(g, v))[2:])
        self.second.apply_gradients(list(zip(g, v))[:2])
        return {"loss": loss}
model = make(hvd.DistributedOptimizer(sgd()), Two)
model.second = sgd()
told, said = fit(model, C.CheckRanksEqual())
assert len(told) == 1 and "dense/kernel differs on rank" in told[0], told
assert "not wrapped by hvd.DistributedOptimizer" in told[0] and "dense_1" not in told[0]
assert "after the first batch the ranks differ in" in said and "dense/kernel" in said, said
# A train_step that passes the optimizer by.
class ByHand(Two):
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(data[0], training=True) - data[1]))
        for v, g in zip(self.trainable_variables, tape.gradient(loss, self.trainable_variables)):
            v.assign(v - 0.1 * g)
        return {"loss": loss}
told, said = fit(make(hvd.DistributedOptimizer(sgd()), ByHand))
assert len(told) == 1 and "train_step that assigns" in told[0], told
# Models made from a configuration have plain optimizers.
model = make(hvd.DistributedOptimizer(sgd()))
copied = keras.models.clone_model(model)
restored = type(model.optimizer).from_config(model.optimizer.get_config())
copied.compile(restored, "mse", run_eagerly=True)
told, said = fit(copied)
assert len(told) == 1 and "reduced no gradients" in told[0], told
copied = keras.models.clone_model(model)
copied.compile_from_config(model.get_compile_config())
assert len(fit(copied)[0]) == 1
# Copies of the optimizer reduce, and are optimizers of their own.
ways = [copy.copy] + ([copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))] if KERAS3 else [])
for way in ways:
    first = hvd.DistributedOptimizer(sgd(), compression=hvd.Compression.bf16)
    second = way(first)
    assert second is not first and type(second) is type(first)
    second.learning_rate = 1.0
    w = tf.Variable([1.0, 2.0])
    second.apply_gradients([(tf.constant([1.0, 1.0]) * rank, w)])
    want = np.array([1.0, 2.0]) - (size - 1) / 2
    assert np.allclose(w, want) and (not KERAS3 or int(first.iterations) == 0), w
    summed = way(hvd.DistributedOptimizer(sgd(), backward_passes_per_step=2))
    summed.learning_rate = 1.0
    for _ in range(2):
        summed.apply_gradients([(tf.constant([1.0, 1.0]), w)])
    assert np.allclose(w, want - 2) and "passes" not in summed.name, (w, summed.name)
    assert np.isclose(float(first.learning_rate), 0.1 if KERAS3 else 1.0)
# A layer that is local on purpose, and other rates and options.
model = make(hvd.DistributedOptimizer(sgd()))
for variable in model.layers[0].trainable_variables:
    model.optimizer.register_local_var(variable)
assert fit(model, C.CheckRanksEqual()) == ([], "")
assert not np.array_equal(*hvd.allgather(model.layers[0].kernel[None]).numpy()[:2])
class OwnRate(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.1 + 0.1 * (rank == size - 1)
told, said = fit(make(hvd.DistributedOptimizer(sgd())), OwnRate(), C.CheckRanksEqual())
assert f"after epoch 1" in said and "learning rate of SGD: 0.1" in said, said
model = make(hvd.DistributedOptimizer(sgd(), scale_local_gradients=rank == 0))
told, said = fit(model, C.CheckRanksEqual(every=1))
assert "scale_local_gradients of SGD: True on rank 0; False on rank" in said, said
report(done=True)
"""


@on_ranks("keras_job", KERASES, 2)
def test_ranks_that_drift_apart_are_noticed(keras_job, ranks):
    """Late wraps, second optimizers, own train steps, copies; CheckRanksEqual."""
    keras_job(NOTICED, ranks).check(ranks)


BY_HAND = """
from smddp_tf.errors import RanksDifferError
def told(variables, **options):
    try:
        hvd.check_ranks_equal(variables, **options)
    except RanksDifferError as error:
        return str(error)
    return ""
one = tf.Variable(tf.ones([2, 2]), name="one")
assert told([one, tf.Variable(3)]) == "" and told({"w": one, "rate": 0.1}) == ""
odd = tf.Variable(tf.fill([3], 0.5 + (rank == 1)), name="odd_7")
assert "variable odd differs on rank 1 (unlike ranks 0, 2)" in told([one, odd]), told([one, odd])
many = told([tf.Variable(1.0 * rank)])
assert "differs on rank 1 and differs on rank 2 (unlike rank 0)" in many, many
assert "rate: 0 on ranks 0, 2; 1 on rank 1" in told({"rate": rank % 2})
fewer = told([one] * (1 + (rank == 0)))
assert "variable one does not exist on ranks 1, 2 (unlike rank 0)" in fewer, fewer
# An ulp, a dtype, a shape; and the ranks of a process set only.
assert told([tf.Variable(np.nextafter(np.float32(1), np.float32(2 * rank)))])
assert told([tf.Variable(np.array([0.0 if rank else -0.0]))])
assert told([tf.Variable(tf.zeros([1 + rank]))])
pair = hvd.add_process_set([0, 2])
assert rank == 1 or told([odd], process_set=pair) == ""
@tf.function
def traced():
    hvd.check_ranks_equal([one])
try:
    traced()
    raise SystemExit("accepted in a tf.function")
except RuntimeError as error:
    assert "outside of tf.function" in str(error), error
report(done=True)
"""


def test_check_ranks_equal_in_a_loop_by_hand(job):
    """Says which variable, and which ranks differ from most."""
    job(BY_HAND, 3).check(3)
