"""What the doctor finds, and what to do about it. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

ERROR, WARNING, NOTE = "error", "warning", "note"
_ORDER = (ERROR, WARNING, NOTE)


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something about this setup.

    Attributes:
      level: "error": a job would fail; "warning": it would run worse than it could; "note".
      what: what is so, in a sentence.
      remedy: what to do; "" if there is nothing.
    """

    level: str
    what: str
    remedy: str = ""


def _ranks(numbers: list) -> str:
    """Ranks as text: "rank 3", "ranks 0 to 7", "ranks 1, 4"."""
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 2:
        return f"ranks {numbers[0]} to {numbers[-1]}"
    return f"ranks {', '.join(map(str, numbers))}"


def merged(by_rank: Iterable) -> list:
    """One list of the findings of (rank, findings) pairs, worst first; equal ones are one.

    With more than one rank, each says which ranks have it.
    """
    found: dict = {}
    by_rank = list(by_rank)
    for rank, findings in by_rank:
        for finding in dict.fromkeys(findings):  # alone, a small job's are there too
            found.setdefault(finding, []).append(rank)
    result = [
        finding
        if len(ranks) == len(by_rank)
        else dataclasses.replace(finding, what=f"{_ranks(ranks)}: {finding.what}")
        for finding, ranks in found.items()
    ]
    return sorted(result, key=lambda finding: _ORDER.index(finding.level))


def failing(findings: Iterable[Finding]) -> bool:
    """Whether a job would fail."""
    return any(finding.level == ERROR for finding in findings)
