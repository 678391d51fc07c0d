"""A training step: forward, backward, reduction by the library's tape, plain gradient descent.

Random data of the shapes that the models take; the batch is per rank. With `--lib none` on as many
ranks it is the step without reduction: what no library can be faster than.
"""

import numpy as np
from common import Bench, argument_parser, comma_list, tf
from models import MODELS

STEPS = {"cnn": 60, "mlp": 40, "deep": 150}
LEARNING_RATE = 0.01


def make_step(bench, forward, variables, groups):
    """Return the tf.function of one step."""
    options = {"num_groups": groups} if groups else {}

    @tf.function
    def step(inputs, labels):
        with tf.GradientTape() as tape:
            logits = forward(inputs)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            )
        tape = bench.lib.DistributedGradientTape(tape, **options)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(LEARNING_RATE * gradient)
        return loss

    return step


def check_equal(bench, name, variables):
    """Check that all ranks hold the same weights after the steps, though each had its own data."""
    for variable in variables:
        if not np.isfinite(variable).all():
            bench.fail(f"{name}: the training diverged")
        largest = bench.lib.allreduce(tf.identity(variable), op=bench.lib.Max)
        if not np.array_equal(largest, variable):
            bench.fail(f"{name}: weights of shape {variable.shape} differ between ranks")


def measure_model(bench, name, batch, groups):
    """Train a model for some steps, check and emit its row."""
    forward, variables, shape = MODELS[name]()
    bench.lib.broadcast_variables(variables, root_rank=0)
    inputs = tf.random.stateless_uniform([batch, *shape], seed=[1, bench.rank])
    labels = tf.random.stateless_uniform([batch], seed=[2, bench.rank], maxval=10, dtype=tf.int32)
    step = make_step(bench, forward, variables, groups)
    row = bench.time(lambda: step(inputs, labels).numpy(), bench.repeats(STEPS[name]))
    check_equal(bench, name, variables)
    bench.emit(
        f"train.{name}",
        bench="train",
        model=name,
        batch=batch,
        groups=groups,
        parameters=sum(int(np.prod(variable.shape)) for variable in variables),
        **row,
        samples_s=round(batch * bench.size / row["med"], 1),
    )


def main():
    """Measure every model."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument(
        "--models", type=comma_list(str, MODELS), default=list(MODELS), help=", ".join(MODELS)
    )
    parser.add_argument("--batch", type=int, default=32, help="samples per rank")
    parser.add_argument("--groups", type=int, default=0, help="num_groups; 0: the tape's default")
    args = parser.parse_args()
    bench = Bench(args)
    for name in args.models:
        measure_model(bench, name, args.batch, args.groups)


if __name__ == "__main__":
    main()
