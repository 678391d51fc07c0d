"""The machine that launches: what mpirun's command depends on."""

from __future__ import annotations

import ctypes
import dataclasses
import fcntl
import os
import pathlib
import platform
import socket
import struct
from collections import Counter
from collections.abc import Mapping

LOCAL = ("localhost", "127.0.0.1")
GET_ADDRESS, GET_MASK = 0x8915, 0x891B  # SIOCGIFADDR, SIOCGIFNETMASK
# Devices by which MPI goes past TCP: InfiniBand, Omni-Path, RoCE and EFA are in the first folder.
_FABRICS = ("infiniband", "cxi")
_CORES = "/sys/devices/system/cpu"
_LIBC = ctypes.CDLL(None)


@dataclasses.dataclass(frozen=True)
class Machine:
    """What the launching machine is.

    Attributes:
      root: whether we are root.
      cores: cores, not threads, that this process may use.
      name: the host name.
      others: other names and addresses by which a host list may mean this machine.
      sockets: sockets with equally many cores, to which ranks may be bound; else 1.
      fabric: a device of a network that is faster than TCP; "" if there is none.
    """

    root: bool
    cores: int
    name: str
    others: frozenset = frozenset()
    sockets: int = 1
    fabric: str = ""

    def is_called(self, host: str) -> bool:
        """Whether a name in a host list means this machine."""
        return host in (*LOCAL, self.name, self.name.partition(".")[0]) or host in self.others


def interface_address(name: str, request: int = GET_ADDRESS) -> str:
    """An interface's IPv4 address or mask; "" if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        wanted = struct.pack("256s", name.encode()[:15])
        try:
            found = fcntl.ioctl(any_socket.fileno(), request, wanted)
        except OSError:
            return ""
    return socket.inet_ntoa(found[20:24])


def address_towards(host: str) -> str:
    """The address of this machine by which it reaches another; nothing is sent.

    Raises:
      OSError: there is no host of that name, or no way to it.
    """
    family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def cores_and_sockets(usable: set, folder: str = _CORES) -> tuple:
    """(cores among these processors, sockets) as Machine has them; threads of a core are one core.

    Args:
      usable: the numbers of the processors that may be used.
      folder: what the kernel says of all processors.
    """
    cores: set = set()
    sockets: Counter = Counter()
    for number in usable:
        topology = pathlib.Path(folder, f"cpu{number}", "topology")
        try:
            core = (topology / "thread_siblings_list").read_text()
            package = (topology / "physical_package_id").read_text().strip()
        except OSError:
            return len(usable), 1
        sockets[package] += core not in cores
        cores.add(core)
    # Where only some may be used, as in a container, binding to a socket could widen that.
    everything = len(usable) == len(list(pathlib.Path(folder).glob("cpu[0-9]*/topology")))
    even = len(set(sockets.values())) == 1
    return len(cores), len(sockets) if everything and even else 1


def may_bind_memory() -> bool:
    """Whether this process may say where its memory lies, which launchers do when they bind it.

    In containers that is often forbidden, as by Docker unless it grants CAP_SYS_NICE. Open MPI then
    warns, and MPICH ends the job.
    """
    set_mempolicy = {"x86_64": 238, "aarch64": 237}.get(platform.machine())
    default = 0  # the policy that holds anyway
    return set_mempolicy is not None and _LIBC.syscall(set_mempolicy, default, None, 0) == 0


def fabric(folder: str = "/sys/class") -> str:
    """The first device of a fast network; "" if there is none, or no /sys that says so."""
    for kind in _FABRICS:
        for device in sorted(pathlib.Path(folder, kind).glob("*")):
            return f"{kind}/{device.name}"
    return ""


def this_machine(environment: Mapping[str, str]) -> Machine:
    """The machine that this process runs on."""
    cores, sockets = cores_and_sockets(os.sched_getaffinity(0))
    sockets = sockets if may_bind_memory() else 1
    addresses = [interface_address(name) for _, name in socket.if_nameindex()]
    # SageMaker's name of a host need not be the container's.
    others = frozenset([environment.get("SM_CURRENT_HOST", ""), *addresses]) - {""}
    return Machine(os.geteuid() == 0, cores, socket.gethostname(), others, sockets, fabric())
