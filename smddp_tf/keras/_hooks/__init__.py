"""What every distributed optimizer gets, whatever its Keras: hooks for copies and for saved files.

Accumulation that DistributedOptimizer added is part of training, but no Keras can save it: Keras 3
knows averages of passes only, the others no accumulation at all. So it stands in the name that goes
into the optimizer's configuration ("SGD_sum_of_4_passes"), which every format keeps and which means
nothing to Keras. Whatever is loaded or made from that configuration goes on with the same scale
when it is wrapped again; the name of the optimizer itself is never changed.
"""

import re

from smddp_tf.keras import _distribution
from smddp_tf.keras._distribution import Hook
from smddp_tf.keras._hooks import keras2, keras3, v1

_TAG = re.compile(r"_(sum|mean)_of_(\d+)_passes$")


def kind_of(optimizer):
    """The module that has the hooks for an optimizer; None if it is none."""
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
    """For copy.copy, copy.deepcopy and pickle, which would lose the hooks or share them."""

    def __call__(self, protocol):
        function, args, *rest = self.original(protocol)
        state = rest[0] if rest else None
        if isinstance(state, dict):
            names = (_distribution.ATTRIBUTE, "register_local_var")
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
    take_saved_passes(_distribution.innermost(optimizer))  # the copy has its own name again
    attach(optimizer, distribution.shared())
    return optimizer


def take_saved_passes(optimizer):
    """(passes, whether they are averaged) of the configuration that it was made from, or None.

    The optimizer has its own name afterwards.
    """
    attribute = "_name" if hasattr(optimizer, "_name") else "name"
    name = getattr(optimizer, attribute, None)
    found = _TAG.search(name) if isinstance(name, str) else None
    if found is None:
        return None
    setattr(optimizer, attribute, _TAG.sub("", name))
    return int(found[2]), found[1] == "mean"


def attach(optimizer, distribution) -> None:
    """Sets the hooks on an optimizer, or on the one in a LossScaleOptimizer and what copies both.

    Raises:
      ValueError: the optimizer and backward_passes_per_step do not go together.
    """
    target = _distribution.innermost(optimizer)
    kind = kind_of(target)
    kind.install(target, distribution)
    setattr(target, _distribution.ATTRIBUTE, distribution)
    if distribution.passes > 1 and not (kind is keras3 and distribution.average_passes):
        target.get_config = _GetConfig("get_config", target, distribution)
    for wrapped in {id(optimizer): optimizer, id(target): target}.values():
        wrapped.register_local_var = distribution.register_local_var
        wrapped.__reduce_ex__ = _Reduce("__reduce_ex__", wrapped, distribution)
