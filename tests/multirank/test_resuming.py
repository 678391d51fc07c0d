"""A loaded model goes on as if it had not been interrupted, accumulation included."""

RESUMES = """
import os
KERAS3 = not hasattr(keras.optimizers.Optimizer, "aggregate_gradients")
x = np.random.RandomState(rank).randn(24, 3).astype("float32")
y = np.random.RandomState(9 + rank).randn(24, 2).astype("float32")
def make(optimizer):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer, "mse", run_eagerly=True)
    return model
def fit(model):
    model.fit(x, y, batch_size=6, verbose=0, shuffle=False,
              callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    return np.concatenate([w.ravel() for w in model.get_weights()])
def sgd():
    return keras.optimizers.SGD(0.1, momentum=0.5, name="mine")
def saved(model, file):
    if rank == 0:
        model.save(str(OUT / file))
    hvd.barrier()
    return str(OUT / file)
found = {}
for averages in (False, True):
    options = dict(backward_passes_per_step=2, average_aggregated_gradients=averages)
    model = make(hvd.DistributedOptimizer(sgd(), **options))
    first = fit(model)
    # Keras 3 itself cannot go on training from the older format.
    ends = [".keras"] if averages or KERAS3 else [".keras", ".h5"]
    files = [saved(model, f"{averages}{end}") for end in ends]
    want = found[averages] = fit(model)
    assert model.optimizer.name == "mine"
    for file in files:
        resumed = hvd.load_model(file)
        assert resumed.optimizer.name == "mine"
        assert np.allclose(fit(resumed), want, rtol=0, atol=1e-6), (averages, file)
        again = saved(resumed, "again" + os.path.splitext(file)[1])
        resumed = hvd.load_model(again)
        assert resumed.optimizer.get_config()["name"] == model.optimizer.get_config()["name"]
        # Keras's own function; then the optimizer is wrapped as any other.
        resumed = keras.models.load_model(file)
        hvd.DistributedOptimizer(resumed.optimizer)
        assert np.allclose(fit(resumed), want, rtol=0, atol=1e-6), (averages, file)
        # Without this library it trains too.
        plain = keras.models.load_model(file)
        assert not np.allclose(fit(plain), first)
        # What is given counts.
        other = hvd.load_model(
            file, backward_passes_per_step=2, average_aggregated_gradients=not averages)
        assert not np.allclose(fit(other), want, rtol=0, atol=1e-3)
    restored = type(model.optimizer).from_config(model.optimizer.get_config())
    hvd.DistributedOptimizer(restored)
    assert np.allclose(fit(make(restored)), first, rtol=0, atol=1e-6)
assert not np.allclose(found[True], found[False], rtol=0, atol=1e-3)
if KERAS3:  # Keras's own accumulation is a mean, as ever
    model = make(hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.5, gradient_accumulation_steps=2)))
    assert np.allclose(fit(model), first, rtol=0, atol=1e-6)
    try:
        hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.1, gradient_accumulation_steps=3), backward_passes_per_step=2)
        raise SystemExit("two numbers of passes were accepted")
    except ValueError as error:
        assert "gradient_accumulation_steps=3; they mean the same" in str(error), error
# Without the optimizer, and with code in the file.
model = hvd.load_model(files[0], compile=False)
assert getattr(model, "optimizer", None) is None and np.isfinite(model.predict(x, verbose=0)).all()
model = keras.Sequential([keras.Input((3,)), keras.layers.Lambda(lambda t: t * 2.0),
                          keras.layers.Dense(2)])
model.compile(hvd.DistributedOptimizer(sgd()), "mse", run_eagerly=True)
file = saved(model, "lambda.keras")
try:
    hvd.load_model(file)
    raise SystemExit("code was loaded")
except ValueError as error:
    assert "safe_mode" in str(error), error
fit(hvd.load_model(file, safe_mode=False))
report(done=True)
"""


def test_resuming_goes_on_as_before(keras_job):
    """Sums and means of passes survive every format, copies and configurations."""
    keras_job(RESUMES, 2).check(2)
