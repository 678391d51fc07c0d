"""Installs the hooks of a distributed optimizer, and those for copying and saving.

The accumulation that DistributedOptimizer adds is part of training, but no Keras can save it: Keras
3 supports averages of passes only, the others no accumulation at all. So it is encoded in the name
in the optimizer's configuration ("SGD_sum_of_4_passes"), which every file format keeps and which
Keras does not interpret. An optimizer made from that configuration resumes with the same scale when
it is wrapped again. The name of the optimizer object itself is never changed.
"""

import re
from typing import Any

from smddp_tf._src.graph.ops.ranks import set_is_alone
from smddp_tf.keras import _distribution
from smddp_tf.keras._distribution import Hook
from smddp_tf.keras._hooks import keras2, keras2_shards, keras3, keras3_shards, v1

_TAG = re.compile(r"_(sum|mean)_of_(\d+)_passes$")


def kind_of(optimizer):
    """The module with the hooks for this optimizer; None if it is not a supported optimizer."""
    kinds = [kind for kind in (v1, keras3, keras2) if kind.fits(optimizer)]
    return kinds[0] if kinds else None


class _GetConfig(Hook):
    def __call__(self):
        config, distribution = dict(self.original()), self.distribution
        if isinstance(config.get("name"), str):
            mode = "mean" if distribution.average_passes else "sum"
            tag = f"_{mode}_of_{distribution.passes}_passes"
            config["name"] = _TAG.sub("", config["name"]) + tag
        return config


class _Reduce(Hook):
    """Gives copies (copy.copy, copy.deepcopy, pickle) their own hooks, not none or shared ones.

    Raises:
      TypeError: the optimizer's state is divided among the ranks.
    """

    def __call__(self, protocol):
        if self.distribution.shards is not None:
            raise TypeError(
                "an optimizer with shard_state=True cannot be copied or pickled: this rank has "
                "only its part of the state. Make another from its get_config()"
            )
        function, args, *rest = self.original(protocol)
        state = rest[0] if rest else None
        if isinstance(state, dict):
            names = (_distribution.ATTRIBUTE, "register_local_var", "synchronize", "outer_state")
            state = {
                name: value
                for name, value in state.items()
                if name not in names and not isinstance(value, Hook)
            }
        return _rebuild, (function, args, state, self.distribution)


def _rebuild(function, args, state, distribution):
    optimizer = function(*args)
    if state:
        optimizer.__dict__.update(state)
    restore_accumulation(_distribution.innermost(optimizer))  # restores the plain name
    attach(optimizer, distribution.shared())
    return optimizer


def restore_accumulation(optimizer):
    """Returns (passes, whether they are averaged) from the optimizer's name; None without a tag.

    Removes the tag from the name.
    """
    attribute = "_name" if hasattr(optimizer, "_name") else "name"
    name: Any = getattr(optimizer, attribute, None)
    found = _TAG.search(name) if isinstance(name, str) else None
    if found is None:
        return None
    setattr(optimizer, attribute, _TAG.sub("", name))
    return int(found[2]), found[1] == "mean"


def attach(optimizer, distribution) -> None:
    """Installs the hooks on an optimizer; in a LossScaleOptimizer, on the innermost one.

    The hooks for copying are installed on both.

    Raises:
      ValueError: the optimizer does not support backward_passes_per_step, or not this value; or
        its state cannot be divided.
    """
    target = _distribution.innermost(optimizer)
    kind = kind_of(target)
    if distribution.shard_state:
        _require_divisible(target, kind)
    kind.install(target, distribution)
    if distribution.shard_state and not set_is_alone(distribution.options.process_set):
        (keras3_shards if kind is keras3 else keras2_shards).install(target, distribution)
    setattr(target, _distribution.ATTRIBUTE, distribution)
    keeps_passes = kind is v1 or (kind is keras3 and distribution.average_passes)
    if distribution.passes > 1 and not keeps_passes:
        target.get_config = _GetConfig("get_config", target, distribution)
    for wrapped in {id(optimizer): optimizer, id(target): target}.values():
        wrapped.register_local_var = distribution.register_local_var
        if distribution.is_local_steps:
            wrapped.synchronize = distribution.synchronize
        wrapped.__reduce_ex__ = _Reduce("__reduce_ex__", wrapped, distribution)


def _require_divisible(optimizer, kind) -> None:
    """Rejects optimizers whose state cannot be divided, on any number of ranks.

    Raises:
      ValueError: it cannot.
    """
    if kind is v1 or hasattr(optimizer, "_aggregate_gradients"):
        raise ValueError(
            "shard_state=True divides the state of Keras's optimizers, but not of legacy or "
            f"tf.compat.v1 ones as {type(optimizer).__module__}.{type(optimizer).__name__}"
        )
    (keras3_shards if kind is keras3 else keras2_shards).require_divisible(optimizer)
