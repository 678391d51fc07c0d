"""TorchState: models, optimizers and objects that an elastic training goes on with."""

from __future__ import annotations

import copy
from typing import Any

import torch

from smddp_tf._src.elastic import state
from smddp_tf._src.job import basics
from smddp_tf.torch import _collectives
from smddp_tf.torch.elastic._ranks import TorchRanks
from smddp_tf.torch.elastic._sampler import ElasticSampler


class State(state.State):
    """Base of the states: who derives from it says what save(), restore() and sync() do."""

    _ranks = TorchRanks()


class ObjectState(State, state.ObjectState):
    """Python objects, as attributes.

    Args:
      **objects: names and initial values. They need to be copied and pickled.

    Raises:
      TypeError: a name that the state has already.
    """


def _has_state(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and hasattr(value, "load_state_dict")


def _copied(part: Any) -> Any:
    return part.position() if isinstance(part, ElasticSampler) else copy.deepcopy(part.state_dict())


def _load(name: str, part: Any, saved: Any) -> None:
    """Goes back to what _copied() returned.

    Raises:
      ValueError: it is of another model, say.
    """
    try:
        if isinstance(part, ElasticSampler):
            part.go_back(saved)
        elif isinstance(part, torch.nn.Module):
            part.load_state_dict(saved)
        else:  # an optimizer goes on with the tensors that it is given
            part.load_state_dict(copy.deepcopy(saved))
    except (KeyError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"the last commit does not fit this state's {name}: {error}; go on with the script "
            "that made it, or remove its folder (SMDDP_COMMITS)"
        ) from error


class TorchState(ObjectState):
    """Models, optimizers, samplers, and Python objects, as attributes.

    Args:
      model: a torch.nn.Module.
      optimizer: its optimizer, wrapped by DistributedOptimizer or not.
      **objects: what has a state_dict() and a load_state_dict(), as further models, ElasticSampler,
        learning-rate schedulers and gradient scalers, is the same object as outside. All else is
        copied, as by ObjectState; often ``epoch=0, batch=0``.

    Raises:
      TypeError: a name that the state has already, or a model without a state_dict().

    Examples:
      >>> model = torch.nn.Linear(2, 1)
      >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
      >>> state = hvd.elastic.TorchState(model, optimizer, epoch=0)
      >>> state.commit()
      >>> with torch.no_grad():
      ...     _ = model.weight.fill_(7.0)
      >>> state.restore()
      >>> bool((model.weight == 7.0).any())
      False
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **objects: Any) -> None:
        for name, value in {"model": model, "optimizer": optimizer}.items():
            if value is not None and not _has_state(value):
                raise TypeError(
                    f"{name}= takes what has a state_dict() and a load_state_dict(), not "
                    f"{type(value).__name__}"
                )
        parts = {name: value for name, value in objects.items() if _has_state(value)}
        self._refuse_names(parts)
        parts = {"model": model, "optimizer": optimizer, **parts}
        for name, part in parts.items():
            setattr(self, name, part)
        self._parts = [name for name, part in parts.items() if part is not None]
        super().__init__(**{name: objects[name] for name in objects if name not in parts})

    def _kept(self) -> dict[str, Any]:
        return {name: _copied(getattr(self, name)) for name in self._parts}

    def _take(self, kept: dict[str, Any]) -> None:
        for name in self._parts:
            if name in kept:
                _load(name, getattr(self, name), kept[name])

    def _send_kept(self) -> None:
        samplers, models, others = {}, {}, {}
        for name in self._parts:
            part = getattr(self, name)
            if isinstance(part, ElasticSampler):
                samplers[name] = part
            elif isinstance(part, torch.nn.Module):
                models[name] = part
            else:
                others[name] = part
        self._send_states(models, others)
        self._send_samplers(samplers)

    def _send_states(self, models: dict[str, Any], others: dict[str, Any]) -> None:
        """Models' tensors go one by one, all else as an object."""
        tensors, extras = [], {}
        for name, model in models.items():
            of_model = model.state_dict()
            tensors += [one for one in of_model.values() if torch.is_tensor(one)]
            extras[name] = {key: one for key, one in of_model.items() if not torch.is_tensor(one)}
        _collectives.send_all(tensors, self._source, "elastic models")
        own = extras, {name: one.state_dict() for name, one in others.items()}
        extras, sent = _collectives.send_object(own, self._source, "elastic state", where="cpu")
        if basics.rank() == self._source:
            return
        for name, extra in extras.items():
            if extra:
                models[name].load_state_dict(extra, strict=False)
        for name, one in sent.items():
            others[name].load_state_dict(one)

    def _send_samplers(self, samplers: dict[str, ElasticSampler]) -> None:
        """What any rank has recorded is done."""
        if not samplers:
            return
        own = {name: (one.epoch, one.processed_indices) for name, one in samplers.items()}
        everyone = self._ranks.allgather_object(own, "elastic samples")
        for name, sampler in samplers.items():
            epoch = everyone[self._source][name][0]
            done = [done for at, done in (one[name] for one in everyone) if at == epoch]
            sampler.load_state_dict({"epoch": epoch, "processed_indices": set().union(*done)})
