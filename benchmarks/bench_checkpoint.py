"""How long training waits for a checkpoint: ShardedCheckpoint, and one rank that gathers and saves.

    mpirun -np 2 python benchmarks/bench_checkpoint.py --million 100 --saves 5

Adam with shard_state=True on one dense layer after another. "wait" is how long save() takes, "copy"
how long NumPy copies as many bytes, "until whole" when all ranks' disks have it. Steps of a fixed
time (a sleep, as of an accelerator) run meanwhile: their time over that of others. "gather" is
whole_state() and ModelCheckpoint's model.save() on rank 0, while all wait.
"""

import argparse
import pathlib
import shutil
import statistics
import tempfile
import time

import numpy as np
import tensorflow as tf

import smddp_tf.keras as hvd

STEP_SECONDS = 0.02


def make_model(million):
    """Return a compiled model of so many million weights, with its optimizer's slots."""
    width = 2000
    layers = [tf.keras.layers.Dense(width) for _ in range(max(1, round(million * 1e6 / width**2)))]
    model = tf.keras.Sequential([tf.keras.Input((width,)), *layers])
    model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.Adam(), shard_state=True), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def timed(function):
    """Return how long a call takes on the slowest rank, from when all have come."""
    hvd.barrier()
    start = time.perf_counter()
    function()
    return float(hvd.allreduce(tf.constant(time.perf_counter() - start), op=hvd.Max))


def steps_while(writing):
    """Return the times of steps as long as this is true, and of at least five."""
    times = []
    while len(times) < 5 or writing():
        start = time.perf_counter()
        time.sleep(STEP_SECONDS)
        times.append(time.perf_counter() - start)
    return times


def save_in_parts(model, folder, bytes_of_rank):
    """Return the times of one ShardedCheckpoint, and of steps meanwhile and without it."""
    checkpoint = hvd.callbacks.ShardedCheckpoint(folder)
    own = np.ones(bytes_of_rank, np.uint8)
    found = {"copy": timed(own.copy), "wait": timed(lambda: checkpoint.save(model, 1))}
    start = time.perf_counter()
    meanwhile = steps_while(lambda: checkpoint._writing.is_alive())
    checkpoint.wait()
    found["until whole"] = time.perf_counter() - start
    alone = steps_while(lambda: False)
    found["steps"] = statistics.median(meanwhile) / statistics.median(alone)
    found["worst step"] = max(meanwhile) / statistics.median(alone)
    return found


def gather_and_save(model, folder):
    """What rank 0 alone does while the others wait."""
    with hvd.whole_state(model.optimizer):
        if hvd.rank() == 0:
            model.save(pathlib.Path(folder, "model.keras"))


def main():
    """Measure and print, on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--million", type=float, default=100, help="weights")
    parser.add_argument("--saves", type=int, default=5)
    args = parser.parse_args()
    hvd.init()
    folder = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None)
    model = make_model(args.million)
    weights = sum(int(np.prod(w.shape)) for w in model.trainable_variables)
    own = 12 * weights // hvd.size()  # weights and two slots, of four bytes
    rows = []
    for _ in range(args.saves):
        row = save_in_parts(model, folder, own)
        row["gather"] = timed(lambda: gather_and_save(model, folder))
        rows.append(row)
    hvd.barrier()
    if hvd.rank() == 0:
        shutil.rmtree(folder)
        print(f"{weights / 1e6:.1f} M weights, {hvd.size()} ranks, {own / 1e6:.0f} MB a rank")
        for key in rows[0]:
            values = sorted(row[key] for row in rows)
            print(f"{key:12} {statistics.median(values):.3f} ({values[0]:.3f} to {values[-1]:.3f})")


if __name__ == "__main__":
    main()
