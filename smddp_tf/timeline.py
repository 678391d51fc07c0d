"""Joins the ranks' traces: ``python -m smddp_tf.timeline trace.rank*.json``.

Says who waited for whom, and writes one trace on one clock and a plot of a step. Needs no
TensorFlow; the plot needs matplotlib.
"""

import argparse
import json
import pathlib
import re
import statistics
import sys


def read(path) -> list:
    """The events of a file, which may end anywhere: a rank that was killed leaves no end."""
    text = pathlib.Path(path).read_text().rstrip().removesuffix("]").rstrip()
    while text:
        try:
            return json.loads(text.rstrip(",") + "]")
        except json.JSONDecodeError:
            text = text[: text.rfind("\n")] if "\n" in text else ""
    raise ValueError(f"{path} holds no trace")


def collectives(events: list) -> dict:
    """(track, sequence) -> the event of each collective."""
    return {
        (event["tid"], event["args"]["sequence"]): event
        for event in events
        if event.get("cat") == "collective"
    }


def clock_offsets(by_rank: dict) -> dict:
    """Microseconds to add to each rank's times: all ranks end a collective at nearly one time."""
    first = min(by_rank)
    offsets = {}
    for rank, own in by_rank.items():
        shared = by_rank[first].keys() & own.keys()
        ends = [_end(by_rank[first][key]) - _end(own[key]) for key in shared]
        offsets[rank] = statistics.median(ends) if ends else 0.0
    return offsets


def _end(event) -> float:
    return event["ts"] + event["dur"]


def waits(by_rank: dict, offsets: dict) -> list:
    """(microseconds waited by all others, the rank waited for, title, sequence), longest first.

    The last rank to be ready for a collective is the one that the others waited for.
    """
    found = []
    for key in set().union(*by_rank.values()):
        # Only some ranks have the collectives of a process set.
        ready = {
            rank: own[key]["args"]["ready"] + offsets[rank]
            for rank, own in by_rank.items()
            if key in own
        }
        # Who queued behind its own earlier collectives was not waited for before its turn.
        ready = {r: max(t, by_rank[r][key]["ts"] + offsets[r]) for r, t in ready.items()}
        last = max(ready, key=ready.get)
        total = sum(ready[last] - time for time in ready.values())
        found.append((total, last, by_rank[last][key]["name"], key[1]))
    return sorted(found, reverse=True)


def report(by_rank: dict, offsets: dict) -> list:
    """The lines that are printed."""
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


def merged(events_by_rank: dict, offsets: dict) -> list:
    """All events, on the first rank's clock."""
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


def plot(by_rank: dict, offsets: dict, step, path) -> None:
    """Draws the gradient buckets of a step: ready, waiting for peers, moving bytes.

    Raises:
      ValueError: there is no such step.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    buckets = {}
    for rank, own in by_rank.items():
        for event in own.values():
            match = re.search(r"bucket (\d+) of .*\(step (\d+)\)", event["name"])
            if match:
                buckets.setdefault(int(match[2]), []).append((rank, int(match[1]), event))
    if not buckets:
        raise ValueError("the traces hold no gradient bucket")
    step = sorted(buckets)[len(buckets) // 2] if step is None else step
    if step not in buckets:
        raise ValueError(f"there is no step {step}; there are {min(buckets)} to {max(buckets)}")
    rows = sorted(buckets[step], key=lambda row: row[:2])
    start = min(event["args"]["ready"] + offsets[rank] for rank, _, event in rows)
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.35 * len(rows)))
    for y, (rank, _, event) in enumerate(rows):
        ready = event["args"]["ready"] + offsets[rank] - start
        began = event["ts"] + offsets[rank] - start
        axes.barh(y, began - ready, left=ready, color="tab:orange", label="queued")
        axes.barh(y, event["dur"], left=began, color="tab:blue", label="reduced")
    for rank in sorted(by_rank):
        last = max(e["args"]["ready"] + offsets[rank] - start for r, _, e in rows if r == rank)
        axes.axvline(last, color=f"C{2 + rank}", linestyle=":", label=f"rank {rank} has computed")
    axes.set_yticks(range(len(rows)), [f"rank {rank}, bucket {b}" for rank, b, _ in rows])
    axes.set_xlabel(f"microseconds from the first gradient of step {step}")
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes.legend(unique.values(), unique.keys(), loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> int:
    """The command."""
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
