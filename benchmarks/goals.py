"""The goals of the comparison, and the arithmetic from rows to the table. Pure: no I/O."""

from dataclasses import dataclass

from measure import at_distance, format_bytes, format_seconds, median

DEFAULT_CYCLE = "Horovod"
SHORT_CYCLE = "Horovod, cycle 0.1 ms"
OPEN_MPI = "Open MPI"
MPICH = "MPICH"
INTEL_MPI = "Intel MPI"
MEMORY = "memory"
STRATEGY = "MultiWorkerMirroredStrategy"
OURS = "smddp_tf"
RAW = "smddp_tf core"
HOROVOD = (DEFAULT_CYCLE, SHORT_CYCLE)
MPIS = (OPEN_MPI, MPICH, INTEL_MPI)


@dataclass(frozen=True)
class Goal:
    """One line of the table.

    The ratio is the peer's time over ours. With `limit` the peer is what nothing can beat: the
    ratio is ours over it, and small is good.
    """

    label: str
    case: str
    peers: tuple[str, ...]
    least: float | None = None  # None: shown for information, with no goal
    aim: float | None = None
    ours: str = OURS
    floor: str = ""  # this case's time, of the same library and round, is taken off first
    peer_case: str = ""
    limit: bool = False

    def is_met(self, ratio):
        """Say whether a ratio reaches the goal."""
        return ratio <= self.least if self.limit else ratio >= self.least


def _allreduce_goals():
    goals = []
    for size in (1 << 10, 1 << 16):
        for peer, least, aim in ((DEFAULT_CYCLE, 25, 50), (SHORT_CYCLE, 10, 20)):
            for mode, name in (("chain", "chain of 8"), ("long", "chain of 64")):
                label = f"{format_bytes(size)}, {name}, against {peer}"
                goals.append(Goal(label, f"allreduce.{mode}.{size}", (peer,), least, aim))
    for size, least, aim in ((1 << 20, 3.5, 5), (1 << 24, 2, 3.5), (1 << 27, 2.5, 4)):
        label = f"{format_bytes(size)}, chain"
        goals.append(Goal(label, f"allreduce.chain.{size}", HOROVOD, least, aim))
    for size in (1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 27):
        goals.append(Goal(f"{format_bytes(size)}, one call", f"allreduce.call.{size}", HOROVOD))
    return goals


def _gradient_goals():
    goals = []
    kinds = (("temp", "temporaries"), ("var", "variable reads"))
    for name, label, aim in (("resnet50", "ResNet-50", 4.5), ("bert", "BERT-base", 5)):
        for kind, words in kinds:
            case = f"grads.{name}.tape.{kind}"
            goals.append(Goal(f"{label} gradients, {words}", case, HOROVOD, 3, aim))
    floor = "grads.small500.floor.temp"
    label = "500 small tensors, above the floor"
    goals.append(Goal(label, "grads.small500.tape.temp", HOROVOD, 4, 10, floor=floor))
    return goals


def _training_goals():
    steps = (("mlp", "MLP 20M", 1.8, 2.3), ("cnn", "CNN", 1.5, 2), ("deep", "deep", None, None))
    return [
        Goal(f"training step, {label}", f"train.{name}", HOROVOD, least, aim)
        for name, label, least, aim in steps
    ]


def _fit_goals():
    models = (("mlp", "MLP 20M", 1.5), ("cnn", "CNN", 1.3), ("deep", "400 variables", None))
    goals = [
        Goal(f"fit(), {label}", f"fit.{name}", HOROVOD, least) for name, label, least in models
    ]
    for name, label, _ in models:
        goals.append(Goal(f"fit(), {label}, against the strategy", f"fit.{name}", (STRATEGY,)))
    return goals


def _raw_goals():
    goals = []
    large = [(size, 5) for size in (102228128, 1 << 27, 437928960)]
    for size, least in [(1 << 16, 1.1), (1 << 20, 1.1), (1 << 24, 3), *large]:
        label = f"raw core, in place, {format_bytes(size)}"
        goals.append(Goal(label, f"raw.in.{size}", MPIS, least, ours=RAW))
    for size, _ in large:
        label = f"raw core / memory limit, {format_bytes(size)}"
        for kernel, least, aim in (("stream", 1.5, 1.15), ("update", None, None)):
            goals.append(
                Goal(
                    label if least else f"{label}, as in-place update",
                    f"raw.in.{size}",
                    (MEMORY,),
                    least,
                    aim,
                    ours=RAW,
                    peer_case=f"memory.{kernel}.{size}",
                    limit=True,
                )
            )
    return goals


