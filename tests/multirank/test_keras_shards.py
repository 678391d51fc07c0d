"""Optimizers whose state is divided among the ranks: DistributedOptimizer(shard_state=True)."""

import pytest
from bodies import keras_shards

# Of 1/ranks of all slots, what a rank may have. Whole variables differ in size.
LARGEST = {"Muon": 2.0, "Adafactor": 2.6, "Lamb": 2.0, "others": 1.15}


def test_equal_bits(keras_job):
    """Every optimizer, with clipping, decay, averages, accumulation and sparse gradients."""
    body = keras_shards.equal_bits(ways=["eager"], names=[], largest=LARGEST)
    keras_job(body, 3, timeout=400).check(3)


def test_equal_bits_in_functions(keras_job):
    """Three that differ in how they are divided and in what they gather."""
    names = ["AdamW", "Adamax", "Adafactor"]
    body = keras_shards.equal_bits(ways=["function", "jit"], names=names, largest=LARGEST)
    keras_job(body, 2, timeout=400).check(2)


@pytest.mark.parametrize(
    ("ranks", "nodes"), [pytest.param(2, 2, marks=pytest.mark.thorough), (3, 3), (4, 2)]
)
def test_equal_bits_between_nodes(keras_job, ranks, nodes):
    """There each rank gets the gradients of its own rows alone."""
    names = ["AdamW", "SGD", "Adam", "Adamax", "Lion", "Adafactor"]
    largest = {**LARGEST, "others": 1.35}  # what cannot be cut evenly is one matrix here
    body = keras_shards.equal_bits(ways=["eager", "function"], names=names, largest=largest)
    keras_job(body, ranks, timeout=400, env={"SMDDP_NODES": str(nodes)}).check(ranks)


@pytest.mark.every_version  # Keras 3 and the others have hooks of their own
def test_files_are_whole(keras_job, tmp_path):
    """.keras files and tf.train.Checkpoint have the whole state, and load either way."""
    keras_job(keras_shards.files(folder=str(tmp_path)), 2, timeout=400).check(2)


def test_refusals(keras_job):
    """What cannot be divided, copied or kept in an elastic job."""
    keras_job(keras_shards.refusals, 2, timeout=240).check(2)
