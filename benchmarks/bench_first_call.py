"""The first call of a training step, in which TensorFlow traces it, with and without the library.

    python benchmarks/bench_first_call.py [--rounds 5] [--python .venv-2.15/bin/python]

Every figure is from processes of its own, since a process makes its first call once; both sides run
under mpirun on two ranks, in turns. `step` is the README's step with a tape; `fit` is Keras's fit()
of a model with 400 variables.
"""

import argparse
import statistics
import sys
import time

from launch import ROOT, Mpi, run_command

CASES = ("step", "fit")
SIDES = ("without", "with")
MARK = "first_call_seconds="


def step_seconds(hvd):
    """Return the seconds of the first call of a step, plain if hvd is None."""
    import tensorflow as tf

    model = tf.keras.Sequential([tf.keras.layers.Dense(64) for _ in range(5)])
    model.build([None, 64])
    optimizer = tf.keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x)
            loss = tf.reduce_mean(
                tf.keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
            )
        if hvd is not None:
            tape = hvd.DistributedGradientTape(tape)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return loss if hvd is None else hvd.allreduce(loss)

    x, y = tf.ones([8, 64]), tf.zeros([8], tf.int64)
    start = time.perf_counter()
    step(x, y)
    return time.perf_counter() - start


def fit_seconds(hvd):
    """Return the seconds of the first fit() of one batch, plain if hvd is None."""
    import tensorflow as tf

    keras = tf.keras
    inputs = keras.Input((8,))
    hidden = inputs
    for _ in range(200):
        hidden = keras.layers.Dense(8)(hidden)
    model = keras.Model(inputs, hidden)
    optimizer = keras.optimizers.SGD(0.01)
    callbacks = []
    if hvd is not None:
        import smddp_tf.keras as hvd_keras

        optimizer = hvd_keras.DistributedOptimizer(optimizer)
        callbacks = [hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.compile(optimizer, "mse", jit_compile=False)
    x = tf.ones([8, 8])
    start = time.perf_counter()
    model.fit(x, x, verbose=0, callbacks=callbacks)
    return time.perf_counter() - start


def rank_main(case, side):
    """Measure on this rank; the slowest rank's seconds are printed by rank 0."""
    import tensorflow as tf

    import smddp_tf as hvd

    hvd.init()
    # TensorFlow's own first time, and AutoGraph's, are not the step's.
    tf.function(lambda x: tf.reduce_sum(x @ x))(tf.ones([4, 4]))
    hvd.barrier()
    measure = {"step": step_seconds, "fit": fit_seconds}[case]
    seconds = measure(hvd if side == "with" else None)
    slowest = float(hvd.allreduce(tf.constant(seconds, tf.float64), op=hvd.Max))
    if hvd.rank() == 0:
        print(f"{MARK}{slowest}", flush=True)


def run(mpi, python, case, side):
    """Return one figure."""
    program = [python, __file__, "--case", case, "--side", side]
    # Empty as by default: Python keeps the library compiled.
    env = mpi.environment(PYTHONPATH=str(ROOT), PYTHONDONTWRITEBYTECODE="")
    text = run_command(mpi.command(2, program), env, timeout=300)
    line = next(line for line in text.splitlines() if MARK in line)
    return float(line.split(MARK)[1])


def main():
    """Run the rounds and print medians, ratio and range."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--case", choices=CASES, help="measure on this rank (under mpirun)")
    parser.add_argument("--side", choices=SIDES)
    args = parser.parse_args()
    if args.case:
        rank_main(args.case, args.side)
        return
    mpi = Mpi.find()
    for case in CASES:
        found = {side: [] for side in SIDES}
        for turn in range(args.rounds):
            for side in SIDES if turn % 2 == 0 else reversed(SIDES):
                found[side].append(run(mpi, args.python, case, side))
        ratios = [b / a for a, b in zip(found["without"], found["with"], strict=True)]
        medians = {side: statistics.median(found[side]) for side in SIDES}
        print(
            f"{case}: without {medians['without']:.2f} s, with {medians['with']:.2f} s, ratio "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
