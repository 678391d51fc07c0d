"""What ranks do in test_sharded_checkpoint.py: save in parts, and go on from these."""

import hashlib
import os
import pathlib
import threading
import time
import warnings

import numpy as np
import tensorflow as tf
from checks import raises
from harness import rank, report, size

import smddp_tf.keras as hvd

keras = tf.keras
kinds = keras.optimizers
KERAS3 = hasattr(keras, "Variable")
C = hvd.callbacks

# Cut in ranges, by whole variables, under a loss scale, and not at all.
WAYS = {
    "ranges": ("float32", lambda: kinds.AdamW(0.01, amsgrad=True), True),
    "variables": ("float32", lambda: kinds.Adafactor(0.01), True),
    "scaled": ("mixed_float16", lambda: kinds.Adam(0.01), True),
    "undivided": ("float32", lambda: kinds.SGD(0.1, momentum=0.5), False),
}


def _model(way, shard=None):
    policy, make, divided = WAYS[way]
    keras.mixed_precision.set_global_policy(policy)
    hvd.set_random_seed(3)
    inputs = keras.Input((12,))
    hidden = keras.layers.Dense(33, activation="tanh")(inputs)
    if KERAS3:  # the others keep what their masks come from out of reach
        hidden = keras.layers.Dropout(0.3, seed=5)(hidden)
    hidden = keras.layers.BatchNormalization()(hidden)
    outputs = keras.layers.Dense(5, dtype="float32")(hidden)
    model = keras.Model(inputs, outputs)
    wrapped = hvd.DistributedOptimizer(make(), shard_state=divided if shard is None else shard)
    model.compile(wrapped, keras.losses.MeanSquaredError(), jit_compile=False)
    return model


def _fit(model, epochs, first=0, more=(), **options):
    rng = np.random.RandomState(rank)
    x, y = rng.randn(32, 12).astype("float32"), rng.randn(32, 5).astype("float32")
    callbacks = [C.BroadcastGlobalVariablesCallback(0), *more]
    options = {"batch_size": 8, "shuffle": False, "verbose": 0, **options}
    model.fit(x, y, epochs=epochs, initial_epoch=first, callbacks=callbacks, **options)


def _whole(model) -> list:
    """All that goes on, as rank 0 has it when the state is gathered; elsewhere None."""
    with hvd.whole_state(model.optimizer) as optimizer:
        if rank != 0:
            return None
        inner = getattr(optimizer, "inner_optimizer", None) or optimizer
        variables = [*model.weights, *C._base.variables_of(inner)]
        return [tf.convert_to_tensor(getattr(v, "_value", v)).numpy() for v in variables]


def _seeds(model) -> list:
    return [v.numpy().tolist() for v in model.variables if "seed_generator_state" in v.name]


def _digest(arrays) -> str:
    data = b"".join(np.asarray(one).tobytes() for one in arrays)
    return hashlib.sha256(data).hexdigest()[:16]


def save(folder):
    """Trains two epochs in each way, saves them, and tells what the third comes to."""
    found = {}
    for way in WAYS:
        path = pathlib.Path(folder, way)
        model, checkpoint = _model(way), C.ShardedCheckpoint(path)
        assert checkpoint.restore(model) == 0
        _fit(model, 2, more=[checkpoint])
        names = sorted(part.name for part in path.glob("*/*"))
        wanted = [f"part-{k + 1:05}-of-{size:05}.safetensors" for k in range(size)]
        assert names == sorted(2 * wanted), names
        if (whole := _whole(model)) is not None:
            np.savez(pathlib.Path(folder, f"{way}.npz"), *whole)
        sizes = [part.stat().st_size for part in path.glob("checkpoint-000002/*")]
        _fit(model, 3, 2)
        found[way] = {"end": _digest(model.get_weights()), "sizes": sizes}
    report(**found)


def load(folder):
    """Goes on with this number of ranks, with the state divided as it was, and not."""
    found = {}
    for way, (_, _, divided) in WAYS.items():
        for shard in {divided, divided and way != "ranges"}:
            model = _model(way, shard)
            for variable in model.weights:
                variable.assign(tf.zeros_like(variable) + rank)
            checkpoint = C.ShardedCheckpoint(pathlib.Path(folder, way))
            assert checkpoint.restore(model) == 2
            whole = _whole(model)
            if whole is not None:
                saved = list(np.load(pathlib.Path(folder, f"{way}.npz")).values())
                for i, (a, b) in enumerate(zip(saved, whole, strict=True)):
                    assert np.array_equal(a, b), (way, shard, i, a.ravel()[:3], b.ravel()[:3])
            weights = hvd.allgather_object(_digest(model.get_weights()))
            assert len(set(weights)) == 1, (way, weights)
            seeds = hvd.allgather_object(str(_seeds(model)))
            assert len(set(seeds)) == (size if KERAS3 else 1), (way, seeds)
            if size == 4:
                _fit(model, 3, 2)
                found.setdefault(way, []).append(_digest(model.get_weights()))
    report(**found)


