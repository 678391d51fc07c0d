"""The report for people. Pure."""

from __future__ import annotations

from smddp_tf.doctor.findings import Finding

_NAMES = {
    "smddp_tf": "smddp_tf",
    "python": "Python",
    "tensorflow": "TensorFlow",
    "keras": "Keras",
    "torch": "PyTorch",
    "nccl": "NCCL",
    "cuda_driver": "CUDA driver for",
}


def _cores(numbers: list) -> str:
    """Core numbers as 0-3,8."""
    parts: list = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts)


def _speed(found: dict) -> str:
    return f"{found['latency_us']:g} us, {found['gigabytes_per_second']:g} GB/s"


def _rank_line(number: int, rank: dict) -> str:
    nets = [
        f"{one['name']} {one['address']}"
        for one in rank["interfaces"]
        if one["address"] and one["name"] != "lo"
    ]
    return (
        f"  rank {number} on {rank['host']}, node {rank['node']}: "
        f"cores {_cores(rank['usable_cores'])} of {rank['cores']}, "
        f"/dev/shm {rank['shm_free_bytes'] >> 20} MiB free, {', '.join(nets) or 'loopback only'}"
    )


def finding_lines(finding: Finding) -> list:
    """A finding, and its remedy in a line of its own."""
    remedy = [f"  -> {finding.remedy}"] if finding.remedy else []
    return [f"{finding.level.upper()}: {finding.what}", *remedy]


def lines(report: dict) -> list:
    """The lines of a report: versions, ranks, how they reach each other, findings."""
    given = report["versions"]
    versions = [f"{_NAMES[name]} {text}" for name, text in given.items() if text]
    other: tuple = ()  # who has one framework does not need the other
    if given.get("tensorflow"):
        other = ("torch",)
    elif given.get("torch"):
        other = ("tensorflow", "keras")
    lacks = [name for name, text in given.items() if not text and name not in other]
    missing = [_NAMES[name].removesuffix(" for") for name in lacks]
    shown = [", ".join(versions) + (f"; no {', no '.join(missing)}" if missing else "")]
    shown.append(f"MPI: {report['mpi'] or 'none'}")
    job = report.get("job")
    if job:
        shown.append(f"a job of {job['size']} rank{'s' if job['size'] > 1 else ''}:")
        shown += [_rank_line(number, rank) for number, rank in enumerate(job["ranks"])]
        for pair in job["pairs"]:
            why = f" ({pair['why_not_faster']})" if pair["why_not_faster"] else ""
            pair_ = " and ".join(map(str, pair["ranks"]))
            shown.append(f"  ranks {pair_}: {pair['transport']}{why}; {_speed(pair)}")
        if job["allreduce"]:
            shown.append(f"  allreduce of all ranks: {_speed(job['allreduce'])}")
        skew = max(job["clock_offsets_ms"]) - min(job["clock_offsets_ms"])
        shown.append(f"  clocks differ by {skew:.3f} ms (to {job['clock_exact_ms']:g} ms)")
    for finding in report["findings"]:
        shown += finding_lines(Finding(**finding))
    shown.append("a job would fail" if not report["ok"] else "a job can run")
    return shown
