"""The TensorFlow side of the benchmark scripts: the library, the timing, the rows.

The library is injected: `--lib smddp_tf`, `--lib horovod.tensorflow`, or any module with their
functions. `--lib none` reduces nothing: on one process or on several it is the floor, the cost of
the same program without communication. Threads of TensorFlow per rank: BENCH_INTRA (1) and
BENCH_INTER (2).
"""

import argparse
import gc
import importlib
import os
import time

from measure import (
    LoadMeter,
    PingPong,
    append_row,
    describe,
    launcher_rank,
    summarize,
    summarize_by_distance,
)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# It reads the two variables while it loads, so the scripts take it from here.
import tensorflow as tf  # noqa: E402

INTRA = int(os.environ.get("BENCH_INTRA", "1"))
INTER = int(os.environ.get("BENCH_INTER", "2"))
# Patterns repeat after this many elements, so that sums of small integers stay exact in float32.
PATTERN = 64


class Alone:
    """The library that is not there: size 1, every collective the identity."""

    Max = None

    def init(self):
        """Nothing to start."""

    def rank(self):
        """Return the only rank."""
        return 0

    def size(self):
        """Return the number of ranks."""
        return 1

    def allreduce(self, tensor, **_):
        """Return the tensor, as an op of its own."""
        return tf.identity(tensor)

    def grouped_allreduce(self, tensors, **_):
        """Return the tensors, as ops of their own."""
        return [tf.identity(tensor) for tensor in tensors]

    def DistributedGradientTape(self, tape, **_):
        """Return the tape itself."""
        return tape

    def broadcast_variables(self, variables, root_rank=0):
        """Nobody else has variables."""


def argument_parser(description):
    """Return a parser with the options that all scripts share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--lib", default="smddp_tf", help="smddp_tf, horovod.tensorflow, or none")
    parser.add_argument("--json", default="", help="append rows to this file, one object a line")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the repeats of a case")
    parser.add_argument("--tag", default="", help="kept in every row, to tell runs apart")
    return parser


def comma_list(convert=str, choices=None):
    """Return argparse's type for values separated by commas."""

    def parse(text):
        values = [convert(part) for part in text.split(",") if part]
        unknown = [value for value in values if choices and value not in choices]
        if unknown:
            message = f"{unknown} not in {', '.join(choices)}"
            raise argparse.ArgumentTypeError(message)
        return values

    return parse


class Bench:
    """One process's part in a benchmark: the library, the timing and the rows."""

    def __init__(self, args, library=None):
        """Set the threads, which comes before TensorFlow's first op, and start the library."""
        tf.get_logger().setLevel("ERROR")  # one function for each case is no retracing to warn of
        tf.config.threading.set_intra_op_parallelism_threads(INTRA)
        tf.config.threading.set_inter_op_parallelism_threads(INTER)
        self._args = args
        if library is None:
            library = Alone() if args.lib == "none" else importlib.import_module(args.lib)
        self.lib = library
        self.lib.init()
        self.rank, self.size = self.lib.rank(), self.lib.size()
        self.ping_pong = PingPong(self.rank, self.size)
        self._true = tf.Variable(True, trainable=False)

    def consume(self, tensors):
        """Return a scalar that exists only once all `tensors` do.

        Control dependencies are not enough: a result that nothing reads as data is pruned, and the
        collective with it. Assert is stateful, so it stays; it takes the tensors as data that it
        prints only on failure; and its condition is a variable, which cannot be folded away.
        """
        condition = self._true.read_value()
        kept = tf.raw_ops.Assert(condition=condition, data=list(tensors))
        with tf.control_dependencies([kept]):
            return tf.identity(condition)

    def fail(self, message):
        """End this rank; the launcher ends the others."""
        message = f"rank {self.rank}: {message}"
        raise SystemExit(message)

    def repeats(self, count, least=5):
        """Return the count that --scale makes of `count`."""
        return max(least, int(count * self._args.scale))

    def time(self, call, repeats, ops=1):
        """Return the summary of `repeats` calls, per op of the `ops` in a call, and others' load.

        Where there is a ping-pong, one precedes and one follows each call.

        The count is the same on all ranks: the collective in the call keeps them in step, and none
        may stop early.
        """
        for _ in range(max(3, repeats // 8)):
            call()
        seconds, pings = [], []
        gc.collect()
        gc.disable()  # a collection inside one call would be that call's outlier
        try:
            with LoadMeter() as load:
                for _ in range(repeats):
                    before = self.ping_pong()
                    start = time.perf_counter()
                    call()
                    seconds.append((time.perf_counter() - start) / ops)
                    pings.append((before, self.ping_pong()))
        finally:
            gc.enable()
        return {**self.summarize(seconds, pings), **load.row}

    def summarize(self, seconds, pings):
        """Return the summary of the samples, each between two ping-pongs.

        Where these are known it is that of the distance that most samples were taken at.
        """
        if not self.ping_pong:
            return summarize(seconds)
        summary = summarize_by_distance(seconds, pings)
        if not summary and self.rank == 0:
            self.fail("the cores moved during every call; run it again")
        return summary or summarize(seconds)

    def largest(self, values):
        """Return the element-wise maximum of a list of numbers over all ranks."""
        local = tf.constant(values, tf.float64)
        return [float(value) for value in self.lib.allreduce(local, op=self.lib.Max).numpy()]

    def pattern(self, shape):
        """Return data that differ between ranks and elements, and whose average is exact.

        Element i of rank r holds (r + 1) * (i % 64).
        """
        return (self.rank + 1.0) * self._unit(shape)

    def is_average(self, tensor):
        """Return whether every element is the average over ranks of pattern().

        Equality is exact where dividing by the size is.
        """
        want = (self.size + 1) / 2 * self._unit(tensor.shape)
        tolerance = 0.0 if self.size & (self.size - 1) == 0 else 1e-6
        return tf.reduce_all(tf.abs(tensor - want) <= tolerance * want)

    @staticmethod
    def _unit(shape):
        count = tf.TensorShape(shape).num_elements()
        tiled = tf.tile(tf.range(PATTERN, dtype=tf.float32), [-(-count // PATTERN)])
        return tf.reshape(tiled[:count], shape)

    def emit(self, case, **row):
        """Print a row, and append it to the file, from the launcher's rank 0 alone."""
        if launcher_rank() != 0:
            return
        args = self._args
        row = {
            "case": case,
            "lib": args.lib,
            "tag": args.tag,
            "np": self.size,
            "tf": tf.__version__,
            "intra": INTRA,
            "inter": INTER,
            **row,
        }
        print(describe(row), flush=True)
        if args.json:
            append_row(args.json, row)
