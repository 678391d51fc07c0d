"""A script that calls run() with functions of its own; the test says which: calls_run.py HOW ..."""

import pathlib
import sys
import threading

import smddp_tf as hvd

FACTOR = 10  # of a script's functions, its variables travel too


class Own:
    """A class of the script."""

    def __init__(self, rank):
        self.rank = rank


def total(number):
    """A sum by TensorFlow's ops."""
    import tensorflow as tf

    hvd.init()

    @tf.function
    def count(upwards_to):  # AutoGraph reads the source of such a loop
        counted = tf.constant(0.0)
        while counted < upwards_to:
            counted += 1
        return hvd.allreduce(counted, op=hvd.Sum)

    summed = count(tf.constant(float(hvd.rank() + number)))
    return Own(hvd.rank()), FACTOR * float(summed)


def place(number):
    """Where it runs, without TensorFlow."""
    hvd.init()
    return Own(hvd.rank()), FACTOR * number


def with_tensorflow():
    """Which this process uses as a job of its own; then once more, in a thread."""
    import tensorflow as tf

    hvd.init()
    assert float(hvd.allreduce(tf.constant(2.0), op=hvd.Sum)) == 2

    def check(function, expected):
        (first, one), (second, other) = hvd.run(function, (3,), np=2)
        assert (first.rank, second.rank) == (0, 1) and isinstance(first, Own)
        assert one == other == expected, (one, other)
        print("right:", expected)

    check(total, FACTOR * 7)
    thread = threading.Thread(target=check, args=[place, FACTOR * 3])
    thread.start()
    thread.join()
    assert float(hvd.allreduce(tf.constant(2.0), op=hvd.Sum)) == 2


def failing():
    """A traceback of the script's own lines."""
    hvd.run(lambda: {}["missing"], np=1)


def without_cloudpickle():
    """As where it is not installed: functions that have a module."""
    sys.modules["cloudpickle"] = None
    import functions

    print(hvd.run(functions.fail, ("exits with 0",)))
    hvd.run(total, (1,))


def waiting():
    """Until somebody ends it."""
    import functions

    try:
        hvd.run(functions.wait, (sys.argv[2],))
    except KeyboardInterrupt:
        pathlib.Path(sys.argv[2], "interrupted").touch()
        raise


if __name__ == "__main__":
    ways = {"tensorflow": with_tensorflow, "fail": failing}
    ways |= {"pickle": without_cloudpickle, "wait": waiting}
    ways[sys.argv[1]]()
