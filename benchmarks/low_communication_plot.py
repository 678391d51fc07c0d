"""Draws loss against bytes and against time from the rows of low_communication.py."""

import json

TITLES = {"gradients": "averaged gradients", "local": "local steps", "averaging": "local, SGD(1)"}


def plot(args):
    """One training of each kind on the slowest link of the file, in two diagrams."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    with open(args.rows) as file:
        rows = [json.loads(line) for line in file]
    rows = [row for row in rows if row["way"] in TITLES and row["link"] == args.rates[0]]
    figure, (by_bytes, by_time) = pyplot.subplots(1, 2, figsize=(9, 3.5), sharey=True)
    for row in rows:
        _, count, seconds, loss = zip(*row["curve"], strict=True)
        label = f"{TITLES[row['way']]}, {row['ranks']} hosts"
        by_bytes.plot([one / 1e6 for one in count], loss, marker="o", label=label)
        by_time.plot(seconds, loss, marker="o", label=label)
    by_bytes.set(xlabel="MB sent by a host", ylabel="loss of test rows", xscale="log")
    by_time.set(xlabel="seconds of steps")
    by_time.legend(fontsize=8)
    figure.suptitle(f"{rows[0]['task']}, links of {args.rates[0]}/s")
    figure.tight_layout()
    figure.savefig(args.picture, dpi=110)
    print(f"{args.picture}: {len(rows)} trainings")
