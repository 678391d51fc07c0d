"""What ranks do in test_keras_shards.py: optimizers whose state is divided among them."""

import pathlib

import h5py
import numpy as np
import tensorflow as tf
from checks import WAYS, raises
from harness import rank, report, size

import smddp_tf.keras as hvd

keras = tf.keras
kinds = keras.optimizers
KERAS3 = hasattr(keras, "Variable")

ALL = {
    "SGD": lambda: kinds.SGD(0.1, momentum=0.5),
    "Adam": lambda: kinds.Adam(0.01, amsgrad=True, global_clipnorm=0.5),
    "AdamW": lambda: kinds.AdamW(
        0.01, weight_decay=0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3
    ),
    "RMSprop": lambda: kinds.RMSprop(0.01, clipnorm=0.5),
    "Ftrl": lambda: kinds.Ftrl(0.05),
    "Lion": lambda: kinds.Lion(0.001),
    "Adagrad": lambda: kinds.Adagrad(0.01, clipvalue=0.5),
    "Adadelta": lambda: kinds.Adadelta(0.1),
    "Adamax": lambda: kinds.Adamax(0.01),
    "Adafactor": lambda: kinds.Adafactor(0.01),
}
if KERAS3:
    ALL["Nadam"] = lambda: kinds.Nadam(0.01)
    ALL["Muon"] = lambda: kinds.Muon(0.01, exclude_layers=["head"])
    ALL["Lamb"] = lambda: kinds.Lamb(0.01, weight_decay=0.1)
PASSES = {"Adamax": 2}
# Elementwise, and nothing looks at a whole gradient. Keras 2 accumulates in a way of its own.
SCATTERED = {"SGD", "AdamW", "Ftrl", "Lion", "Adagrad", "Adadelta", *(["Adamax"] if KERAS3 else [])}
SCATTERED |= {"Nadam"} if KERAS3 else set()
# A matrix that is cut, one with sparse gradients, a convolution, vectors, a scalar, and one that is
# cut and has no gradient.
SHAPES = {
    "kernel": (40, 64),
    "embedding": (96, 16),
    "convolution": (3, 3, 8, 16),
    "bias": (7,),
    "scalar": (),
    "unused": (90, 30),
    "head": (16, 33),
}
STEPS = 6


def _value(step: int, of: int, shape) -> np.ndarray:
    """Multiples of 1/8, so that sums of any ranks' are exact."""
    values = np.random.RandomState(1000 * step + of).randint(-8, 9, shape) / 8
    return np.asarray(values, "float32")


_variable = keras.Variable if KERAS3 else tf.Variable


def _variables() -> list:
    first = {name: tf.constant(_value(77, 0, shape)) + 0.25 for name, shape in SHAPES.items()}
    return [_variable(value, name=name) for name, value in first.items()]


def _apply(optimizer, grads, variables) -> None:
    """As Keras's own train steps do."""
    if KERAS3:
        optimizer.apply(list(grads), variables)
    else:
        optimizer.apply_gradients(zip(grads, variables, strict=True))


def _variables_of(optimizer) -> list:
    """In Keras 2 without the rate, which it counts among them in some versions only."""
    return [v for v in optimizer.variables if v.shape.rank]


def _gradients(step: int, factor: float) -> list:
    """Of this rank; None for the variable that is not used, rows for the embedding."""
    grads = [
        tf.constant(factor * _value(step, rank + 1, shape), tf.float32) for shape in SHAPES.values()
    ]
    names = list(SHAPES)
    rows = [1 + rank, 50, 95 - rank, 50]
    values = tf.constant(_value(step, rank + 1, (4, 16)))
    indices, shape = tf.constant(rows), tf.constant([96, 16])
    grads[names.index("embedding")] = tf.IndexedSlices(values, indices, shape)
    grads[names.index("unused")] = None
    return grads


