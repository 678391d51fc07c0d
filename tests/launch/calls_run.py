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
    mean = hvd.allreduce(tf.constant(float(hvd.rank() + number)), op=hvd.Sum)
    return Own(hvd.rank()), FACTOR * float(mean)


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
    {"tensorflow": with_tensorflow, "pickle": without_cloudpickle, "wait": waiting}[sys.argv[1]]()
