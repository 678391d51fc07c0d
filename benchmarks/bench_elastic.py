"""What a loss and a newcomer cost an elastic job, beside Horovod's.

A job of three ranks loses one by SIGKILL, or one of two ranks gets a third. Printed is the time
from the SIGKILL to the end of the first step without the rank, on the survivor that comes to it
last; and of a newcomer, the longest pause between two steps of the ranks that were there. Both
libraries train the same model on the same TensorFlow (2.15), commit each step, and take turns.

Horovod bars a whole host for a lost rank, so the rank that dies or comes is on a second one, which
is this machine by its address.
"""

import argparse
import importlib
import itertools
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from environments import make_peers
from launch import ROOT, LaunchError

WARM_STEPS = 30
LIMIT_SECONDS = 180
LIBRARIES = ("smddp_tf", "horovod")
FAULTS = ("kill", "newcomer")


def train(library, folder):
    """What a rank does: steps until the folder has a file "over", with a line for each."""
    import tensorflow as tf

    name = "smddp_tf.keras" if library == "smddp_tf" else "horovod.tensorflow"
    hvd = importlib.import_module(name)
    importlib.import_module(f"{name}.elastic")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Dense(256, "relu"), layers.Dense(10)])
    model.build([None, 784])
    optimizer = tf.keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    images = tf.random.uniform([32, 784])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(images) ** 2)
        tape = hvd.DistributedGradientTape(tape)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return loss

    with open(Path(folder) / f"{os.getpid()}.steps", "w", buffering=1) as steps:

        @hvd.elastic.run
        def run(state):
            while not state.over:
                step().numpy()
                steps.write(f"{time.monotonic()} {hvd.size()}\n")
                over = float((Path(folder) / "over").exists())
                state.over = float(hvd.allreduce(tf.constant(over), op=hvd.Sum, name="over")) > 0
                time.sleep(0.02)
                state.commit()

        run(hvd.elastic.TensorFlowKerasState(model, optimizer, over=False))


def _steps(folder):
    """Process id -> [(time, ranks) of each of its steps]."""
    found = {}
    for path in Path(folder).glob("*.steps"):
        lines = path.read_text().splitlines(keepends=True)
        whole = [line.split() for line in lines if line.endswith("\n")]
        found[int(path.stem)] = [(float(end), int(ranks)) for end, ranks in whole]
    return found


def _wait(process, folder, ready, what):
    """Wait until `ready` says so of the steps; return them."""
    end = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end and process.poll() is None:
        steps = _steps(folder)
        if ready(steps):
            return steps
        time.sleep(0.05)
    log = (Path(folder) / "log").read_text()[-3000:]
    raise LaunchError(f"no {what} in {LIMIT_SECONDS} s, exit code {process.poll()}:\n{log}")


def _command(library, venv, folder, ranks):
    """The launcher's command line, and the text of its hosts script for one more rank or less."""
    program = [venv / "bin/python", Path(__file__).resolve(), "--rank", library, folder]
    script = ["--host-discovery-script", folder / "hosts.sh"]
    if library == "smddp_tf":
        launcher = [venv / "bin/python", "-m", "smddp_tf.launch"]
        few, more = "localhost:2", "localhost:3"
    else:
        launcher = [venv / "bin/horovodrun", "--gloo", "--network-interfaces", "lo"]
        few, more = "localhost:2", "localhost:2\n127.0.0.1:1"
    command = [*launcher, "-np", ranks, "--min-np", 2, "--max-np", 3, *script, *program]
    return list(map(str, command)), few, more


def _write_hosts(folder, hosts):
    """Replace the script at once, as it is run every second."""
    new = folder / "hosts.new"
    lines = "".join(f"echo {host}\n" for host in hosts.split())
    new.write_text(f"#!/bin/sh\n{lines}")
    new.chmod(0o755)
    new.rename(folder / "hosts.sh")


def _all_have(ranks, count):
    """Whether so many processes have done `count` steps in a job of that size."""

    def ready(steps):
        done = [sum(size == ranks for _, size in one) for one in steps.values()]
        return sum(number >= count for number in done) >= ranks

    return ready


def _after_kill(process, folder, hosts):
    """Seconds from SIGKILL to the first step of both survivors without the rank."""
    few, _ = hosts
    steps = _wait(process, folder, _all_have(3, WARM_STEPS), "30 steps of three ranks")
    victim = _last_rank(steps)
    _write_hosts(folder, few)  # so that nobody comes in its place
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    steps = _wait(process, folder, _all_have(2, 1), "step of two ranks")
    survivors = [one for pid, one in steps.items() if pid != victim]
    return max(min(end for end, ranks in one if ranks == 2) for one in survivors) - killed


def _last_rank(steps):
    """The process id of the rank that is alone on its host, or in the last slot."""

    def comes_last(pid):
        pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
        found = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        slot = int(found.get("SMDDP_RENDEZVOUS_SLOT", 0))
        return found.get("HOROVOD_HOSTNAME") == "127.0.0.1", slot

    return max(steps, key=comes_last)


def _newcomer(process, folder, hosts):
    """Seconds of the longest pause between two steps of those that were there."""
    _, more = hosts
    before = _wait(process, folder, _all_have(2, WARM_STEPS), "30 steps of two ranks")
    asked = time.monotonic()
    _write_hosts(folder, more)
    steps = _wait(process, folder, _all_have(3, 5), "5 steps of three ranks")
    pauses = []
    for pid in before:
        ends = [end for end, _ in steps[pid] if end > asked - 1]
        pauses.append(max(b - a for a, b in itertools.pairwise(ends)))
    return max(pauses)


def measure(library, venv, fault, folder):
    """One job with one fault: seconds."""
    folder.mkdir(parents=True)
    ranks = 3 if fault == "kill" else 2
    command, few, more = _command(library, venv, folder, ranks)
    _write_hosts(folder, more if fault == "kill" else few)
    env = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(ROOT)}
    env["PATH"] = f"{venv / 'bin'}{os.pathsep}{env['PATH']}"
    if os.getuid() == 0:
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        return {"kill": _after_kill, "newcomer": _newcomer}[fault](process, folder, (few, more))
    finally:
        (folder / "over").touch()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pid in _steps(folder):  # Horovod's launcher gives ranks sessions of their own
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)


def main():
    """Measure in turns, and print a line for each fault and library."""
    if sys.argv[1:2] == ["--rank"]:
        train(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv-2.15", help="ours")
    parser.add_argument("--peers-venv", type=Path, default=ROOT / ".venv-peers", help="Horovod's")
    parser.add_argument("--folder", type=Path, default=ROOT / "benchmarks/results/elastic")
    args = parser.parse_args()
    venvs = {"smddp_tf": args.venv.absolute(), "horovod": make_peers(args.peers_venv)}
    start = args.folder.absolute() / str(os.getpid())
    found = {}
    for number in range(args.rounds):
        for fault in FAULTS:
            for library in LIBRARIES:
                folder = start / f"{number}-{fault}-{library}"
                seconds = measure(library, venvs[library], fault, folder)
                found.setdefault((fault, library), []).append(seconds)
                print(f"{number} {fault} {library}: {seconds:.2f} s", flush=True)
    for (fault, library), seconds in found.items():
        low, high = min(seconds), max(seconds)
        middle = statistics.median(seconds)
        print(f"{fault:10} {library:10} median {middle:.2f} s ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