def _trained(make, wrap, shard: bool, factor: float = 1, limit: float | None = None):
    """The weights after some steps, and the bytes of the optimizer's slots."""
    variables, optimizer = _variables(), make()
    if optimizer.weight_decay is not None:
        optimizer.exclude_from_weight_decay(var_names=["bias"], var_list=[variables[0]])
    passes = PASSES.get(type(optimizer).__name__, 1)
    hvd.DistributedOptimizer(optimizer, shard_state=shard, backward_passes_per_step=passes)
    if limit is not None:  # set by a script later, when the variables have been cut
        optimizer.build(variables)
        optimizer.global_clipnorm = limit
    elif passes == 1 or KERAS3:  # else on the variables that have gradients
        optimizer.build(variables)
    step = wrap(lambda *grads: _apply(optimizer, grads, variables))
    for i in range(STEPS):
        step(*_gradients(i, factor))
    optimizer.finalize_variable_values(variables)
    slots = _variables_of(optimizer)
    accumulated = getattr(optimizer, "_accumulated_gradients", [])
    divisible = [v for v in slots if all(v is not one for one in accumulated)]
    return [v.numpy() for v in variables], sum(v.numpy().nbytes for v in divisible)


def _more_ranks_than_rows():
    """A rank that updates nothing takes its steps all the same."""
    ends = []
    for shard in (False, True):
        weight = _variable(tf.range(5.0), name="weight")
        optimizer = kinds.AdamW(0.1, use_ema=True)
        hvd.DistributedOptimizer(optimizer, shard_state=shard)
        for _ in range(3):
            _apply(optimizer, [tf.fill([5], 1.0 + rank)], [weight])
        optimizer.finalize_variable_values([weight])
        ends.append(weight.numpy())
        assert int(optimizer.iterations) == 3
    assert np.array_equal(*ends), ends


def equal_bits(ways, names, largest):
    """Divided and undivided training end with the same bits; no rank has more than its part.

    Between nodes also with gradients whose sums are rounded, and without allreduces of those that
    are cut evenly.
    """
    _more_ranks_than_rows()
    factor = 1 if hvd.cross_size() == 1 else 0.1 + rank
    clipped = [_trained(ALL["SGD"], lambda f: f, shard, factor, 0.1)[0] for shard in (False, True)]
    assert all(np.array_equal(a, b) for a, b in zip(*clipped, strict=True))
    shares = {}
    for way in ways:
        wrap = (lambda f: f) if way == "eager" else WAYS[way]
        for name in names or ALL:
            start = hvd.stats()["bucket_bytes"]
            want, whole = _trained(ALL[name], wrap, False, factor)
            middle = hvd.stats()["bucket_bytes"]
            got, part = _trained(ALL[name], wrap, True, factor)
            scattered = hvd.stats()["bucket_bytes"] - middle < 0.5 * (middle - start)
            assert scattered == (hvd.cross_size() > 1 and name in SCATTERED), (way, name)
            for key, a, b in zip(SHAPES, want, got, strict=True):
                assert np.array_equal(a, b), (way, name, key, np.abs(a - b).max())
            assert not np.array_equal(want[0], _variables()[0].numpy()), (way, name)
            shares[name] = part / whole
            assert shares[name] * size <= largest.get(name, largest["others"]), (name, shares)
    report(shares=shares)


def _model():
    keras.utils.set_random_seed(3 + rank)
    inputs = keras.Input((12,))
    hidden = keras.layers.Dense(32, activation="tanh")(inputs)
    return keras.Model(inputs, keras.layers.Dense(5, name="head")(hidden))


def _compiled(optimizer, model=None, shard=True):
    model = model or _model()
    wrapped = hvd.DistributedOptimizer(optimizer, shard_state=shard)
    model.compile(wrapped, keras.losses.MeanSquaredError(), jit_compile=False)
    return model


def _fit(model, epochs=2, more=()):
    rng = np.random.RandomState(rank)
    x, y = rng.randn(48, 12).astype("float32"), rng.randn(48, 5).astype("float32")
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.CheckRanksEqual(),
        *more,
    ]
    options = {"batch_size": 16, "shuffle": False, "verbose": 0}
    model.fit(x, y, epochs=epochs, callbacks=callbacks, **options)
    return model


