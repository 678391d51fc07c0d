"""What ranks do in test_keras_seeds.py."""

import hashlib
import random

import numpy as np
import tensorflow as tf
from checks import raises
from harness import rank, report, size

import smddp_tf.keras as hvd

keras = tf.keras
Dataset = tf.data.Dataset
N = 200
SAME = ("random", "numpy", "weights", "order", "seeded order", "mixed order", "indices")
OTHER = ("dropout", "op", "op in map", "layer in map", "masks in fit")


def _digest(values) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


class Masked(keras.Model):
    """Keeps what dropout makes of ones in the last step."""

    def __init__(self):
        super().__init__()
        self.drop, self.out = keras.layers.Dropout(0.5), keras.layers.Dense(3)
        self.mask = tf.Variable(tf.zeros([64]), trainable=False)

    def call(self, inputs, training=False):
        self.mask.assign(self.drop(tf.ones([64]), training=training))
        return self.out(inputs)


class Masks(keras.callbacks.Callback):
    """Notes the mask of each step."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(self.model.mask.numpy())


def _order(dataset):
    return [int(e) for _ in range(2) for e in dataset.as_numpy_iterator()]


def _drawn(seed) -> dict:
    """Digests of what one script draws after set_random_seed(seed)."""
    hvd.set_random_seed(seed)
    whole = Dataset.range(N)
    found = {"random": random.random(), "numpy": np.random.rand()}
    model = Masked()
    model(tf.zeros([1, 4]))
    found["weights"] = _digest(model.out.kernel)
    found["dropout"] = _digest(keras.layers.Dropout(0.5)(tf.ones([64]), training=True))
    found["op"] = _digest(tf.random.uniform([9]))
    found["order"] = _order(whole.shuffle(N).map(lambda e: e))
    found["seeded order"] = _order(whole.shuffle(N, seed=4))
    found["mixed order"] = _order(Dataset.sample_from_datasets([whole, whole]).take(N))
    ones = Dataset.from_tensors(tf.ones([8, 8, 1])).repeat(4)
    noise = keras.layers.GaussianNoise(1.0)
    turn = keras.layers.RandomTranslation(0.5, 0.5, fill_mode="constant")
    in_map = ones.map(lambda e: e + tf.random.uniform([8, 8, 1]))
    found["op in map"] = _digest(list(in_map.as_numpy_iterator()))
    turned = ones.map(lambda e: turn(noise(e, training=True), training=True))
    found["layer in map"] = _digest(list(turned.as_numpy_iterator()))
    found["indices"] = np.random.permutation(N).tolist()

    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    masks = Masks()
    pairs = (np.ones([48, 4], "float32"), np.ones([48, 3], "float32"))
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(*hvd.shard(pairs), batch_size=4, verbose=0, callbacks=[broadcast, masks])
    assert len({_digest(mask) for mask in masks.seen}) == len(masks.seen) == 48 // 4 // size
    found["masks in fit"] = _digest(masks.seen)
    found["trained"] = _digest(model.out.kernel)
    return found


def drawn():
    one, other, again = _drawn(3), _drawn(4), _drawn(3)
    names = [name for name in one if one[name] != again[name]]
    assert not names, f"not repeated: {names}"
    of_ranks = hvd.allgather_object(one)
    for name in (*SAME, "trained"):
        values = {repr(theirs[name]) for theirs in of_ranks}
        assert len(values) == 1, f"not the same on all ranks: {name}"
        assert one[name] != other[name], f"the same with another seed: {name}"
    for name in OTHER:
        values = {repr(theirs[name]) for theirs in of_ranks}
        assert len(values) == size, f"the same on several ranks: {name}"
    # Its seed of each epoch is a tensor.
    parts = hvd.allgather_object(_order(hvd.shard(Dataset.range(N), shuffle=True, seed=1)))
    count = N // size
    for epoch in range(2):
        seen = [e for part in parts for e in part[epoch * count : (epoch + 1) * count]]
        assert sorted(seen) == list(range(N)), f"epoch {epoch} misses elements"
    report(order=one["order"], weights=one["weights"])


def refused():
    with raises(ValueError, "seed: 5 on rank 0, 6 on rank 1", "give all ranks the same"):
        hvd.set_random_seed(5 + rank)
    for bad in (-1, 1.5, True, None, 2**32):
        with raises(ValueError, "is not an integer from 0"):
            hvd.set_random_seed(bad)
    first = hvd.add_process_set([0])
    if rank == 0:
        assert hvd.set_random_seed(np.int64(2**32 - 1), process_set=first) == 2**32 - 1
    own = hvd.allgather_object(hvd.set_random_seed(1))
    assert own[0] == 1 and len(set(own)) == size, own
    whole = Dataset.range(N)
    hvd.shard(whole.shuffle(N).map(lambda e: e))
    keras.utils.set_random_seed(50 + rank)  # takes its place
    with raises(ValueError, "hvd.set_random_seed(seed)"):
        hvd.shard(whole.shuffle(N).map(lambda e: e))
    report(done=True)
