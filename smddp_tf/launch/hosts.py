"""Where ranks run: host lists, host files, Slurm allocations and SageMaker containers. Pure."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence

from smddp_tf.launch import LaunchError

_NAME = r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\])"  # a name, an IPv4, or [an IPv6]
MOST_RANKS = 1_000_000
_FORM = "HOST or HOST:SLOTS, as in -H host1:8,host2:8"
# A launcher that MPI can talk to sets one of them (see ops/transport/bootstrap/launcher_env.cc).
OF_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")  # how many it has started


@dataclasses.dataclass(frozen=True)
class Host:
    """A host, and how many ranks may run there; None: as many as are left over for it."""

    name: str
    slots: int | None = None

    def __str__(self) -> str:
        return self.name if self.slots is None else f"{self.name}:{self.slots}"


def is_rank(environment: Mapping[str, str]) -> bool:
    """Whether mpirun or srun has started this process as a rank."""
    return any(environment.get(name) for name in OF_RANKS)


def show(hosts: Sequence[Host]) -> str:
    """The hosts as -H takes them."""
    return ",".join(map(str, hosts))


def _positive(text: str, where: str) -> int:
    if not re.fullmatch("[0-9]+", text) or not 1 <= int(text) <= MOST_RANKS:
        limits = f"a whole number from 1 to {MOST_RANKS}"
        raise LaunchError(f"{where}: {text!r} slots; it takes {limits}")
    return int(text)


def _host(name: str, slots: int | None, where: str) -> Host:
    if name.startswith("["):
        raise LaunchError(
            f"{where}: mpirun takes no IPv6 address as {name}; give the host a name in /etc/hosts"
        )
    return Host(name, slots)


def _merged(hosts: Sequence[Host]) -> list:
    """Each host once; a host that is named again gets the slots of both, as mpirun counts."""
    slots: dict = {}
    for host in hosts:
        if host.name in slots and None in (slots[host.name], host.slots):
            raise LaunchError(f"{host.name} is named twice; say once how many slots it has")
        slots[host.name] = host.slots if host.name not in slots else slots[host.name] + host.slots
    return [Host(name, number) for name, number in slots.items()]


def parse_hosts(text: str) -> list:
    """The hosts of "a:8,b:8" or "a,b", in that order.

    Raises:
      LaunchError: a word is not of that form.
    """
    hosts = []
    for word in text.split(","):
        found = re.fullmatch(rf"({_NAME})(?::(.*))?", word.strip())
        if found is None:
            raise LaunchError(f"-H {text!r}: {word!r} is not {_FORM}")
        slots = found[2] if found[2] is None else _positive(found[2], f"-H {text!r}")
        hosts.append(_host(found[1], slots, f"-H {text!r}"))
    return _merged(hosts)


def parse_hostfile(text: str, path: str) -> list:
    """The hosts of a file with a line for each: `a slots=8`, `a:8` or `a`; # begins a comment.

    Raises:
      LaunchError: a line is not of that form, or there is none.
    """
    hosts = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        where = f"{path}, line {number}"
        found = re.fullmatch(rf"({_NAME})(?:(?::|\s+slots\s*=\s*)(\S+))?", words)
        if found is None:
            raise LaunchError(f"{where}: {words!r} is not `host slots=8`, `host:8` or `host`")
        slots = found[2] if found[2] is None else _positive(found[2], where)
        hosts.append(_host(found[1], slots, where))
    if not hosts:
        raise LaunchError(f"{path} names no host; it takes lines as `host slots=8`")
    return _merged(hosts)


def assign(hosts: Sequence[Host], ranks: int | None) -> list:
    """The hosts that get ranks, with how many each gets; ranks fill the hosts in order.

    Hosts without slots share evenly what the others leave; the first ones get the remainder.

    Raises:
      LaunchError: there are too few slots, or neither ranks nor slots are known.
    """
    unknown = sum(host.slots is None for host in hosts)
    known = sum(host.slots or 0 for host in hosts)
    if ranks is None and unknown:
        raise LaunchError(f"how many ranks? Give -np, or slots for each host: {_FORM}")
    ranks = known if ranks is None else ranks
    left = ranks - known
    if unknown and left < unknown:
        raise LaunchError(
            f"-np {ranks} leaves no rank for some of the hosts {show(hosts)}; name fewer hosts"
        )
    if left > 0 and not unknown:
        raise LaunchError(
            f"-np {ranks}, but the hosts {show(hosts)} have {known} slots; give more slots or hosts"
        )
    assigned = []
    for host in hosts:
        slots = host.slots
        if slots is None:
            slots = left // unknown + bool(left % unknown)
            left, unknown = left - slots, unknown - 1
        take = min(slots, ranks)
        ranks -= take
        if take:
            assigned.append(Host(host.name, take))
    return assigned


def _range(text: str, nodelist: str) -> list:
    """The numbers of "3" or "01-12", with their leading zeros."""
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise LaunchError(f"SLURM_JOB_NODELIST={nodelist!r}: [{text}] is not understood")
    first, last = found[1], found[2] or found[1]
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def expand_nodelist(nodelist: str) -> list:
    """The names of Slurm's "gpu[01-03,7],rack[1-2]n[1-4],head", as `scontrol show hostnames` does.

    Raises:
      LaunchError: it is not such a list.
    """
    names = []
    for word in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", nodelist):
        expanded = [""]
        for text, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", word):
            parts = [text] if text else []
            for one in ranges.split(",") if ranges else ():
                parts += _range(one.strip(), nodelist)
            if not parts:
                raise LaunchError(f"SLURM_JOB_NODELIST={nodelist!r}: [] names no host")
            expanded = [before + part for before in expanded for part in parts]
        names += expanded
    if not names or nodelist.count("[") != nodelist.count("]"):
        raise LaunchError(f"SLURM_JOB_NODELIST={nodelist!r} is not a list of hosts")
    return names


def slurm_hosts(environment: Mapping[str, str]) -> list:
    """The hosts of the Slurm allocation, with tasks as slots; empty outside of one.

    Raises:
      LaunchError: the allocation's variables are not understood.
    """
    nodelist = environment.get("SLURM_JOB_NODELIST", "")
    if not environment.get("SLURM_JOB_ID") or not nodelist:
        return []
    names = expand_nodelist(nodelist)
    tasks = environment.get("SLURM_TASKS_PER_NODE", "")
    slots: list = []
    for word in filter(None, tasks.split(",")):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", word)
        if found is None:
            raise LaunchError(f"SLURM_TASKS_PER_NODE={tasks!r} is not understood; give -H")
        slots += [int(found[1])] * int(found[2] or 1)
    if slots and len(slots) != len(names):
        raise LaunchError(
            f"SLURM_TASKS_PER_NODE={tasks!r} is for {len(slots)} hosts, and "
            f"SLURM_JOB_NODELIST={nodelist!r} names {len(names)}; give -H"
        )
    return [Host(*pair) for pair in zip(names, slots or [None] * len(names), strict=True)]


def sagemaker_hosts(environment: Mapping[str, str], ranks: int | None = None) -> list:
    """The hosts of a SageMaker training job, with GPUs as slots; empty outside of a container.

    A given number of ranks is shared evenly, so that no host is idle.

    Raises:
      LaunchError: the variables are not understood, or another host of the job has to launch.
    """
    text = environment.get("SM_HOSTS", "")
    if not text:
        return []
    try:
        names = json.loads(text)
        slots = max(1, int(environment.get("SM_NUM_GPUS") or 0))
    except ValueError:
        names = None
    if not names or not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise LaunchError(
            f"SM_HOSTS={text!r}, SM_NUM_GPUS={environment.get('SM_NUM_GPUS')!r} are not "
            'understood; they are as ["algo-1", "algo-2"] and 8'
        )
    current = environment.get("SM_CURRENT_HOST") or names[0]
    if current != names[0]:
        raise LaunchError(
            f"this host is {current}, and the job is launched on {names[0]}; here only sshd has to "
            "run, until the job has ended"
        )
    return [Host(name, slots if ranks is None else None) for name in names]
