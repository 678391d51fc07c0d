"""Allreduce by size: bandwidth and time. A colour is a contestant, a kind of line is a mode."""

from measure import format_bytes

# Okabe and Ito's palette, which the colour-blind tell apart as well.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
MODES = {
    "in": ("in place", "-", "o"),
    "out": ("out of place", "--", "s"),
    "call": ("TensorFlow, one call", "-", "^"),
    "chain": ("TensorFlow, chain of 8", "-.", "D"),
    "long": ("TensorFlow, chain of 64", ":", "v"),
}


def series_of(rows):
    """Return {(contestant, ranks, mode): [(bytes, seconds)]} of the allreduce rows."""
    series = {}
    for row in rows:
        if row["bench"] not in ("raw", "allreduce") or row["mode"] == "empty":
            continue
        key = row.get("contestant", row["lib"]), row["np"], row["mode"]
        series.setdefault(key, {}).setdefault(row["bytes"], []).append(row["med"])
    # Several rounds of one case: the fastest median, so that a disturbed round bends no curve.
    return {
        key: sorted((size, min(times)) for size, times in points.items())
        for key, points in series.items()
    }


def _draw(series, bandwidth, latency):
    contestants = sorted({(name, ranks) for name, ranks, _ in series})
    for (name, ranks, mode), points in sorted(series.items()):
        colour = COLOURS[contestants.index((name, ranks)) % len(COLOURS)]
        title, line, marker = MODES.get(mode, (mode, "-", "."))
        look = {"color": colour, "linestyle": line, "marker": marker, "markersize": 4}
        sizes = [size for size, _ in points]
        label = f"{name}, {ranks} ranks, {title}"
        bandwidth.plot(sizes, [size / s / 1e9 for size, s in points], label=label, **look)
        latency.plot(sizes, [1e6 * seconds for _, seconds in points], **look)


def plot(rows, path):
    """Write the PNG; return the reason where it could not be written, else an empty string."""
    try:
        import matplotlib as mpl
    except ImportError:
        return "no plot: pip install matplotlib"
    mpl.use("Agg")
    from matplotlib import pyplot

    series = series_of(rows)
    if not series:
        return "no plot: no allreduce was measured"
    figure, panels = pyplot.subplots(1, 2, figsize=(12, 6), layout="constrained")
    _draw(series, *panels)
    every = sorted({size for points in series.values() for size, _ in points})
    ticks = [size for size in every if size & (size - 1) == 0][::2]
    titles = ("Bandwidth: bytes / time (higher is better)", "Time of a call (lower is better)")
    for axes, title, label in zip(panels, titles, ("GB/s", "microseconds"), strict=True):
        axes.set_title(title, fontsize=11)
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [format_bytes(size) for size in ticks], rotation=45)
        axes.set_xlabel("size of the tensor")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylim(bottom=0)
    panels[1].set_yscale("log")
    figure.suptitle("Allreduce of float32, medians by size", fontsize=13)
    figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return ""
