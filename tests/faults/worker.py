"""A rank of a job to which something happens: worker.py FOLDER PLAN, the plan as JSON.

It repeats collectives, the same random ones on every rank, and checks the numbers. At its moment
the victim is killed, stops, ends, is slow, or asks for something else. What a rank is told, and
when, it writes to FOLDER.
"""

import ctypes
import faulthandler
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import smddp_tf as hvd
from smddp_tf._src.job import native

FLOAT, SUM = 1, 1
START_SECONDS, WORK_SECONDS = 170, 45
SIZES = (1, 12, 1000, 5000, 100_000, 1_000_000)
STEPS_AFTER = 20  # that the job must do after a fault which it survives


class Told(Exception):  # noqa: N818 - what a collective failed with, which is expected here
    """A collective failed: code or class, and sentence."""


def _fail(code: int) -> None:
    if code:
        raise Told(code, native.last_error())


class Core:
    """Collectives through the C API, without TensorFlow: a job starts in a fraction of a second."""

    def __init__(self, plan) -> None:
        self._buffers = {n: ((ctypes.c_float * n)(), (ctypes.c_float * n)()) for n in SIZES}
        self._random = random.Random(plan["seed"])
        wanted = plan["ranks"] > 2 and plan["process_set"]
        self._set = hvd.add_process_set([0, 1]) if wanted else None

    def step(self, step: int) -> None:
        """One collective; RuntimeError if its result is wrong."""
        kind = self._random.choice(["allreduce"] * 5 + ["broadcast", "barrier"])
        elements = self._random.choice(SIZES)
        in_set = self._set is not None and self._random.random() < 0.5
        if in_set and not self._set.included():
            return
        kind = "allreduce" if in_set else kind
        name = f"{kind}{step}"
        number, ranks = (self._set.process_set_id, 2) if in_set else (0, hvd.size())
        if kind == "barrier":
            _fail(native.core().smddp_barrier(name.encode()))
        elif kind == "broadcast":
            self._broadcast(elements, step, name)
        else:
            self._allreduce(elements, step, name, number, ranks)

    def _broadcast(self, elements, step, name):
        buffer, _ = self._buffers[elements]
        buffer[0] = buffer[elements - 1] = step % 97 if hvd.rank() == 0 else -1
        pointer, size = ctypes.byref(buffer), ctypes.c_int64(4 * elements)
        _fail(native.core().smddp_broadcast(pointer, size, 0, name.encode()))
        if (buffer[0], buffer[elements - 1]) != (step % 97, step % 97):
            raise RuntimeError(f"wrong numbers at step {step}: {buffer[0]}")

    def _allreduce(self, elements, step, name, process_set, ranks):
        given, got = self._buffers[elements]
        given[0] = given[elements - 1] = (step % 97) * (hvd.rank() + 1)
        dims = (ctypes.c_int64 * 1)(elements)
        tensor = native.Tensor(ctypes.addressof(given), ctypes.addressof(got), 1, dims)
        request = native.Request(
            dtype=FLOAT,
            op=SUM,
            process_set=process_set,
            prescale=1.0,
            postscale=1.0,
            name=name.encode(),
            num_tensors=1,
            tensors=ctypes.pointer(tensor),
        )
        _fail(native.core().smddp_run(ctypes.byref(request)))
        wanted = (step % 97) * ranks * (ranks + 1) // 2
        if (got[0], got[elements - 1]) != (wanted, wanted):
            raise RuntimeError(f"wrong numbers at step {step}: {got[0]} instead of {wanted}")


