"""gloo, which serves what the core does not have, bound to the address that other hosts reach.

PyTorch would bind it to what this host's name resolves to, which may be nothing, or the loopback.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

from torch.distributed import ProcessGroupGloo

from smddp_tf._src.job import basics
from smddp_tf.torch import _environment
from smddp_tf.torch._address import LOOPBACK, own_address


def address() -> str:
    """The address at which this rank can be reached by the job's others."""
    return LOOPBACK if basics.cross_size() == 1 else own_address() or socket.gethostname()


def connect(store: Any, rank: int, size: int, timeout: timedelta, lazy: bool = False) -> Any:
    """A process group of gloo's. lazy: two ranks connect when they first need to."""
    options = ProcessGroupGloo._Options()
    options._timeout = timeout
    interfaces = [{"interface": name} for name in _environment.gloo_interfaces()]
    places = interfaces or [{"hostname": address()}]
    options._devices = [ProcessGroupGloo.create_device(**one, lazy_init=lazy) for one in places]
    return ProcessGroupGloo(store, rank, size, options)
