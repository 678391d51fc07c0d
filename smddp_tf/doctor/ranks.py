"""The doctor's part under mpirun: ranks connect, tell each other what they see, and measure."""

from __future__ import annotations

import ctypes
import secrets
import threading
import traceback

from smddp_tf._src.job import basics, job
from smddp_tf.doctor import links, machine, measure, mpi_tmpdir
from smddp_tf.doctor.findings import ERROR, WARNING, Finding, merged

_SKEW_MS = 1000.0  # from where on timestamps of files and logs mislead


def connect(limit: int) -> list:
    """Calls init() with a limit in seconds. Returns findings; empty: the ranks are connected."""
    problem: list = []

    def attempt():
        try:
            job.init()
        except Exception as error:
            problem.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(limit)
    if thread.is_alive():
        what = f"the ranks were not connected within {limit} s: some rank does not answer"
        remedy = (
            "between hosts let all TCP ports through, in and out (a security group needs itself as "
            "source and destination), or name the interface with smddprun --nic; else see which "
            "rank does not reach the doctor"
        )
        return [Finding(ERROR, what, remedy)]
    if problem:
        text = "".join(traceback.format_exception_only(problem[0])).strip()
        return [Finding(ERROR, f"init() failed: {text}", "docs/troubleshooting.md has the message")]
    return []


def _clock_findings(offsets: list) -> list:
    skew = max(offsets) - min(offsets)
    if skew < _SKEW_MS:
        return []
    what = f"the hosts' clocks differ by {skew / 1e3:.1f} s"
    return [Finding(WARNING, what, "run chrony or ntpd on all hosts; training itself is not hurt")]


def _pairs(ranks: list, quick: bool) -> list:
    """How pairs reach each other, and how fast; collective."""
    pairs = []
    for pair in links.pairs_to_measure([rank["node"] for rank in ranks]):
        speeds = measure.gather(measure.speed_of_pair(pair, quick))
        way, why, remedy = links.transport(ranks[pair[0]], ranks[pair[1]])
        entry = {"ranks": list(pair), "transport": way, "why_not_faster": why, "remedy": remedy}
        pairs.append({**entry, **speeds[pair[0]]})
    return pairs


def examine(own: dict, findings: list, quick: bool) -> dict:
    """The report of a connected job; the same on all ranks. Collective.

    Args:
      own: this rank's machine.facts().
      findings: what it has found so far.
      quick: shorter measurements.
    """
    word = ctypes.c_uint64(secrets.randbits(64))
    words = measure.gather([own["pid"], ctypes.addressof(word), word.value])
    nodes = measure.gather(basics.cross_rank())
    local = [rank for rank, node in enumerate(nodes) if node == basics.cross_rank()]
    own = {
        **own,
        "node": basics.cross_rank(),
        "local_rank": basics.local_rank(),
        "mpi": basics.stats()["mpi"],
        "reads_peers": measure.why_no_peer_reads(words, local),
        "session_seen": mpi_tmpdir.seen(own["session_folder"], measure.gather),
    }
    findings = findings + machine.check(own, basics.local_size())
    ranks = measure.gather(own)
    firsts = [rank for rank in ranks if rank["local_rank"] == 0]
    # Containers of one machine may be in networks of their own.
    networks = list({(rank["boot"], rank["network_namespace"]): rank for rank in firsts}.values())
    offsets, exact = measure.clock_offsets()
    everybody = links.check_transports(ranks) + links.check_networks(networks)
    everybody += mpi_tmpdir.check(ranks) + _clock_findings(offsets)
    pairs = _pairs(ranks, quick)
    together = measure.speed(quick=quick) if basics.size() > 1 else {}
    # Of a word's address on this rank, until all have read it.
    found = measure.gather([vars(finding) for finding in findings])
    by_rank = [(rank, [Finding(**one) for one in each]) for rank, each in enumerate(found)]
    everything = merged([*by_rank]) + everybody
    return {
        "size": basics.size(),
        "ranks": ranks,
        "pairs": pairs,
        "allreduce": together,
        "clock_offsets_ms": offsets,
        "clock_exact_ms": exact,
        "findings": [vars(finding) for finding in everything],
    }