def _same(one, other) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def _saved_is_whole(folder, policy):
    """A file has what the undivided optimizer's has; training goes on from it either way."""
    keras.mixed_precision.set_global_policy(policy)
    whole = _fit(_compiled(kinds.Adam(0.01), shard=False))
    own = pathlib.Path(folder, f"{policy}{{epoch}}.keras")
    saving = hvd.callbacks.RankZero(keras.callbacks.ModelCheckpoint(str(own)))
    divided = _fit(_compiled(kinds.Adam(0.01)), more=[hvd.callbacks.GatherState(), saving])
    assert _same(whole.get_weights(), divided.get_weights())
    hvd.barrier()
    loaded = keras.models.load_model(str(own).format(epoch=2))
    want = [v.numpy() for v in whole.optimizer.variables]
    assert _same(want, [v.numpy() for v in loaded.optimizer.variables])

    _fit(whole)
    for shard in (True, False):
        again = hvd.load_model(str(own).format(epoch=2), shard_state=shard)
        assert _same(whole.get_weights(), _fit(again).get_weights()), shard
    parts = [v.numpy().nbytes for v in again.optimizer.variables]
    divided_parts = [v.numpy().nbytes for v in divided.optimizer.variables]
    assert sum(divided_parts) < 0.7 * sum(parts)
    keras.mixed_precision.set_global_policy("float32")
    return divided


def _saved_model(model, path):
    """A SavedModel of Keras 2 has the optimizer's state too, which Keras itself does not load."""
    with hvd.whole_state(model.optimizer) as whole:
        if rank == 0:
            model.save(path, save_format="tf")
            reader = tf.train.load_checkpoint(str(pathlib.Path(path, "variables", "variables")))
            saved = [reader.get_tensor(name) for name in reader.get_variable_to_shape_map()]
            for variable in whole.variables:
                same = [np.array_equal(variable.numpy(), one) for one in saved]
                assert any(same), (variable.name, len(saved))
    hvd.barrier()


def _checkpoints(model, folder):
    """tf.train.Checkpoint inside whole_state(), and each way to save outside of it."""
    path, optimizer = str(pathlib.Path(folder, "checkpoint")), model.optimizer
    with hvd.whole_state(optimizer) as whole:
        assert (whole is not None) == (rank == 0)
        if rank == 0:
            tf.train.Checkpoint(model=model, optimizer=optimizer).write(path)
            with raises(RuntimeError, "what is restored in it is lost: to restore"):
                tf.train.Checkpoint(optimizer=optimizer).read(path)
    hvd.barrier()
    other = _model()
    restored = kinds.Adam(0.01)
    restored.build(other.trainable_variables)
    tf.train.Checkpoint(model=other, optimizer=restored).read(path).assert_consumed()
    resumed = _compiled(restored, other)
    assert _same(_fit(model).get_weights(), _fit(resumed).get_weights())

    old = str(pathlib.Path(folder, "old.h5"))
    with hvd.whole_state(optimizer) as whole:
        if rank == 0:
            model.save(old)
            with h5py.File(old) as file:
                group = file["optimizer_weights"]
                saved = [group[name][()] for name in group.attrs["weight_names"]]
            assert _same([v.numpy() for v in whole.variables], saved)

    refused = str(pathlib.Path(folder, f"refused{rank}"))
    cases = [
        lambda: model.save(refused + ".keras"),
        lambda: model.save(refused + ".h5"),
        lambda: tf.train.Checkpoint(optimizer=optimizer).write(path + "refused"),
    ]
    if not KERAS3:
        _saved_model(model, str(pathlib.Path(folder, "saved")))
        cases.append(lambda: model.save(refused))
    for save in cases:
        with raises(RuntimeError, "is divided among the ranks (shard_state=True)"):
            save()


