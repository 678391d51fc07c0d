"""Local steps against averaged gradients: loss after the same samples, bytes and times.

    python benchmarks/low_communication.py loss --ranks 2 --seeds 5
    python benchmarks/low_communication.py link --hosts 2 --rates 10mbit 100mbit
    python benchmarks/low_communication.py plot --picture docs/images/low-communication.png

`loss` trains each task with each seed, both ways, on ranks of this machine. `link` trains on hosts
of namespaces (tests/hosts/namespaces.py; needs root) whose links carry no more than the rate, and
reads bytes from their interfaces' counters; `plot` draws what it found. Rows are appended to the
file of --rows, as JSON.
"""

import argparse
import importlib.util
import json
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
TASKS = ("cnn", "transformer", "tabular")
CONTEXT = 32


def shipped(name, skip=0):
    """A table that scikit-learn ships. It is not imported, which would take seconds."""
    kept = sys.modules.pop("sklearn", None)
    (folder,) = importlib.util.find_spec("sklearn").submodule_search_locations
    sys.modules["sklearn"] = kept
    return np.loadtxt(pathlib.Path(folder, "datasets", "data", name), delimiter=",", skiprows=skip)


def digits_task():
    """Images of digits that scikit-learn ships, and a CNN of 38,000 weights."""
    table = shipped("digits.csv.gz")
    x, y = table[:, :-1].reshape(-1, 8, 8, 1) / 16.0, table[:, -1].astype("int64")
    layers = tf.keras.layers
    network = [
        layers.Conv2D(16, 3, activation="relu"),
        layers.Conv2D(32, 3, activation="relu"),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
        layers.Dense(10),
    ]
    return x.astype("float32"), y, tf.keras.Sequential(network), 16


