"""A storm over several hosts of namespaces: faults of hosts and of links, and most others.

Ranks import TensorFlow themselves, as a process to fork from would be on one host only.
"""

import pathlib
import sys
import time

from storm_faults import KINDS, after_loss, all_stepped, settle
from storm_job import VARIABLE, Job

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "hosts"))

from namespaces import Hosts, why_not  # noqa: E402

from smddp_tf.launch import reaper  # noqa: E402

__all__ = ["HOSTS", "HOST_KINDS", "OF_HOSTS", "Hosts", "HostsJob", "why_not"]

HOSTS = 3
BLINK_SECONDS = 5  # of a link; it counts as cut after 10
# A rank cannot end one of another host. It is the only kind for which it would.
NOT_BETWEEN_HOSTS = ("kill a newcomer at the door",)


class HostsJob(Job):
    """A job whose first rank and smddprun are on the first host.

    Args:
      hosts: that were made.
      others: as Job's.
    """

    limit_seconds = 150.0  # longer than smddprun waits before it tries a host again

    def __init__(self, hosts: Hosts, *others) -> None:
        self.hosts = hosts
        self._pids: dict = {}
        super().__init__(*others)

    def command(self, options: list, program: list) -> list:
        """By the first host's network."""
        return self.hosts.smddprun_command(options, program)

    def lines(self, ranks: int) -> str:
        """All hosts have as many, or the first ones one more."""
        counts = [ranks // HOSTS + (host < ranks % HOSTS) for host in range(HOSTS)]
        pairs = zip(self.hosts.addresses, counts, strict=True)
        return "".join(f"{address}:{count}\n" for address, count in pairs if count)

    def pid(self, slot: int) -> int:
        """Here, where that of the rank's own host means nothing; 0 if it was never seen here."""
        inner = str(self.events[slot][0]["pid"])
        if slot not in self._pids:
            marks = f"{VARIABLE}={self.token}", f"SMDDP_RENDEZVOUS_SLOT={slot}"
            for pid in reaper.processes_with(*marks):
                if _number_inside(pid) == inner:
                    self._pids[slot] = pid
        return self._pids.get(slot, 0)

    def look(self) -> None:
        """Also who is who, while they live."""
        super().look()
        for slot in self.events:
            self.pid(slot)

    def of_host(self, host: int) -> list:
        """The slots that have run there and still do."""
        name = self.hosts.names[host]
        here = [slot for slot in self.events if self.events[slot][0]["host"] == name]
        return [slot for slot in here if self.is_alive(slot)]

    def lost(self) -> set:
        """But for those that were to start on a host that was not there, and never did."""
        return {slot for slot in super().lost() if slot in self.events}


def _number_inside(pid: int) -> str:
    """The number of a process on its own host."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return ""  # it has ended
    return next(line for line in lines if line.startswith("NSpid:")).split()[-1]


# ---- the faults ---------------------------------------------------------------------------------


def _choose_host(job, chosen) -> int:
    """One with a member, but not that of smddprun, without which a job ends."""
    settle(job, HOSTS)
    members = set(job.members())
    return chosen.choice([host for host in range(1, HOSTS) if members & set(job.of_host(host))])


def _without_host(job, chosen, lose, back):
    """Loses a host, and has it back later."""
    host, ranks = _choose_host(job, chosen), job.members()
    job.victims.update(job.of_host(host))
    at = time.monotonic()
    lose(host)
    seconds = after_loss(job, at, ranks)
    time.sleep(chosen.uniform(0, 3))
    job.victims.update(job.of_host(host))  # one that had begun to start there
    back(host)
    return seconds


def lose_host(job, chosen):
    """All processes of a host end, and nobody closes their connections; another host comes."""
    return _without_host(job, chosen, job.hosts.lose, job.hosts.replace)


def cut_link(job, chosen):
    """The ranks behind it cannot know whether the others live."""
    return _without_host(job, chosen, job.hosts.cut, job.hosts.mend)


def cut_link_shortly(job, chosen):
    """What was sent is sent again."""
    host, ranks = _choose_host(job, chosen), job.members()
    job.hosts.cut(host)
    time.sleep(chosen.uniform(0.2, BLINK_SECONDS))
    job.hosts.mend(host)
    at = time.monotonic()
    return all_stepped(job, at, ranks) - at


OF_HOSTS = {
    "lose a host": (lose_host, "all its processes end at once; a host of its name comes later"),
    "cut a link": (cut_link, "of a host, for good; noticed after 10 s without an answer"),
    "cut a link shortly": (
        cut_link_shortly,
        f"for up to {BLINK_SECONDS} s; nobody is lost; from its end on",
    ),
}
HOST_KINDS = {k: v for k, v in KINDS.items() if k not in NOT_BETWEEN_HOSTS} | OF_HOSTS
