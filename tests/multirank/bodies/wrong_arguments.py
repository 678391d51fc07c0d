"""What ranks do in test_wrong_arguments.py."""

import importlib.util
import pickle
import sys
import threading
import warnings

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
    with raises(ValueError, "process_set=3 is not a ProcessSet"):
        hvd.SyncBatchNormalization(process_set=3)
    for query in (hvd.size_op, hvd.process_set_included_op):
        for wrong in (hvd.global_process_set, "0", 0.0, None):
            with raises(TypeError, "is not a whole number; give a process set's process_set_id"):
                query(wrong)
    for every, kind in ((0, ValueError), (1.5, TypeError), ("batch", TypeError)):
        for callback in (hvd.callbacks.CheckRanksEqual, hvd.callbacks.GatherState):
            with raises(kind, f'every={every!r} is neither "epoch" nor a number of batches'):
                callback(every=every)


def _values():
    """What cannot be reduced, sent or gathered; scalars, lists and arrays can."""
    for call in (hvd.allreduce, hvd.allgather, hvd.reducescatter, lambda v: hvd.broadcast(v, 0)):
        for wrong in (None, {"a": 1.0}, tf.sparse.from_dense([1.0]), [[1.0], [2.0, 3.0]]):
            with raises(ValueError, "takes a tensor, a variable, an array"):
                call(wrong)
    with raises(ValueError, "None; a gradient that is None is left out"):
        hvd.allreduce(None)
    with raises(ValueError, "this tuple; grouped_allreduce takes lists of tensors"):
        hvd.allreduce((tf.constant(1.0), tf.constant([2.0])))
    for call in (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter):
        for wrong in (1.0, "ab", {"a": 1.0}, None, tf.constant(1.0)):
            with raises(TypeError, "takes a list of tensors, not"):
                call(wrong)
    summed = hvd.allreduce([1.0, 2.0 * rank], op=hvd.Sum)
    assert summed.numpy().tolist() == [size, size * (size - 1)]


def _scales_and_ops():
    """Op and average in each other's place would give another number, and None as a factor NaN."""
    with raises(TypeError, "average=Sum is neither True nor False; an op is given by name"):
        hvd.allreduce(1.0, hvd.Sum)
    with raises(TypeError, "average='no' is neither"):
        hvd.allreduce(1.0, average="no")
    with raises(ValueError, "op=True is unknown"):
        hvd.allreduce(1.0, op=True)
    assert float(hvd.allreduce(1.0, np.bool_(False))) == size
    for call in (
        lambda n: hvd.allreduce(1.0, name=n),
        lambda n: hvd.grouped_allreduce([1.0], name=n),
        lambda n: hvd.broadcast(1.0, 0, name=n),
        lambda n: hvd.alltoall([1.0] * size, name=n),
        lambda n: hvd.barrier(name=n),
        lambda n: hvd.allgather_object(1, name=n),
    ):
        with raises(TypeError, "name=3 is not a string"):
            call(3)
    for wrong in (None, "2", [1.0, 2.0]):
        with raises(TypeError, "postscale factor is", "not a number"):
            hvd.allreduce(1.0, prescale_factor=wrong)
    with raises(TypeError, "device_dense=Sum is not the name of a device"):
        hvd.DistributedGradientTape(tf.GradientTape(), hvd.Sum)
    for call in (
        lambda: hvd.allreduce(1.0, None, hvd.Sum),
        lambda: hvd.grouped_allreduce([1.0], None, hvd.Sum),
        lambda: hvd.reducescatter([1.0] * size, hvd.Sum),
        lambda: hvd.grouped_reducescatter([[1.0] * size], hvd.Sum),
    ):
        with raises(TypeError, "device_dense=Sum is not the name of a device"):
            call()
    assert float(hvd.allreduce(1.0, device_dense="/gpu:0", op=hvd.Sum)) == size


def _roots_and_variables():
    v = tf.Variable(rank + 1.0)
    for wrong in ("0", 0.7, None, True):
        for call in (hvd.broadcast, hvd.broadcast_object, lambda _, r: hvd.broadcast_([v], r)):
            with raises(TypeError, f"root_rank={wrong!r} is not a whole number"):
                call(1.0, wrong)
        with raises(TypeError, "root_rank="):
            hvd.callbacks.BroadcastGlobalVariablesCallback(wrong)
    for wrong, advice in (
        (keras.optimizers.SGD(), "give its variables, as model.variables"),
        (v, "give [value]"),
        ({"v": v}, "give list(values.values())"),
    ):
        with raises(TypeError, "broadcast_variables takes a list of variables", advice):
            hvd.broadcast_variables(wrong, 0)
    for wrong in (1.0, None, np.ones(2), tf.constant(1.0), "v"):
        with raises(TypeError, "which is no variable, in its list"):
            hvd.broadcast_variables([v, wrong], 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hvd.broadcast_variables(keras.layers.Dense(1).variables, np.int64(0))  # not built
        hvd.broadcast_variables([v], np.int64(0))
        hvd.init()
        hvd.init(process_sets=[hvd.ProcessSet([0])])
    said = [str(w.message).split(",")[0] for w in caught]
    assert said == ["broadcast_variables() got no variables", "init() was called before"], said
    assert float(v) == 1.0
    with raises(TypeError, "check_ranks_equal takes a list of variables"):
        hvd.check_ranks_equal(v)


def _gradients():
    """Arrays and lists are gradients too; only variables and tensors can stay local."""
    v, w = tf.Variable([0.0, 0.0]), tf.Variable([0.0, 0.0])
    optimizer = hvd.DistributedOptimizer(SGD(1.0))
    own = np.float32([rank, rank])
    optimizer.apply_gradients([(own, v), ([0.0, float(rank)], w)])
    mean = (size - 1) / 2
    assert v.numpy().tolist() == [-mean, -mean] and w.numpy().tolist() == [0.0, -mean], (v, w)
    for wrong in ("kernel", [v], 3):
        with raises(TypeError, "cannot keep its gradient local"):
            optimizer.register_local_var(wrong)
        with raises(TypeError, "cannot keep its gradient local"):
            hvd.DistributedGradientTape(tf.GradientTape()).register_local_source(wrong)


def _callbacks():
    for wrong in (keras.callbacks.CSVLogger, None, []):
        with raises(TypeError, "RankZero takes a callback object, not"):  # on all ranks
            hvd.callbacks.RankZero(wrong)
    with raises(TypeError, "initial_lr='0.1' is not a number"):
        hvd.callbacks.LearningRateWarmupCallback("0.1")
    with raises(TypeError, "multiplier='x' is not a number"):
        hvd.callbacks.LearningRateScheduleCallback(0.1, "x")
    with raises(ValueError, "every='x' is not a number of batches"):
        hvd.callbacks.AgreeOnStop("x")
    with raises(TypeError, "batch_size='x' is not a whole number"):
        hvd.callbacks.Throughput("x")


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
    for call in (hvd.broadcast_object, hvd.allgather_object):
        with raises(RuntimeError, "call it outside of tf.function"):
            tf.function(lambda call=call: call(1))()


def all_are_refused():
    _what_is_no_object()
    _options()
    _values()
    _scales_and_ops()
    _roots_and_variables()
    _gradients()
    _callbacks()
    _objects()
    report(done=True)
