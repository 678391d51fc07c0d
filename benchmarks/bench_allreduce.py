"""One float32 allreduce inside a tf.function.

call   one allreduce of a variable a call: what a user who reduces one tensor waits, Python and
       executor included
chain  dependent allreduces in one call, time for each: the op alone; from the second on the inputs
       are temporaries, which a library may overwrite. A chain has 8 ops (2 above 16 MiB), so at
       1 KiB an eighth of an empty call is in it
long   a chain of 64 ops, up to 64 KiB: there the empty call hardly counts
empty  a call that reduces nothing: the floor under `call`
"""

from common import Bench, argument_parser, comma_list, tf

SIZES = [1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 27]
LONG_CHAIN = 64


def repeats_for(size):
    """Return how often a size is timed."""
    for limit, repeats in ((1 << 16, 300), (1 << 20, 150), (1 << 24, 40)):
        if size <= limit:
            return repeats
    return 12


def make_chain(bench, variable, length):
    """Return a tf.function of `length` allreduces, each of the result before it."""

    @tf.function
    def chain():
        value = variable.read_value()
        for _ in range(length):
            value = bench.lib.allreduce(value)
        return bench.consume([value])

    return chain


def check(bench, variable):
    """Check every element after one and after two dependent allreduces.

    The average of equal values is that value, so both have the same result.
    """

    @tf.function
    def results():
        once = bench.lib.allreduce(variable)
        twice = bench.lib.allreduce(once)
        # Both are read: a library that overwrites a result that is still wanted is found out here.
        return bench.is_average(once), bench.is_average(twice)

    for step, good in enumerate(results()):
        if not good.numpy():
            bench.fail(f"wrong result of {variable.shape} after allreduce {step + 1}")


def measure_size(bench, size, chain_length):
    """Check one size, then time and emit each mode."""
    variable = tf.Variable(bench.pattern([size // 4]))
    check(bench, variable)

    @tf.function
    def call():
        return bench.consume([bench.lib.allreduce(variable)])

    @tf.function
    def empty():
        return bench.consume([tf.identity(variable)])

    repeats = bench.repeats(repeats_for(size))
    length = chain_length if size <= 1 << 24 else 2
    chain = make_chain(bench, variable, length)
    cases = [("call", call, repeats, 1), ("chain", chain, max(5, repeats // 4), length)]
    if size <= 1 << 16:
        long_chain = make_chain(bench, variable, LONG_CHAIN)
        cases.append(("long", long_chain, max(5, repeats // 16), LONG_CHAIN))
    if size == 1 << 10:
        cases.append(("empty", empty, repeats, 1))
    for mode, function, count, ops in cases:
        row = bench.time(lambda function=function: function().numpy(), count, ops)
        if mode != "empty":
            row["algbw_gbs"] = round(size / row["med"] / 1e9, 3)
        case = f"allreduce.{mode}.{size}"
        bench.emit(case, bench="allreduce", mode=mode, bytes=size, ops=ops, **row)


def main():
    """Measure every size."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument(
        "--sizes", type=comma_list(int), default=SIZES, help="bytes, separated by commas"
    )
    parser.add_argument("--chain", type=int, default=8, help="ops in a chain, up to 16 MiB")
    args = parser.parse_args()
    bench = Bench(args)
    for size in args.sizes:
        measure_size(bench, size, args.chain)


if __name__ == "__main__":
    main()
