"""Arguments of another kind are refused with a sentence; objects that cannot be pickled too."""

WRONG = """
import pickle
SGD = keras.optimizers.SGD
def refused(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), (text, str(error))
    else:
        raise SystemExit(f"accepted: {text}")
apply_before = SGD.__dict__.get("apply_gradients")
refused(TypeError, "got the class SGD; give it an object: DistributedOptimizer(SGD(...))",
        lambda: hvd.DistributedOptimizer(SGD))
assert SGD.__dict__.get("apply_gradients") is apply_before and "apply" not in SGD.__dict__
refused(TypeError, "takes an optimizer object", lambda: hvd.DistributedOptimizer("adam"))
refused(TypeError, "takes an optimizer object", lambda: hvd.DistributedOptimizer(None))
refused(TypeError, "takes a tf.GradientTape, not 7", lambda: hvd.DistributedGradientTape(7))
refused(TypeError, "make one: tf.GradientTape()",
        lambda: hvd.DistributedGradientTape(tf.GradientTape))
layer = keras.layers.Dense(1)
layer.build((None, 2))
makers = [
    lambda **k: hvd.DistributedOptimizer(SGD(0.1), **k),
    lambda **k: hvd.DistributedGradientTape(tf.GradientTape(), **k),
    lambda **k: hvd.PartialDistributedOptimizer(SGD(0.1), local_layers=layer, **k),
    lambda **k: hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=layer, **k),
]
for make in makers:
    for kind, text, arguments in (
        (TypeError, "groups='x' is neither a list of lists", {"groups": "x"}),
        (TypeError, "groups=[1, 2] is neither", {"groups": [1, 2]}),
        (TypeError, "groups=2.5 is not a whole number", {"groups": 2.5}),
        (TypeError, "groups=True is not a whole number", {"groups": True}),
        (TypeError, "num_groups=True is not a whole number", {"num_groups": True}),
        (TypeError, "num_groups=1.5 is not a whole number", {"num_groups": 1.5}),
        (TypeError, "num_groups='2' is not a whole number", {"num_groups": "2"}),
        (ValueError, "num_groups=-1 is not >= 0", {"num_groups": -1}),
        (ValueError, "compression='fp16' is no compressor", {"compression": "fp16"}),
        (ValueError, "process_set=3 is not a ProcessSet", {"process_set": 3}),
        (ValueError, "op='sum' is unknown", {"op": "sum"}),
        (TypeError, "gradient_predivide_factor='2'", {"gradient_predivide_factor": "2"}),
    ):
        refused(kind, text, lambda: make(**arguments))
    make(num_groups=np.int64(2)), make(groups=[list(layer.trainable_weights)]), make(groups=2)
for passes in (2.7, "2", True):
    refused(TypeError, "backward_passes_per_step",
            lambda: hvd.DistributedOptimizer(SGD(0.1), backward_passes_per_step=passes))
refused(TypeError, "which is no Keras layer",
        lambda: hvd.PartialDistributedOptimizer(SGD(0.1), local_layers="dense"))
for every, kind in ((0, ValueError), (1.5, TypeError), ("batch", TypeError)):
    refused(kind, "every=", lambda: hvd.callbacks.CheckRanksEqual(every=every))
# Objects: what cloudpickle takes, and what nothing takes.
class Local:
    def __init__(self, value):
        self.value = value
if hasattr(__import__("importlib").util.find_spec("cloudpickle"), "name"):
    def local():
        class Inner:
            value = 5
        return Inner
    assert hvd.broadcast_object((lambda v: v + 1) if rank == 0 else None)(2) == 3
    assert hvd.broadcast_object(local(), root_rank=1).value == 5
    assert [f() for f in hvd.allgather_object(lambda r=rank: r)] == list(range(size))
assert isinstance(hvd.broadcast_object(Local(1)), Local)  # the script's own class, not a copy
import threading
lock = threading.Lock()
refused(pickle.PicklingError, "rank 1: TypeError: cannot pickle '_thread.lock'",
        lambda: hvd.broadcast_object(lock if rank == 1 else None, root_rank=1))
refused(pickle.PicklingError, "rank 0: TypeError",
        lambda: hvd.allgather_object(lock if rank == 0 else 1))
assert hvd.allgather_object(rank) == list(range(size))
report(done=True)
"""


def test_wrong_arguments(keras_job):
    """Tape, optimizer, their partial forms, CheckRanksEqual; the collectives of objects."""
    keras_job(WRONG, 2).check(2)
