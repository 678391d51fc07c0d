"""What ranks do in test_wrong_arguments.py."""

import importlib.util
import pickle
import sys
import threading

import numpy as np
import tensorflow as tf
from checks import raises
from harness import rank, report, size

import smddp_tf.keras as hvd

keras = tf.keras
SGD = keras.optimizers.SGD
# kind and words of the error, and the arguments, of all that reduces gradients
OPTIONS = (
    (TypeError, "groups='x' is neither a list of lists", {"groups": "x"}),
    (TypeError, "groups=[1, 2] is neither", {"groups": [1, 2]}),
    (TypeError, "groups=2.5 is not a whole number", {"groups": 2.5}),
    (TypeError, "groups=True is not a whole number", {"groups": True}),
    (TypeError, "num_groups=True is not a whole number", {"num_groups": True}),
    (TypeError, "num_groups=1.5 is not a whole number", {"num_groups": 1.5}),
    (TypeError, "num_groups='2' is not a whole number", {"num_groups": "2"}),
    (ValueError, "num_groups=-1 is not >= 0", {"num_groups": -1}),
    (ValueError, "compression='fp16' is not a compressor", {"compression": "fp16"}),
    (ValueError, "process_set=3 is not a ProcessSet", {"process_set": 3}),
    (ValueError, "op='sum' is unknown", {"op": "sum"}),
    (TypeError, "gradient_predivide_factor='2'", {"gradient_predivide_factor": "2"}),
)


def _what_is_no_object():
    apply_before = SGD.__dict__.get("apply_gradients")
    advice = "got the class SGD; give it an object: DistributedOptimizer(SGD(...))"
    with raises(TypeError, advice):
        hvd.DistributedOptimizer(SGD)
    assert SGD.__dict__.get("apply_gradients") is apply_before and "apply" not in SGD.__dict__
    for wrong in ("adam", None):
        with raises(TypeError, "takes an optimizer object"):
            hvd.DistributedOptimizer(wrong)
    with raises(TypeError, "takes a tf.GradientTape, not 7"):
        hvd.DistributedGradientTape(7)
    with raises(TypeError, "make one: tf.GradientTape()"):
        hvd.DistributedGradientTape(tf.GradientTape)


def _options():
    layer = keras.layers.Dense(1)
    layer.build((None, 2))
    local = {"local_layers": layer}
    makers = [
        lambda **k: hvd.DistributedOptimizer(SGD(0.1), **k),
        lambda **k: hvd.DistributedGradientTape(tf.GradientTape(), **k),
        lambda **k: hvd.PartialDistributedOptimizer(SGD(0.1), **local, **k),
        lambda **k: hvd.PartialDistributedGradientTape(tf.GradientTape(), **local, **k),
    ]
    for make in makers:
        for kind, text, arguments in OPTIONS:
            with raises(kind, text):
                make(**arguments)
        make(num_groups=np.int64(2))
        make(groups=[list(layer.trainable_weights)])
        make(groups=2)
    for passes in (2.7, "2", True):
        with raises(TypeError, "backward_passes_per_step"):
            hvd.DistributedOptimizer(SGD(0.1), backward_passes_per_step=passes)
    with raises(TypeError, "which is not a Keras layer"):
        hvd.PartialDistributedOptimizer(SGD(0.1), local_layers="dense")
    for every, kind in ((0, ValueError), (1.5, TypeError), ("batch", TypeError)):
        with raises(kind, "every="):
            hvd.callbacks.CheckRanksEqual(every=every)


class Local:
    def __init__(self, value):
        self.value = value


# As a class of the script that a user starts, which cloudpickle would copy.
Local.__module__ = "__main__"
sys.modules["__main__"].Local = Local


def _local_class():
    class Inner:
        value = 5

    return Inner


def _objects():
    """What cloudpickle takes, and what nothing takes."""
    if importlib.util.find_spec("cloudpickle") is not None:
        assert hvd.broadcast_object((lambda v: v + 1) if rank == 0 else None)(2) == 3
        assert hvd.broadcast_object(_local_class(), root_rank=1).value == 5
        assert [f() for f in hvd.allgather_object(lambda r=rank: r)] == list(range(size))
    assert isinstance(hvd.broadcast_object(Local(1)), Local)  # the script's own class, not a copy
    lock = threading.Lock()
    with raises(pickle.PicklingError, "rank 1: TypeError: cannot pickle '_thread.lock'"):
        hvd.broadcast_object(lock if rank == 1 else None, root_rank=1)
    with raises(pickle.PicklingError, "rank 0: TypeError"):
        hvd.allgather_object(lock if rank == 0 else 1)
    assert hvd.allgather_object(rank) == list(range(size))


def all_are_refused():
    _what_is_no_object()
    _options()
    _objects()
    report(done=True)
