"""What a process keeps of each change of the ranks: memory, threads, descriptors, mappings.

    python tests/elastic/many_changes.py --changes 60

Slot 0 trains all the time, with one other rank that is killed, or leaves on SIGTERM, after a few
steps, and is replaced. A process set of slot 0 is made again each time. At each change slot 0 notes
what it has. In the second half of the changes that may not be more than in the first.
"""

import argparse
import gc
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
MEBIBYTES = 1 << 20
STEPS = 4  # between changes
# By so much the most of the second half may be above that of the first: allocators keep pages. A
# state has 23 MiB, and a process set 2.
MORE = {"MiB": 48, "threads": 2, "descriptors": 2, "mappings": 40, "objects": 200}


def of_this_process() -> dict:
    """What this process has."""
    resident = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return {
        "MiB": round(resident * os.sysconf("SC_PAGE_SIZE") / MEBIBYTES, 1),
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": pathlib.Path("/proc/self/maps").read_text().count("\n"),
        "objects": len(gc.get_objects()),
    }


def rank(folder: pathlib.Path, changes: int) -> None:
    """Trains, as a rank of the job."""
    import tensorflow as tf

    import smddp_tf.keras as hvd

    slot = int(os.environ["SMDDP_RENDEZVOUS_SLOT"])
    hvd.init()
    own = hvd.add_process_set([0])
    model = tf.keras.Sequential([tf.keras.layers.Dense(1000), tf.keras.layers.Dense(1000)])
    model.build([None, 1000])
    optimizer = tf.keras.optimizers.Adam(1e-4)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        if own.included():
            loss = hvd.allreduce(loss, process_set=own)
        return loss

    @hvd.elastic.run
    def train(state):
        state.calls += 1
        if slot == 0:
            gc.collect()
            with open(folder / "seen", "a") as seen:
                seen.write(json.dumps({"ranks": hvd.size(), **of_this_process()}) + "\n")
        for number in range(1 << 30):
            if state.calls > changes:
                return
            if number == STEPS and slot != 0:
                os.kill(os.getpid(), signal.SIGKILL if slot % 2 else signal.SIGTERM)
            step(tf.ones([8, 1000]))
            state.commit()
            time.sleep(0.01)

    train(hvd.elastic.KerasState(model, optimizer, calls=0))


def run(changes: int) -> list:
    """What slot 0 noted, at each change."""
    sys.path.insert(0, str(HERE.parent / "multirank"))
    import launcher

    with tempfile.TemporaryDirectory(prefix="changes") as name:
        script = pathlib.Path(name) / "hosts.sh"
        script.write_text("#!/bin/sh\necho localhost:2\n")
        script.chmod(0o755)
        paths = {"PATH": f"{launcher.BIN}:{os.environ['PATH']}"}
        command = [sys.executable, "-m", "smddp_tf.launch", "-np", 2, "--min-np", 1]
        command += ["--host-discovery-script", script, *launcher.warm_python(None, paths)]
        command += [__file__, "--changes", changes, "--rank", name]
        code, output, timed_out = launcher.run_command(
            command, timeout=60 + 10 * changes, env=paths
        )
        if code != 0 or timed_out:
            raise subprocess.SubprocessError(f"exit code {code}: {output[-6000:]}")
        return list(map(json.loads, (pathlib.Path(name) / "seen").read_text().splitlines()))


def main() -> int:
    """Prints what there is; 1 if the process grows without an end."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--changes", type=int, default=60)
    parser.add_argument("--rank", type=pathlib.Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        rank(args.rank, args.changes)
        return 0
    seen = run(args.changes)
    for number in range(0, len(seen), max(1, len(seen) // 12)):
        print(f"after {number} changes: {seen[number]}")
    print(f"after {len(seen) - 1} changes: {seen[-1]}")
    half = len(seen) // 2
    peaks = {
        name: [max(one[name] for one in part) for part in (seen[:half], seen[half:])]
        for name in MORE
    }
    print("most in the first half of the changes, and in the second:", peaks)
    return int(any(after > before + MORE[name] for name, (before, after) in peaks.items()))


if __name__ == "__main__":
    sys.exit(main())
