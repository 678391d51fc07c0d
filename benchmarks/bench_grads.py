"""A tf.function that reduces the whole gradient list of a network.

Paths:      tape     DistributedGradientTape with its defaults
            tape_g1  the same with num_groups=1
            grouped  grouped_allreduce of the list
            floor    the same gradients, not reduced (temporaries only)
Gradients:  var      read from variables: the library may not overwrite them
            temp     fresh temporaries, as a backward pass makes them: their cost is `floor`

A row also has the seconds of the first call (tracing included; only the first row's is the first of
the process) and the peak memory of a rank above what it held before that call, over all ranks the
largest. What earlier cases freed may still be resident, so memory is to be compared between
processes of one case each: `--paths tape --grads var`, `--paths floor --grads temp`, and so on.
"""

import time

from common import Bench, argument_parser, comma_list, tf
from measure import PeakMemory
from sets import SETS, elements

REPEATS = {"resnet50": 25, "bert": 9, "small500": 60}
PATHS = ["tape", "tape_g1", "grouped"]
KINDS = ["var", "temp"]


def through_tape(gradients, sources, wrap):
    """Return what a tape makes of `gradients`, the gradients of `sources`, with none to compute.

    `wrap` turns TensorFlow's tape into the library's.
    """

    @tf.custom_gradient
    def loss_of(*_):
        return tf.constant(0.0), lambda _: list(gradients)

    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(sources)
        loss = loss_of(*sources)
    return wrap(tape).gradient(loss, sources)


def reduced(bench, path, gradients, sources):
    """Return the gradients reduced by one of the paths."""
    if path == "grouped":
        return bench.lib.grouped_allreduce(gradients)
    wrapped = bench.lib.DistributedGradientTape
    wraps = {
        "tape": wrapped,
        "tape_g1": lambda tape: wrapped(tape, num_groups=1),
        "floor": lambda tape: tape,
    }
    return through_tape(gradients, sources, wraps[path])


def make_functions(bench, path, kind, variables, one):
    """Return the timed function, and one that says of every tensor whether it is the average."""

    def results():
        reads = [variable.read_value() for variable in variables]
        gradients = [value * one for value in reads] if kind == "temp" else reads
        return reduced(bench, path, gradients, [variable.read_value() for variable in variables])

    @tf.function
    def step():
        return bench.consume(results())

    @tf.function
    def check():
        return tf.stack([bench.is_average(result) for result in results()])

    return step, check


def measure_path(bench, name, path, kind, variables):
    """Time, check and emit one row."""
    one = tf.Variable(1.0)
    step, check = make_functions(bench, path, kind, variables, one)
    memory = PeakMemory()
    start = time.perf_counter()
    step().numpy()
    first_call = time.perf_counter() - start
    row = bench.time(lambda: step().numpy(), bench.repeats(REPEATS[name], least=3))
    extra, peak = bench.largest([memory.peak() - memory.start, memory.peak()])
    if path != "floor" and not tf.reduce_all(check()).numpy():
        bench.fail(f"wrong result of {name}, {path}, {kind}")
    size = 4 * elements([variable.shape for variable in variables])
    bench.emit(
        f"grads.{name}.{path}.{kind}",
        bench="grads",
        set=name,
        path=path,
        grads=kind,
        tensors=len(variables),
        bytes=size,
        **row,
        algbw_gbs=round(size / row["med"] / 1e9, 3),
        first_call_s=round(first_call, 3),
        peak_mb=round(peak / 1e6),
        peak_extra_mb=round(extra / 1e6),
        peak_is_of_case=memory.resettable,
    )


def main():
    """Measure every set, kind and path."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument(
        "--sets", type=comma_list(str, SETS), default=list(SETS), help=", ".join(SETS)
    )
    parser.add_argument(
        "--paths", type=comma_list(str, [*PATHS, "floor"]), default=PATHS, help=", ".join(PATHS)
    )
    parser.add_argument(
        "--grads", type=comma_list(str, KINDS), default=KINDS, help=", ".join(KINDS)
    )
    args = parser.parse_args()
    bench = Bench(args)
    for name in args.sets:
        variables = [tf.Variable(bench.pattern(shape)) for shape in SETS[name]()]
        for kind in args.grads:
            floor = ["floor"] if kind == "temp" and "floor" not in args.paths else []
            for path in [*args.paths, *floor]:
                measure_path(bench, name, path, kind, variables)
        del variables


if __name__ == "__main__":
    main()