class TensorFlow:
    """A training step with a distributed tape, then an allreduce."""

    def __init__(self, plan) -> None:
        del plan
        import tensorflow as tf

        self._tf = tf
        self._weights = [tf.Variable(tf.ones([n])) for n in (12, 1000, 300_000)]

        @tf.function
        def train(x):
            with tf.GradientTape() as tape:
                loss = x * tf.add_n([tf.reduce_sum(one) for one in self._weights])
            tape = hvd.DistributedGradientTape(tape, op=hvd.Sum)
            gradients = tape.gradient(loss, self._weights)
            return tf.stack([one[-1] for one in gradients])

        self._train = train
        train(tf.constant(1.0))

    def step(self, step: int) -> None:
        """One step; RuntimeError if its result is wrong."""
        x = self._tf.constant(float(step % 97 * (hvd.rank() + 1)))
        wanted = float(step % 97 * hvd.size() * (hvd.size() + 1) // 2)
        try:
            got = [*self._train(x).numpy(), float(hvd.allreduce(x, op=hvd.Sum))]
        except self._tf.errors.OpError as error:
            raise Told(type(error).__name__, error.message) from None
        if got != [wanted] * 4:
            raise RuntimeError(f"wrong numbers at step {step}: {got} instead of {wanted}")


class Rank:
    """This rank's part in the plan."""

    def __init__(self, folder, plan) -> None:
        self.plan = plan
        self._folder = pathlib.Path(folder)
        launcher_rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
        errors = os.open(self._folder / f"err{launcher_rank}", os.O_CREAT | os.O_WRONLY)
        os.dup2(errors, 2)
        self._write("pid", launcher_rank, os.getpid())
        hvd.init()
        self._write("node", hvd.rank(), hvd.cross_rank())
        self.is_victim = hvd.rank() == plan["victim"]
        self._work = (TensorFlow if plan["tensorflow"] else Core)(plan)
        self._happens = threading.Event()

    def _write(self, kind: str, rank, what) -> None:
        path = self._folder / f".{kind}{rank}"
        path.write_text(json.dumps(what))
        path.rename(self._folder / f"{kind}{rank}")  # whole or not at all

    def _begin(self) -> None:
        """What kills or stops comes from another thread, at any moment of a collective."""
        fault = self.plan["fault"]
        self._write("fault", hvd.rank(), {"at": time.monotonic()})
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "exit":
            os._exit(3)
        elif fault in ("stop", "stop and continue"):
            if fault != "stop":
                awake = f"sleep {self.plan['seconds']}; kill -CONT {os.getpid()}"
                subprocess.Popen(["/bin/sh", "-c", awake])
            os.kill(os.getpid(), signal.SIGSTOP)
        self._happens.set()

    def run(self) -> None:
        """Steps until a failure, or until enough of them came after a fault that is survived."""
        for step in range(10):
            self._work.step(step)
        if self.is_victim:
            threading.Timer(self.plan["delay"], self._begin).start()
        end = time.monotonic() + self.plan["delay"]
        step, last = 10, None
        while last is None or step < last:
            if last is None and self._agree(time.monotonic() > end):
                last = step + STEPS_AFTER
                self._disturb(step)
            self._work.step(step)
            step += 1
        self._write("told", hvd.rank(), {"at": time.monotonic(), "text": "", "survived": True})

    def _agree(self, over: bool) -> bool:
        """Whether the victim's moment has passed: the same on all ranks, at the same step."""
        flag = (ctypes.c_float * 1)(float(over and self._passed()))
        total = (ctypes.c_float * 1)()
        _fail(
            native.core().smddp_allreduce(
                ctypes.byref(flag), ctypes.byref(total), ctypes.c_int64(1), FLOAT, SUM,
                ctypes.c_double(1.0), ctypes.c_double(1.0), b"agree",
            )
        )  # fmt: skip
        return total[0] == hvd.size()

    def _passed(self) -> bool:
        fatal = self.plan["fault"] in ("kill", "exit", "stop")
        return not fatal and (not self.is_victim or self._happens.is_set())

    def _disturb(self, step: int) -> None:
        """What happens between two collectives: a slow rank, one that leaves, a mismatch."""
        fault = self.plan["fault"]
        if fault == "slow" and self.is_victim:
            time.sleep(self.plan["seconds"])
        if fault in ("raise", "end") and self.is_victim:
            self._write("fault", hvd.rank(), {"at": time.monotonic()})
            if fault == "raise":
                raise RuntimeError("the data are broken")
            sys.exit(0)
        if fault == "mismatch":
            begin = time.monotonic()
            try:
                self._mismatch(step)
            except Told as told:
                code, text = told.args
                what = {"at": time.monotonic(), "begin": begin, "text": text, "code": code}
                self._write("mismatch", hvd.rank(), what)
            else:
                raise RuntimeError("a mismatch was not noticed")

    def _mismatch(self, step: int) -> None:
        buffers = [(ctypes.c_float * 8)() for _ in range(2)]
        count = ctypes.c_int64(7 if self.is_victim and step % 2 else 8)
        name = b"victim's" if self.is_victim else b"others'"
        one = ctypes.c_double(1.0)
        pointers = [ctypes.byref(buffer) for buffer in buffers]
        run = native.core().smddp_allreduce
        _fail(run(*pointers, count, FLOAT, SUM, one, one, name))

    def fail(self, told) -> None:
        """Notes what this rank was told, and ends with an error, as a script would."""
        code, text = told.args
        self._write("told", hvd.rank(), {"at": time.monotonic(), "text": text, "code": code})
        time.sleep(0.3)  # the others are told before mpirun ends them
        raise RuntimeError("the job has failed") from told


def main() -> None:
    """Run; a rank that hangs says where."""
    folder, plan = sys.argv[1], json.loads(sys.argv[2])
    faulthandler.dump_traceback_later(START_SECONDS, exit=True)
    rank = Rank(folder, plan)
    faulthandler.dump_traceback_later(WORK_SECONDS, exit=True)
    try:
        rank.run()
    except Told as told:
        rank.fail(told)


if __name__ == "__main__":
    main()
