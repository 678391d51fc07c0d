"""Analyzes the ranks' traces: ``python -m smddp_tf.timeline trace.rank*.json``.

Prints who waited for whom; can also write a merged trace on a common clock, and plot a step. Does
not need TensorFlow; plots need matplotlib.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import sys
from typing import Any


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads the events of a file, which may be truncated anywhere if the rank was killed."""
    text = pathlib.Path(path).read_text().rstrip().removesuffix("]").rstrip()
    while text:
        try:
            return json.loads(text.rstrip(",") + "]")
        except json.JSONDecodeError:
            text = text[: text.rfind("\n")] if "\n" in text else ""
    raise ValueError(f"{path} holds no trace")


def collectives(events: list[dict[str, Any]]) -> dict[Any, Any]:
    """Maps (track, sequence) to each collective's event, with its time waiting for peers added."""
    waited = {
        (event["tid"], event["ts"]): event["dur"]
        for event in events
        if event.get("name") == "waiting for peers"
    }
    return {
        (event["tid"], event["args"]["sequence"]): {
            **event,
            "waited": waited.get((event["tid"], event["ts"]), 0.0),
        }
        for event in events
        if event.get("cat") == "collective"
    }


def clock_offsets(by_rank: dict[int, Any]) -> dict[int, float]:
    """Microseconds to add to each rank's times to put them on the first rank's clock.

    Estimated from the ends of collectives, which are nearly simultaneous on all ranks.
    """
    first = min(by_rank)
    offsets = {}
    for rank, own in by_rank.items():
        shared = by_rank[first].keys() & own.keys()
        ends = [_end(by_rank[first][key]) - _end(own[key]) for key in shared]
        offsets[rank] = statistics.median(ends) if ends else 0.0
    return offsets


def _end(event: dict[str, Any]) -> float:
    return event["ts"] + event["dur"]


def waits(by_rank: dict[int, Any], offsets: dict[int, float]) -> list[Any]:
    """Finds who was waited for in each collective: the last rank to be ready for it.

    Returns (microseconds waited by all others, rank waited for, title, sequence), longest first.
    """
    found = []
    for key in set().union(*by_rank.values()):
        # A process set's collectives appear in its ranks' traces only.
        ready = {
            rank: own[key]["args"]["ready"] + offsets[rank]
            for rank, own in by_rank.items()
            if key in own
        }
        # A rank's collectives queue behind its earlier ones, so it counts as ready once it begins.
        ready = {r: max(t, by_rank[r][key]["ts"] + offsets[r]) for r, t in ready.items()}

        last = max(ready, key=lambda rank: ready[rank])
        total = sum(ready[last] - time for time in ready.values())
        found.append((total, last, by_rank[last][key]["name"], key[1]))
    return sorted(found, reverse=True)


def report(by_rank: dict[int, Any], offsets: dict[int, float]) -> list[str]:
    """The lines of the printed report."""
    found = waits(by_rank, offsets)
    lines = [f"{len(found)} collectives of {len(by_rank)} ranks", "", "waited for:"]
    for rank in sorted(by_rank):
        own = [total for total, last, _, _ in found if last == rank]
        lines.append(
            f"  rank {rank}: last in {len(own)} collectives, the others waited "
            f"{sum(own) / 1e3:.3f} ms for it in all; its clock was {abs(offsets[rank]):.0f} us "
            f"{'behind' if offsets[rank] > 0 else 'ahead'}"
        )

    lines += ["", "longest waits:"]
    for total, last, title, sequence in found[:10]:
        lines.append(f"  {total / 1e3:.3f} ms for rank {last} in {title} (#{sequence})")
    return lines


def merged(events_by_rank: dict[int, Any], offsets: dict[int, float]) -> list[Any]:
    """The events of all ranks, on the first rank's clock."""
    joined = []
    for rank, events in events_by_rank.items():
        for event in events:
            if "ts" in event:
                event = {**event, "ts": event["ts"] + offsets[rank]}
            if "ready" in event.get("args", {}):
                ready = event["args"]["ready"] + offsets[rank]
                event = {**event, "args": {**event["args"], "ready": ready}}
            joined.append(event)
    return joined


def steps(by_rank: dict[int, Any], offsets: dict[int, float]) -> dict[Any, Any]:
    """The gradient buckets of each step on all ranks: step -> rows sorted by rank and bucket.

    A row is a dict of rank, bucket and times in microseconds on the first rank's clock: "ready"
    (its gradients exist), "began", "met" (all ranks have arrived) and "done".
    """
    found: dict[Any, Any] = {}
    for rank, own in by_rank.items():
        for event in own.values():
            match = re.search(r"bucket (\d+) of .*\(step (\d+)\)", event["name"])
            if not match:
                continue
            began = event["ts"] + offsets[rank]
            times = {
                "ready": event["args"]["ready"] + offsets[rank],
                "began": began,
                "met": began + event["waited"],
                "done": began + event["dur"],
            }
            found.setdefault(int(match[2]), []).append(
                {"rank": rank, "bucket": int(match[1]), **times}
            )
    return {
        step: sorted(rows, key=lambda row: (row["rank"], row["bucket"]))
        for step, rows in sorted(found.items())
    }