def _nadam_in_a_loss_scale(folder):
    """Keras 3 does not list the product of its momentums then, but checkpoints have it."""
    path = str(pathlib.Path(folder, "nadam"))
    whole, divided = [
        _compiled(kinds.LossScaleOptimizer(kinds.Nadam(0.01)), shard=shard)
        for shard in (False, True)
    ]
    _fit(whole)
    with hvd.whole_state(_fit(divided).optimizer):
        if rank == 0:
            tf.train.Checkpoint(model=divided, optimizer=divided.optimizer).write(path)
    hvd.barrier()
    _fit(whole)
    for shard in (False, True):
        other, restored = _model(), kinds.LossScaleOptimizer(kinds.Nadam(0.01))
        restored.build(other.trainable_variables)
        tf.train.Checkpoint(model=other, optimizer=restored).read(path).assert_consumed()
        resumed = _fit(_compiled(restored, other, shard=shard))
        assert _same(whole.get_weights(), resumed.get_weights()), shard


def files(folder):
    """What is saved is whole, under float32 and under a loss scale."""
    if KERAS3:
        _nadam_in_a_loss_scale(folder)
    _saved_is_whole(folder, "mixed_float16")
    _checkpoints(_saved_is_whole(folder, "float32"), folder)
    report()


class _InADict(kinds.SGD):
    """Keeps its slots by name."""

    def build(self, variables):
        super().build(variables)
        more = {
            v.name.split(":")[0]: self.add_variable_from_reference(v, "more") for v in variables
        }
        self.more = more


class _Own(kinds.SGD):
    def apply_gradients(self, grads_and_vars, **kwargs):
        return super().apply_gradients(grads_and_vars, **kwargs)


def refusals():
    """What cannot be divided, or used when it is."""
    legacy = "shard_state=True divides the state of Keras's optimizers, but not of legacy or tf."
    cases = [
        (lambda: _Own(0.1), "cannot divide _Own, which has its own apply_gradients()"),
        (lambda: tf.compat.v1.train.AdamOptimizer(0.1), legacy),
    ]
    if KERAS3:
        cases.append((lambda: kinds.ScheduleFreeAdamW(0.1), "cannot divide ScheduleFreeAdamW"))
    else:
        cases.append((lambda: kinds.legacy.Adam(0.1), legacy))
        cases.append((lambda: kinds.Nadam(0.1), "cannot divide this Keras's Nadam"))
    for make, message in cases:
        with raises(ValueError, message):
            hvd.DistributedOptimizer(make(), shard_state=True)
    more = "/a_more' belongs to" if KERAS3 else "'more/a:0' belongs to"
    with raises(ValueError, "which weight its variable", more):
        optimizer = hvd.DistributedOptimizer(_InADict(0.1), shard_state=True)
        optimizer.build([_variable(tf.ones([3]), name="a")])
    with raises(TypeError, "shard_state=1 is not True or False"):
        hvd.DistributedOptimizer(kinds.SGD(0.1), shard_state=1)
    with raises(ValueError, "with sync_every each rank has its own; give one of the two"):
        hvd.DistributedOptimizer(kinds.SGD(0.1), shard_state=True, sync_every=2)
    with raises(TypeError, "whole_state() takes an optimizer that"):
        with hvd.whole_state(kinds.SGD(0.1)):
            pass

    import copy

    model = _compiled(kinds.SGD(0.1, momentum=0.5))
    _fit(model)
    with raises(TypeError, "with shard_state=True cannot be copied or pickled"):
        copy.deepcopy(model.optimizer)
    with raises(ValueError, "an elastic job cannot keep the state of an optimizer"):
        hvd.elastic.KerasState(model)
    with raises(ValueError, "register_local_var() must be called before the optimizer is built"):
        model.optimizer.register_local_var(model.trainable_variables[0])
    with raises(ValueError, "BackupAndRestore does not keep the state of an optimizer with"):
        _fit(model, more=[hvd.callbacks.BackupAndRestore("backup")])
    if rank == 0:
        model.optimizer.iterations.assign(3)
    with raises(RuntimeError, "load a file on every rank, not on the root alone"):
        _fit(model)
    report()
