"""Two plots side by side: algorithm bandwidth, and latency, against size."""

from measure import format_bytes


def series_of(rows):
    """Return {name: [(bytes, seconds)]} of the allreduce rows, one series a library and mode."""
    series = {}
    for row in rows:
        if row["bench"] not in ("raw", "allreduce") or row["mode"] == "empty":
            continue
        how = {"in": "in place", "out": "out of place"}.get(row["mode"], f"TF {row['mode']}")
        name = f"{row.get('contestant', row['lib'])}, {how}, np={row['np']}"
        series.setdefault(name, {}).setdefault(row["bytes"], []).append(row["med"])
    # Several rounds of one case: the fastest median, so that a disturbed round bends no curve.
    return {
        name: sorted((size, min(times)) for size, times in points.items())
        for name, points in series.items()
    }


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
    figure, (bandwidth, latency) = pyplot.subplots(1, 2, figsize=(14, 6))
    for name, points in series.items():
        sizes = [size for size, _ in points]
        bandwidth.plot(sizes, [size / s / 1e9 for size, s in points], marker="o", label=name)
        latency.plot(sizes, [1e6 * seconds for _, seconds in points], marker="o", label=name)
    every = sorted({size for points in series.values() for size, _ in points})
    ticks = [size for size in every if size & (size - 1) == 0]
    for axes, label in ((bandwidth, "algBw, GB/s"), (latency, "time, us")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [format_bytes(size) for size in ticks], rotation=45)
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    latency.set_yscale("log")
    bandwidth.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return ""