def text_task():
    """The characters of Python's own help texts, and a transformer of two layers."""
    from pydoc_data import topics  # noqa: PLC0415

    text = "\n".join(text for _, text in sorted(topics.topics.items()))[:200_000]
    letters = sorted(set(text))
    codes = np.array([letters.index(letter) for letter in text])
    rows = len(codes) // (CONTEXT + 1)
    codes = codes[: rows * (CONTEXT + 1)].reshape(rows, CONTEXT + 1)
    layers = tf.keras.layers
    inputs = layers.Input((CONTEXT,), dtype="int32")
    x = layers.Embedding(len(letters), 48)(inputs)
    x = x + layers.Embedding(CONTEXT, 48)(tf.range(CONTEXT))
    for _ in range(2):
        normal = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 12)(normal, normal, use_causal_mask=True)
        hidden = layers.Dense(96, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(48)(hidden)
    outputs = layers.Dense(len(letters))(layers.LayerNormalization()(x))
    return codes[:, :-1], codes[:, 1:], tf.keras.Model(inputs, outputs), 16


def tabular_task():
    """Tumours' measures that scikit-learn ships, and a network of three layers."""
    table = shipped("breast_cancer.csv", skip=1)
    x, y = table[:, :-1], table[:, -1].astype("int64")
    x = (x - x.mean(0)) / x.std(0)
    layers = tf.keras.layers
    network = [layers.Dense(64, activation="relu"), layers.Dense(64, activation="relu")]
    return x.astype("float32"), y, tf.keras.Sequential([*network, layers.Dense(2)]), 8


def make(name, seed):
    """Returns (x, y, x_test, y_test, model, batch of a rank), the same on all ranks."""
    tf.keras.utils.set_random_seed(seed)
    kinds = {"cnn": digits_task, "transformer": text_task, "tabular": tabular_task}
    x, y, model, batch = kinds[name]()
    model.build((None, *x.shape[1:]))
    order = np.random.default_rng(0).permutation(len(x))  # the same test rows for all seeds
    test, rest = order[: len(x) // 5], order[len(x) // 5 :]
    return x[rest], y[rest], x[test], y[test], model, batch


def optimizer_of(way, args):
    """Adam, and how the ranks' work is joined: "averaging" has an outer SGD(1)."""
    decay = tf.keras.optimizers.schedules.CosineDecay(args.rate, args.steps)
    adam = tf.keras.optimizers.Adam(decay)
    if way == "alone":
        return adam
    if way == "gradients":
        return hvd.DistributedOptimizer(adam)
    return hvd.DistributedOptimizer(
        adam,
        sync_every=args.sync_every,
        outer_optimizer=tf.keras.optimizers.SGD(1.0) if way == "averaging" else None,
        fragments=args.fragments,
        fragment_sync_delay=args.fragment_sync_delay,
        should_quantize=args.should_quantize,
    )


def sent():
    """Bytes that this host's interface has sent; 0 where it has none of its own."""
    lines = pathlib.Path("/proc/net/dev").read_text().splitlines()
    found = [line.split() for line in lines if line.strip().startswith("eth0:")]
    return int(found[0][9]) if found else 0


class Training:
    """One training on this rank: batches of a shuffle that all ranks share."""

    def __init__(self, name, way, seed, args):
        self.name, self.way, self.seed, self.args = name, way, seed, args
        self.x, self.y, x_test, y_test, self.model, self.batch = make(name, seed)
        self.optimizer = optimizer_of(way, args)
        self.loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.rng = np.random.default_rng(seed)
        self.order = np.array([], int)
        self.test_rows = tf.constant(x_test), tf.constant(y_test)
        self.step = tf.function(self._step)
        self.evaluate = tf.function(lambda x, y: self.loss(y, self.model(x, training=False)))

    def _step(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss(y, self.model(x, training=True))
        variables = self.model.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

    def rows(self):
        """This rank's rows of the next batch."""
        count = self.batch * hvd.size()
        while len(self.order) < count:
            self.order = np.concatenate([self.order, self.rng.permutation(len(self.x))])
        rows, self.order = self.order[:count], self.order[count:]
        return rows[hvd.rank() :: hvd.size()]

    def run(self, steps, seconds=1e9):
        """Trains; returns the curve: (steps, bytes sent, seconds of steps, loss of test rows)."""
        rows = self.rows()  # traced and built outside of what is counted
        initial = [tf.identity(tf.convert_to_tensor(v)) for v in self.model.variables]
        self.step(tf.constant(self.x[rows]), tf.constant(self.y[rows]))
        if hasattr(self.optimizer, "synchronize"):
            self.optimizer.synchronize()
        for variable, value in zip(self.model.variables, initial, strict=True):
            variable.assign(value)
        hvd.barrier()
        curve, start, begun, self.times = [], sent(), time.perf_counter(), []
        for number in range(1, steps + 1):
            rows = self.rows()
            x, y = tf.constant(self.x[rows]), tf.constant(self.y[rows])
            if number % self.args.sync_every == 0:
                hvd.barrier()  # not timed: what a busy machine keeps one of its ranks from
            before = time.perf_counter()
            self.step(x, y)
            self.times.append(time.perf_counter() - before)
            if number % self.args.every == 0:
                count = sent() - start
                loss = float(self.evaluate(*self.test_rows))
                curve.append((number, count, sum(self.times), loss))
                late = time.perf_counter() - begun > seconds
                if self.way != "alone" and int(hvd.allreduce(int(late), op=hvd.Max)):
                    break
                start = sent() - count  # without what was sent in between
        return curve

    def medians(self):
        """Seconds of a step without an exchange, and of one with."""
        every = self.args.sync_every
        others = [t for i, t in enumerate(self.times) if (i + 1) % every]
        return float(np.median(others)), float(np.median(self.times[every - 1 :: every]))


def rank(args):
    """What every rank does: rank 0 writes a row for each training."""
    hvd.init()
    for seed in range(args.seeds):
        for name in args.tasks:
            for way in args.ways:
                training = Training(name, way, seed, args)
                curve = training.run(args.steps, args.seconds)
                row = {
                    "task": name,
                    "seed": seed,
                    "way": way,
                    "ranks": hvd.size(),
                    "link": args.link,
                    "sync_every": args.sync_every,
                    "fragments": args.fragments,
                    "delay": args.fragment_sync_delay,
                    "int8": args.should_quantize,
                    "weights": sum(int(np.prod(v.shape)) for v in training.model.weights),
                    "curve": curve,
                    "medians": training.medians(),
                }
                if hvd.rank() == 0:
                    print("ROW " + json.dumps(row), flush=True)


def keep(lines, path):
    """Appends the rows of a job's output to the file, and prints what they end with."""
    for line in lines:
        at = line.find("ROW {")
        if at < 0:
            continue
        row = json.loads(line[at + 4 :])
        with open(path, "a") as file:
            file.write(json.dumps(row) + "\n")
        steps, count, seconds, loss = row["curve"][-1]
        plain, exchange = (1e3 * one for one in row["medians"])
        print(
            f"{row['task']:12} seed {row['seed']} {row['way']:9} {row['ranks']} ranks "
            f"{row['link'] or '-':8} {steps} steps: {count / steps:9.1f} bytes a step, "
            f"{1e3 * seconds / steps:7.2f} ms a step (medians {plain:.2f}, {exchange:.2f} with an "
            f"exchange), loss {loss:.5f}",
            flush=True,
        )


def words_for_ranks(args, link, ways):
    """The command line of a rank."""
    words = [sys.executable, str(HERE / "low_communication.py"), "rank", "--link", link]
    for name in (
        "seeds",
        "steps",
        "every",
        "sync_every",
        "fragments",
        "rate",
        "seconds",
        "fragment_sync_delay",
    ):
        words += ["--" + name.replace("_", "-"), str(getattr(args, name))]
    words += ["--should-quantize"] if args.should_quantize else []
    return [*words, "--ways", *ways, "--tasks", *args.tasks]


def loss(args):
    """Both ways on ranks of this machine."""
    mpirun = pathlib.Path(sys.executable).parent / "mpirun"
    command = [mpirun, "-np", args.ranks, "--oversubscribe", "--bind-to", "none"]
    command += words_for_ranks(args, "", args.ways)
    command = ["timeout", args.limit, *command]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as job:
        keep(job.stdout, args.rows)
    if job.returncode:
        sys.exit(f"the job ended with {job.returncode}")


def link(args):
    """On hosts whose links have a rate, one rank on each."""
    sys.path.insert(0, str(HERE.parent / "tests" / "hosts"))
    from namespaces import Hosts  # noqa: PLC0415

    for rate in args.rates:
        with Hosts(args.hosts, rate=rate) as hosts:
            program = words_for_ranks(args, rate, args.ways)
            output = hosts.mpirun([1] * args.hosts, program, timeout=args.limit)
        keep(output.splitlines(), args.rows)


def parse():
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["loss", "link", "plot", "rank"])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--ways", nargs="+", default=["gradients", "local"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=100, help="steps between two losses")
    parser.add_argument("--sync-every", type=int, default=100)
    parser.add_argument("--fragments", type=int, default=1)
    parser.add_argument("--fragment-sync-delay", type=int, default=0)
    parser.add_argument("--should-quantize", action="store_true")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rates", nargs="+", default=["10mbit", "100mbit"], help="as tc has them")
    parser.add_argument("--seconds", type=float, default=1e9, help="limit of a training")
    parser.add_argument("--limit", type=float, default=1800, help="seconds of a job")
    parser.add_argument("--link", default="")
    parser.add_argument("--rows", default="low_communication.json")
    parser.add_argument("--picture", default="low-communication.png")
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parse()
    if arguments.what == "rank":
        # Keras would import them, for nothing.
        for unused in ("sklearn", "pandas", "matplotlib", "scipy"):
            sys.modules[unused] = None
        import numpy as np
        import tensorflow as tf

        import smddp_tf.keras as hvd

        rank(arguments)
    elif arguments.what == "plot":
        from low_communication_plot import plot

        plot(arguments)
    else:
        {"loss": loss, "link": link}[arguments.what](arguments)
