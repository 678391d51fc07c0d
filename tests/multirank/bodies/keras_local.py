"""What ranks do in test_keras_local.py."""

import keras_modes
import numpy as np
import tensorflow as tf
from checks import WAYS, raises
from harness import rank, report, size

import smddp_tf.keras as hvd

keras = tf.keras
RANGE = 60000.0  # of float16


def _two_branches(own_width=6):
    """A layer for all ranks, and one of each rank's own, with inputs of its own."""
    inputs = [keras.Input((6,)), keras.Input((own_width,))]
    shared, own = keras.layers.Dense(3, name="shared"), keras.layers.Dense(3, name="own")
    total = keras.layers.Add()([shared(inputs[0]), own(inputs[1])])
    outputs = keras.layers.Activation("linear", dtype="float32")(total)
    return keras.Model(inputs, outputs), shared, own


def _scale_and_steps(optimizer) -> list:
    if keras_modes.KERAS3:
        return [optimizer.dynamic_scale, optimizer.inner_optimizer.iterations]
    return [optimizer._loss_scale._current_loss_scale, optimizer.iterations]


def an_overflow_of_a_local_gradient(jit=False, passes=1):
    """In one step of rank 1 the gradient of its own layer overflows, and no other one does."""
    rng = np.random.RandomState(rank)
    x, y = rng.randn(32, 6).astype("float32"), rng.randint(0, 3, 32)
    own_x = x.copy()
    if rank == 1:
        own_x[8:12] = RANGE / 2 * rng.rand(4, 6)
    keras.mixed_precision.set_global_policy("mixed_float16")
    model, shared, own = _two_branches()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1e-4, momentum=0.9), backward_passes_per_step=passes
    )
    for weight in own.weights:
        optimizer.register_local_var(weight)
    model.compile(optimizer, keras_modes.loss_object(), jit_compile=jit)
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=own.weights)
    model.fit([x, own_x], y, batch_size=4, shuffle=False, verbose=0, callbacks=[broadcast])
    scale, steps = _scale_and_steps(model.optimizer)
    assert float(tf.convert_to_tensor(scale)) < 2**15, "nothing overflowed"
    hvd.check_ranks_equal([*shared.weights, scale, steps])
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    report()


def _clipped(optimizer, way):
    """One step with a gradient of all ranks and one of this rank; returns what they changed."""
    shared, own = tf.Variable([0.0, 0.0], name="shared"), tf.Variable([0.0], name="own")
    optimizer.register_local_var(own)
    grads = [tf.constant([3.0 * (rank + 1), 0.0]), tf.constant([4.0 * size * (rank + 1)])]

    @WAYS[way]
    def step():
        optimizer.apply_gradients(zip(grads, [shared, own], strict=True))

    step()
    return -shared.numpy(), -own.numpy()


def a_global_norm():
    """It is that of the shared gradient and of all ranks' own ones, so one process's."""
    kinds = [keras.optimizers.SGD]
    if not keras_modes.KERAS3:
        kinds.append(keras.optimizers.legacy.SGD)
    shared, own = 3.0 * (size + 1) / 2, 4.0 * (np.arange(size) + 1)
    norm = np.sqrt(shared**2 + np.square(own).sum())
    for kind in kinds:
        for way in WAYS:
            for limit in (norm / 8, norm * 2):
                optimizer = hvd.DistributedOptimizer(kind(1.0, global_clipnorm=limit))
                got = _clipped(optimizer, way)
                factor = min(1.0, limit / norm)
                # Some ulps of numbers up to 16.
                assert np.allclose(got[0], [shared * factor, 0], atol=1e-5), (kind, way, got)
                assert np.allclose(got[1], own[rank] * factor, atol=1e-5), (kind, way, got)
                hvd.check_ranks_equal([tf.Variable(got[0])])
    report()


class Late(hvd.callbacks.BroadcastGlobalVariablesCallback):
    """Registers a variable after the first batch, where Horovod broadcasts."""

    refused = 0

    def on_batch_end(self, batch, logs=None):
        with raises(ValueError, "own/kernel", "was broadcast already"):
            self.register_local_var(self.model.get_layer("own").kernel)
        self.refused += 1
        super().on_batch_end(batch, logs)