def refusals(folder):
    """What cannot be saved, or read: an error on all ranks, and nothing changed."""
    path = pathlib.Path(folder, "refusals")
    model, checkpoint = _model("ranges"), C.ShardedCheckpoint(path, save_freq=2, max_to_keep=1)
    _fit(model, 1, more=[checkpoint])
    hvd.barrier()
    assert len(list(path.iterdir())) == 1

    other = _model("undivided", False)
    before = _digest(other.get_weights())
    with raises(ValueError, "rank 0 cannot go on from", "it has", "variables, and this model"):
        C.ShardedCheckpoint(path).restore(other)
    assert _digest(other.get_weights()) == before
    wider = keras.Sequential([keras.Input((12,)), keras.layers.Dense(3)])
    wider.compile(hvd.DistributedOptimizer(kinds.SGD(0.1)), "mse")
    two = keras.Sequential([keras.Input((12,)), keras.layers.Dense(4)])
    two.compile(hvd.DistributedOptimizer(kinds.SGD(0.1)), "mse")
    wide = C.ShardedCheckpoint(pathlib.Path(folder, "wide"))
    wide.save(wider, 1)
    wide.wait()
    with raises(ValueError, "has shape [12, 3] of F32, and", "[12, 4] of F32"):
        wide.restore(two)

    local = hvd.DistributedOptimizer(kinds.SGD(0.1))
    local.register_local_var(two.trainable_variables[0])
    two.compile(local, "mse")
    with raises(ValueError, "with register_local_var() each rank has its own"):
        wide.save(two, 1)
    two.compile(hvd.DistributedOptimizer(kinds.SGD(0.1), sync_every=2), "mse")
    with raises(ValueError, "with sync_every each rank has its own"):
        wide.save(two, 1)
    with raises(ValueError, "needs the model's variables"):
        wide.restore(keras.Sequential([keras.layers.Dense(3)]))
    with raises(ValueError, "save_freq"):
        C.ShardedCheckpoint(path, save_freq=0)

    for at, texts in (  # a folder of one's own, as a host's, and one that cannot be made
        (1, ["rank 1 could not write its part", "all ranks must see one directory"]),
        (0, ["the first rank cannot make a folder in /proc/none"]),
    ):
        wide.directory = pathlib.Path("/proc/none" if rank == at else folder, "wide")
        with raises(OSError, *texts):
            wide.save(wider, 2)
            wide.wait()
    report()


def tables(folder):
    """A vocabulary that is another one is not gone on with."""

    def model(words):
        lookup = keras.layers.StringLookup(vocabulary=words)
        inputs = keras.Input((1,), dtype="string")
        hidden = keras.layers.Embedding(5, 4)(lookup(inputs))
        made = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        made.compile(hvd.DistributedOptimizer(kinds.SGD(0.1)), "mse")
        return made

    checkpoint = C.ShardedCheckpoint(pathlib.Path(folder, "tables"))
    checkpoint.save(model(["a", "b"]), 1)
    assert checkpoint.restore(model(["a", "b"])) == 1
    with raises(ValueError, "had other vocabularies or boundaries", "StringLookup"):
        checkpoint.restore(model(["b", "a"]))
    report()


def in_the_background(folder):
    """A slow disk holds up no step; what was left out is saved at the end."""
    path, model = pathlib.Path(folder, "slow"), _model("ranges")
    from smddp_tf._src.state import parts

    write, gate, began = parts.write, threading.Event(), []

    def slow(*arguments):
        began.append(time.monotonic())
        assert gate.wait(60)
        write(*arguments)

    parts.write = slow if rank == 1 else write

    class Opens(keras.callbacks.Callback):
        """Lets the disk write again after all but the last batch."""

        batches = 0

        def on_train_batch_end(self, batch, logs=None):
            Opens.batches += 1
            if Opens.batches == 11:
                gate.set()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checkpoint = C.ShardedCheckpoint(path, save_freq=1)
        _fit(model, 3, more=[checkpoint, Opens()])
    texts = [str(one.message) for one in caught]
    assert sum("a checkpoint is left out" in text for text in texts) == 1, texts
    assert Opens.batches == 12
    fresh = _model("ranges")
    assert checkpoint.restore(fresh) == 3
    assert int(fresh.optimizer.iterations) == 12
    report(written=len(began))


def until_killed(folder, seconds):
    """Saves after each batch, and is killed so long after the second one."""
    path, model = pathlib.Path(folder, "killed"), _model("ranges")
    checkpoint = C.ShardedCheckpoint(path, save_freq=1)
    epoch = checkpoint.restore(model)
    report(step=int(model.optimizer.iterations), weights=_digest(model.get_weights()))

    class KillsLast(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1 and rank == size - 1:
                threading.Timer(seconds, lambda: os.kill(os.getpid(), 9)).start()

    _fit(model, 10**6, epoch, [checkpoint, KillsLast()])
