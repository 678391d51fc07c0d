"""What ranks do in test_keras_own_apply.py: optimizers with an apply_gradients() of their own."""

import keras_modes
import numpy as np
import tensorflow as tf
from checks import raises
from harness import rank, report
from keras_modes import KERAS3, Mode, keras

import smddp_tf.keras as hvd
from smddp_tf.errors import RanksDifferError

_OLD = not KERAS3
# The style of which libraries derive theirs.
_kinds = keras.optimizers.legacy if _OLD else keras.optimizers


def _sgd():
    return _kinds.SGD(0.1, momentum=0.5)


class Delegating(_kinds.Optimizer):
    """Hands kernels to one optimizer and the rest to another, and updates nothing itself."""

    def __init__(self):
        super().__init__(**({"name": "Delegating"} if _OLD else {"learning_rate": 0.1}))
        self.parts = [_sgd(), _sgd()]

    def apply_gradients(self, grads_and_vars, name=None):
        pairs = list(grads_and_vars)
        for optimizer, rank_is in zip(self.parts, (True, False), strict=True):
            own = [(g, v) for g, v in pairs if (len(v.shape) > 1) == rank_is]
            optimizer.apply_gradients(own)
        return self.parts[0].iterations


class Clipping(_kinds.SGD):
    """Clips before what its base class does."""

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        grads, variables = zip(*grads_and_vars, strict=True)
        grads, _ = tf.clip_by_global_norm(grads, 0.05)
        return super().apply_gradients(zip(grads, variables, strict=True), *args, **kwargs)


def _clipping():
    return Clipping(0.1, momentum=0.5)


def equal_one_process():
    """By fit, in both ways to run; passes of one update are clipped as one."""
    two = {"backward_passes_per_step": 2, "average_aggregated_gradients": True}
    modes = {
        "delegating": Mode(Delegating, reference=_sgd),
        "delegating, eager": Mode(Delegating, reference=_sgd, run_eagerly=True),
        "clipping": Mode(_clipping),
        "clipping, jit": Mode(_clipping, jit_compile=True),
    }
    if _OLD:
        modes["clipping, two passes"] = Mode(_clipping, joined=2, distribute=two)
        modes["clipping, mixed_float16"] = Mode(_clipping, policy="mixed_float16", tolerance=1e-3)
    report(differences=keras_modes.check(modes))


def by_hand():
    """In a loop, with other gradients on each rank."""
    for optimizer in (Delegating(), _clipping()):
        wrapped = hvd.DistributedOptimizer(optimizer)
        kernel, bias = tf.Variable(tf.ones([2, 2])), tf.Variable(tf.ones([2]))
        for _ in range(3):
            grads = [tf.fill([2, 2], rank + 1.0), tf.fill([2], rank + 1.0)]
            wrapped.apply_gradients([(grads[0], kernel), (grads[1], bias)])
        assert float(tf.reduce_sum(kernel)) != 4.0
        hvd.check_ranks_equal([kernel, bias])
    report()


def _by_kind(**options):
    """Keras 3's own optimizer that hands gradients to others, by the names of the variables."""
    kinds = keras.optimizers
    parts = kinds.OptimizerMap(kinds.SGD(0.1, **options), {".*bias": kinds.SGD(0.2, **options)})
    return kinds.MultiOptimizer(parts)


def accumulating():
    """One that hands gradients on and accumulates is refused; one that clips is not."""
    for optimizer in (Delegating(), _by_kind(), _clipping()):
        wrapped = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2)
        kernel, bias = (keras.Variable(tf.ones(one)) for one in ([2, 2], [2]))
        grads = [(tf.fill(one.shape, rank + 1.0), one) for one in (kernel, bias)]

        def step(wrapped=wrapped, grads=grads):
            wrapped.apply_gradients(grads)

        if not isinstance(optimizer, Clipping):
            with raises(RuntimeError, "give gradient_accumulation_steps to those optimizers"):
                step()
        else:
            for _ in range(4):
                step()
            assert float(tf.reduce_sum(kernel.value)) != 4.0
            hvd.check_ranks_equal([kernel, bias])
    inner = {"gradient_accumulation_steps": 2}
    modes = {
        "several": Mode(_by_kind, policy="mixed_float16", tolerance=1e-3),
        "several that accumulate": Mode(lambda: _by_kind(**inner), reference=_by_kind, joined=2),
    }
    report(differences=keras_modes.check(modes))


class _Nameless(keras.optimizers.schedules.LearningRateSchedule):
    """Without get_config(), which Keras needs only to save."""

    def __init__(self, rate, of=None):
        super().__init__()
        self.rate, self.of = rate, of

    def __call__(self, step):
        return self.rate / (1.0 + tf.cast(step, tf.float32))


class _Nested(_Nameless):
    """Its configuration has another schedule, as an object."""

    def get_config(self):
        return {"rate": self.rate, "of": self.of, "function": _sgd}


def _fit(schedule):
    optimizer = hvd.DistributedOptimizer(_kinds.SGD(schedule))
    model = keras_modes.dense_model()
    model.compile(optimizer, keras_modes.loss_object())
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.CheckRanksEqual(),
    ]
    x, y = keras_modes.X[:24], keras_modes.Y[:24]
    model.fit(x, y, batch_size=12, verbose=0, callbacks=callbacks)


def schedules():
    """CheckRanksEqual compares those that hold objects, or have no configuration."""
    junk = [np.ones(1000 + 7 * i) for i in range(50 * rank)]  # so that objects lie elsewhere
    _fit(_Nested(0.1, of=_Nameless(0.1, of=_Nested(0.2))))
    _fit(_Nameless(0.1))
    different = [_Nameless(0.1 + rank)]
    if _OLD:  # where it is the schedule that is compared, not the rate of the step
        different.append(_Nested(0.1, of=_Nameless(0.1 + rank)))
    for schedule in different:
        with raises(RanksDifferError, "learning rate"):
            _fit(schedule)
    report(objects=len(junk))