def variables_that_are_not_broadcast():
    """One that is given, without a list, and one that is registered; anything else is refused."""
    x, y = np.ones((4, 6), "float32"), np.zeros((4, 3), "float32")

    def after_fit(callback):
        keras.utils.set_random_seed(rank)
        model, _, own = _two_branches()
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
        kept = own.kernel
        callback = callback(kept)
        model.fit([x, x], y, batch_size=4, verbose=0, callbacks=[callback])
        return np.unique(hvd.allgather(kept[None]).numpy(), axis=0).shape[0]

    def registered(kept):
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        callback.register_local_var(kept)
        return callback

    def given(kept):
        return hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=kept)

    assert after_fit(registered) == after_fit(given) == size
    late = Late(0)
    assert after_fit(lambda kept: late) == 1 and late.refused == 1
    layer = keras.layers.Dense(1)
    for wrong in ([layer], layer, np.zeros(3)):
        for kind in (hvd.callbacks.BroadcastGlobalVariablesCallback, hvd.callbacks.CheckRanksEqual):
            arguments = () if kind is hvd.callbacks.CheckRanksEqual else (0,)
            with raises(TypeError, "local_variables takes variables, not"):
                kind(*arguments, local_variables=wrong)
    report()


def _branch_of_another_shape():
    """Two branches with weights that differ by rank; those of its own layer in their shapes too."""
    keras.utils.set_random_seed(rank)
    return _two_branches(own_width=6 + rank)


def _fit_local(model, shared, own, optimizer, **given):
    """Trains; the layer `own` is to be each rank's own, and the other one equal."""
    x, own_x, y = np.ones((8, 6)), np.ones((8, 6 + rank)), np.zeros((8, 3))
    model.compile(optimizer, "mse")
    before = [weight.numpy() for weight in own.weights]
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0, **given)
    callbacks = [broadcast, hvd.callbacks.CheckRanksEqual(every=1)]
    model.fit([x, own_x], y, batch_size=4, verbose=0, callbacks=callbacks)
    hvd.check_ranks_equal(shared.weights)
    biases = hvd.allgather(own.bias[None]).numpy()
    assert np.unique(biases, axis=0).shape[0] == size, "its gradients were reduced"
    assert all((old != new.numpy()).any() for old, new in zip(before, own.weights, strict=True))


def local_variables_of_other_shapes():
    """The broadcast leaves out the slots of local variables too, which have their shapes."""
    model, shared, own = _branch_of_another_shape()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1))
    for weight in own.weights:
        optimizer.register_local_var(weight)
    _fit_local(model, shared, own, optimizer, local_variables=own.weights)
    report()


def _replace_methods(optimizer) -> list:
    """As distributed-embeddings does; returns how many gradients each reduction had."""
    outer, inner, counts = optimizer._allreduce, optimizer._allreduce_grads, []

    def register_then_allreduce(grads, variables):
        for variable in variables:
            if hasattr(variable, "de_local"):
                optimizer.register_local_var(variable)
        return outer(grads, variables)

    def named_allreduce_grads(grads, variables):
        counts.append(len(grads))
        return inner(grads, variables, use_generic_names=True)

    optimizer._allreduce = register_then_allreduce
    optimizer._allreduce_grads = named_allreduce_grads
    return counts


def tables_that_a_library_divides():
    """They are marked, and registered by methods that the library puts on the optimizer."""
    for kind in (keras.optimizers.Adam, keras.optimizers.legacy.Adam):
        for passes in (1, 2):
            model, shared, own = _branch_of_another_shape()
            own.kernel.de_local = own.bias.de_local = True
            optimizer = hvd.DistributedOptimizer(kind(0.1), backward_passes_per_step=passes)
            counts = _replace_methods(optimizer)
            _fit_local(model, shared, own, optimizer)
            assert counts and set(counts) == {4}, (kind, passes, counts)
    report()


def _as_in_addons(variable) -> None:
    """Gives a variable a class like those of TensorFlow Recommenders Addons."""
    kind = type("TrainableWrapper", (type(variable),), {})
    kind.__module__ = "tensorflow_recommenders_addons.dynamic_embedding.python.ops"
    variable.__class__ = kind


def _count_updates(optimizer) -> list:
    """Replaces the optimizer's update on the object, as the addons do; returns a list of calls."""
    name = "_internal_apply_gradients"
    if not hasattr(optimizer, name):
        name = "_distributed_apply"
    of_class, calls = getattr(optimizer, name), []

    def update(*args, **kwargs):
        calls.append(name)
        return of_class(*args, **kwargs)

    setattr(optimizer, name, update)
    return calls


def rows_that_a_library_holds():
    """They keep their gradients by their class; the library's own update is called."""
    for kind in (keras.optimizers.Adam, keras.optimizers.legacy.Adam):
        model, shared, own = _branch_of_another_shape()
        for weight in own.weights:
            _as_in_addons(weight)
        optimizer = kind(0.1)
        updates = _count_updates(optimizer)
        _fit_local(model, shared, own, hvd.DistributedOptimizer(optimizer))
        assert updates, kind
    tape = hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum)
    shared, own = tf.Variable(1.0), tf.Variable(1.0)
    _as_in_addons(own)
    with tape:
        loss = (rank + 1) * (shared + own)
    grads = tape.gradient(loss, [shared, own])
    assert [float(grad) for grad in grads] == [size * (size + 1) / 2, (rank + 1) / size], grads
    report()