def hidden_share(rows: list[dict[str, Any]]) -> float:
    """The fraction of a step's reduction time that overlapped the backward pass, from 0 to 1.

    Args:
      rows: a step's rows from steps(). A rank's buckets run one after another.
    """
    computed: dict[Any, Any] = {}  # rank -> when its last gradient was computed
    for row in rows:
        computed[row["rank"]] = max(row["ready"], computed.get(row["rank"], row["ready"]))
    total = sum(row["done"] - row["began"] for row in rows)
    hidden = sum(max(0.0, min(row["done"], computed[row["rank"]]) - row["began"]) for row in rows)
    return hidden / total if total else 1.0


# From the colour-blind safe palette of Okabe and Ito.
_COLOURS = {
    "backward pass, from the first gradient": "#009e73",
    "ready, behind an earlier bucket": "#c8c8c8",
    "waiting for peers": "#e69f00",
    "moving bytes": "#0072b2",
}


def _bars(rows: list[dict[str, Any]]) -> list[Any]:
    """The bars from top to bottom, as (label, [(colour, begin, end)])."""
    backward, queued, waiting, moving = _COLOURS.values()
    bars: list[Any] = []
    for rank in sorted({row["rank"] for row in rows}):
        own = [row for row in rows if row["rank"] == rank]
        ready = [row["ready"] for row in own]
        bars.append((f"rank {rank}", [(backward, min(ready), max(ready))]))
        for row in own:
            spans = [
                (queued, row["ready"], row["began"]),
                (waiting, row["began"], row["met"]),
                (moving, row["met"], row["done"]),
            ]
            bars.append((f"bucket {row['bucket']}", spans))
    return bars


def plot(
    by_rank: dict[int, Any],
    offsets: dict[int, float],
    step: int | None,
    path: str | os.PathLike[str],
) -> None:
    """Plots a step: each rank's backward pass, and the phases of its gradient buckets.

    Args:
      by_rank: rank -> result of collectives().
      offsets: result of clock_offsets().
      step: the step's number; None: the middle one.
      path: the image file to write.

    Raises:
      ValueError: the traces do not contain the step, or no gradient buckets at all.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import patches, pyplot

    found = steps(by_rank, offsets)
    if not found:
        raise ValueError("the traces hold no gradient bucket")
    step = list(found)[len(found) // 2] if step is None else step
    if step not in found:
        raise ValueError(f"there is no step {step}; there are {min(found)} to {max(found)}")

    rows = found[step]
    start = min(row["ready"] for row in rows)
    total = max(row["done"] for row in rows) - start

    bars = _bars(rows)
    figure, axes = pyplot.subplots(figsize=(9, 1.8 + 0.32 * len(bars)), layout="constrained")
    for y, (_, spans) in enumerate(bars):
        for colour, begin, end in spans:
            axes.barh(y, (end - begin) / 1e3, left=(begin - start) / 1e3, color=colour)

    axes.set_yticks(range(len(bars)), [label for label, _ in bars])
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.set_xlabel("milliseconds from the first gradient")
    axes.set_title(
        f"step {step}: {total / 1e3:.2f} ms from the first gradient to the last result, "
        f"{hidden_share(rows):.0%} of the reductions hidden"
    )

    handles = [patches.Patch(color=colour, label=text) for text, colour in _COLOURS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m smddp_tf.timeline", description="Joins the traces of all ranks."
    )
    parser.add_argument("files", nargs="+", help="trace.rank0.json trace.rank1.json ...")
    parser.add_argument("-o", "--output", help="write one trace of all ranks here")
    parser.add_argument("--plot", help="draw the buckets of a step here (.png)")
    parser.add_argument("--step", type=int, help="which; default: one in the middle")
    args = parser.parse_args()

    events_by_rank = {}
    try:
        for path in args.files:
            events = read(path)
            events_by_rank[events[0]["pid"]] = events
        by_rank = {rank: collectives(events) for rank, events in events_by_rank.items()}
        offsets = clock_offsets(by_rank)
        print("\n".join(report(by_rank, offsets)))
        if args.output:
            pathlib.Path(args.output).write_text(json.dumps(merged(events_by_rank, offsets)))
        if args.plot:
            plot(by_rank, offsets, args.step, args.plot)
    except (OSError, ValueError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
