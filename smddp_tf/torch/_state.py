"""Sends the state of models and optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from smddp_tf._src.job import basics
from smddp_tf.torch._collectives import send_all, send_object


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any]], root_rank: int = 0
) -> None:
    """Gives all ranks the parameters of one.

    Args:
      params: model.state_dict() or model.named_parameters(); of the same shapes on all ranks.
      root_rank: the rank whose values all take.

    Raises:
      ValueError: params is something else.
      torch.distributed.DistBackendError: ranks disagree, or one died.

    Examples:
      >>> model = torch.nn.Linear(2, 1)
      >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    """
    pairs = list(params.items() if isinstance(params, Mapping) else params)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise ValueError(
            "broadcast_parameters takes model.state_dict() or model.named_parameters(), not "
            f"{type(params).__name__}"
        )
    tensors = [value for _, value in pairs if isinstance(value, torch.Tensor)]
    send_all(tensors, root_rank, "broadcast_parameters")


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int = 0, model: Any = None
) -> None:
    """Gives all ranks the state and the options of one rank's optimizer.

    Args:
      optimizer: of parameters in the same order on all ranks; its state may be empty.
      root_rank: the rank whose state all take.
      model: accepted as Horovod accepts it; not needed.

    Raises:
      ValueError: the root's optimizer has other parameters.
      torch.distributed.DistBackendError: ranks disagree, or one died.

    Examples:
      >>> optimizer = torch.optim.Adam(torch.nn.Linear(2, 1).parameters())
      >>> hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    """
    del model
    # By way of host memory: the GPU that the root calls cuda:0 may not be this rank's.
    state = send_object(optimizer.state_dict(), root_rank, "optimizer_state", where="cpu")
    if basics.rank() != root_rank:
        optimizer.load_state_dict(state)