GOALS = [
    *_allreduce_goals(),
    *_gradient_goals(),
    *_training_goals(),
    *_fit_goals(),
    *_raw_goals(),
]


def with_stream_rows(rows):
    """Add the case memory.stream.SIZE: the faster of STREAM's copy and add, of the same round."""
    added = {}
    for row in rows:
        if row["bench"] == "memory" and row["mode"] in ("copy", "add"):
            key = (row["round"], row["bytes"])
            if key not in added or row["med"] < added[key]["med"]:
                added[key] = {**row, "mode": "stream", "case": f"memory.stream.{row['bytes']}"}
    return [*rows, *added.values()]


class Figures:
    """Medians by (contestant, case, round), of one distance between the cores."""

    def __init__(self, rows, distance=""):
        """Index the rows; each has contestant, case, round, med, others_cores.

        Rows measured at other distances alone are left out; "" takes all as they are.
        """
        rows = [row for row in (at_distance(row, distance) for row in rows) if row]
        self.distance = distance
        self._rows = {(r["contestant"], r["case"], r["round"]): r for r in with_stream_rows(rows)}
        self.rounds = sorted({row["round"] for row in rows})

    def time(self, contestant, case, floor, number):
        """Return the seconds of one round, above the floor if one is named; None: not measured."""
        row = self._rows.get((contestant, case, number))
        if row is None:
            return None
        if not floor:
            return row["med"]
        below = self._rows.get((contestant, floor, number))
        return row["med"] - below["med"] if below else None

    def median_time(self, contestant, case, floor):
        """Return the median over rounds, or None."""
        times = [self.time(contestant, case, floor, number) for number in self.rounds]
        times = [seconds for seconds in times if seconds is not None]
        return median(times) if times else None

    def others_cores(self, contestants, cases):
        """Return the most cores that other processes used in any round of those cases."""
        cores = [
            row["others_cores"]
            for (contestant, measured, _), row in self._rows.items()
            if contestant in contestants and measured in cases
        ]
        return max(cores, default=0.0)


def evaluate(goal, figures):
    """Return one line of the table as a dictionary, or None where a side was not measured."""
    peer_case = goal.peer_case or goal.case
    candidates = {who: figures.median_time(who, peer_case, goal.floor) for who in goal.peers}
    candidates = {who: seconds for who, seconds in candidates.items() if seconds is not None}
    ours = figures.median_time(goal.ours, goal.case, goal.floor)
    if not candidates or ours is None:
        return None
    best = min(candidates, key=candidates.get)
    ratios = []
    for number in figures.rounds:
        mine = figures.time(goal.ours, goal.case, goal.floor, number)
        theirs = figures.time(best, peer_case, goal.floor, number)
        if mine is not None and theirs is not None:
            over, under = (mine, theirs) if goal.limit else (theirs, mine)
            # Nothing left above the floor is better than any ratio.
            ratios.append(over / under if under > 0 else float("inf"))
    if not ratios:
        return None
    ratio = median(ratios)
    return {
        "label": goal.label,
        "distance": figures.distance,
        "limit": goal.limit,
        "ours_s": ours,
        "peer": best,
        "peer_s": candidates[best],
        "ratio": ratio,
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "least": goal.least,
        "aim": goal.aim,
        "met": None if goal.least is None else goal.is_met(ratio),
        "rounds": len(ratios),
        "others_cores": figures.others_cores((goal.ours, best), (goal.case, peer_case)),
    }


def table_lines(lines):
    """Return the table in Markdown."""
    text = [
        "| case | cores | ours | best peer | ratio (min-max) | goal (aim) | met | others' load |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        goal, met = "-", "-"
        if line["least"] is not None:
            sign = "at most" if line["limit"] else "at least"
            goal = f"{sign} {line['least']}x" + (f" ({line['aim']}x)" if line["aim"] else "")
            met = "yes" if line["met"] else "**no**"
        peer = f"{format_seconds(line['peer_s'])} {line['peer']}"
        ratio = f"{line['ratio']:.2f}x ({line['ratio_min']:.2f}-{line['ratio_max']:.2f})"
        where = line["distance"] or "-"
        cells = [line["label"], where, format_seconds(line["ours_s"]), peer, ratio, goal, met]
        text.append("| " + " | ".join([*cells, f"{line['others_cores']:.2f}"]) + " |")
    return text
