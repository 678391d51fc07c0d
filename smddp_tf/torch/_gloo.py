"""gloo, which serves what the core does not have, bound to the address that other hosts reach.

PyTorch would bind it to what this host's name resolves to, which may be nothing, or the loopback.
"""

from __future__ import annotations

import ipaddress
import socket
from datetime import timedelta
from typing import Any

from torch.distributed import ProcessGroupGloo

from smddp_tf._src.job import basics
from smddp_tf.torch import _environment

_LOOPBACK = "127.0.0.1"
_ANYWHERE = (
    "192.0.2.1"  # reserved for documentation (RFC 5737), so only the default route leads there
)


def _address_towards(host: str) -> str:
    """This host's address on the way to another; "" if there is no way. Nothing is sent."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
        with socket.socket(*found[0][:2]) as one:
            one.connect(found[0][4])
            return str(one.getsockname()[0])
    except OSError:
        return ""


def _is_loopback(address: str) -> bool:
    return not address or ipaddress.ip_address(address.partition("%")[0]).is_loopback


def address() -> str:
    """The address at which this rank can be reached by the job's others."""
    if basics.cross_size() == 1:
        return _LOOPBACK
    master = _environment.master()
    own = _address_towards(master) if master else ""
    if _is_loopback(own) and master not in ("localhost", _LOOPBACK):
        own = _address_towards(_ANYWHERE) or own  # the master's name is in its own /etc/hosts
    return own or socket.gethostname()


def connect(store: Any, rank: int, size: int, timeout: timedelta, lazy: bool = False) -> Any:
    """A process group of gloo's. lazy: two ranks connect when they first need to."""
    options = ProcessGroupGloo._Options()
    options._timeout = timeout
    interfaces = [{"interface": name} for name in _environment.gloo_interfaces()]
    places = interfaces or [{"hostname": address()}]
    options._devices = [ProcessGroupGloo.create_device(**one, lazy_init=lazy) for one in places]
    return ProcessGroupGloo(store, rank, size, options)
