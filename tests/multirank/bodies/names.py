"""What ranks do in test_names.py."""

import pathlib
import resource
import threading
import warnings

import tensorflow as tf
from checks import raises
from harness import rank, report, size

import smddp_tf as hvd
from bodies.order import mine, total


def _summed(x, name, **where):
    return hvd.allreduce(x, op=hvd.Sum, name=name, **where)


def beside_a_smaller_set(name):
    """Functions whose collectives of one set are not the first ones on all of its ranks."""
    some = hvd.add_process_set(list(range(size - 1)))

    @tf.function
    def mixed(x):
        if some.included():
            _summed(x, name, process_set=some)
        return _summed(x, name)

    assert mixed(mine(1)) == total
    report(done=True)


def where_it_is_traced(name):
    """A function that one rank has traced before, and the others trace inside of another one."""

    @tf.function
    def inner(x):
        return _summed(tf.reduce_sum(x), name)

    @tf.function
    def outer(x):
        return _summed(tf.reduce_sum(x), name) + inner(x)

    assert inner(tf.ones([2 + min(rank, 1)])) == 2 + 3 * (size - 1)  # as of an uneven last batch
    assert outer(tf.ones([2])) == 4 * size
    report(done=True)


def _mapped(name=None, **where):
    return tf.data.Dataset.range(2).map(lambda n: _summed(n + rank, name, **where))


def _check(dataset):
    assert [int(one) for one in dataset] == [sum(range(size)) + turn * size for turn in range(2)]


def datasets_beside_a_smaller_set():
    """The lambda of a dataset that only some ranks have is not counted among those of all."""
    some = hvd.add_process_set(list(range(size - 1)))
    if some.included():
        _mapped(process_set=some)
    _check(_mapped())
    report(done=True)


def datasets_of_threads():
    """Two threads make datasets of lambdas, in another order on each rank."""
    first, failed = threading.Event(), []

    def work():
        name = threading.current_thread().name
        second = (name == "student") == (rank == 0)
        if second:
            first.wait(30)
        dataset = _mapped()
        first.set()
        try:
            _check(dataset)
        except (AssertionError, tf.errors.OpError) as error:
            failed.append(f"{name}: {error}")

    threads = [threading.Thread(target=work, name=name) for name in ("student", "teacher")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed, failed
    report(done=True)


def scattered():
    """A name that is given once is not numbered, as the message of a mismatch shows."""

    @tf.function
    def scatter(x):
        return hvd.reducescatter(x, op=hvd.Sum, name="rows")

    try:
        scatter(tf.ones([size, 1 + rank]))
    except tf.errors.FailedPreconditionError as error:
        assert "rows" in error.message and "rows#2" not in error.message, error.message
        report(done=True)


def _resident() -> int:
    pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def many_names():
    """A name for each step; each still names its own collective in an error."""
    x = tf.ones([4])

    def steps(first, last):
        for step in range(first, last):
            assert float(_summed(x, f"loss_{step}")[0]) == size

    steps(0, 500)
    before = _resident()
    steps(500, 2500)
    grown = _resident() - before
    with raises(tf.errors.FailedPreconditionError, "'of rank 0'", "'of rank 1'"):
        _summed(x, f"of rank {rank}")
    hvd.barrier(name="after the error")
    names = hvd.allgather_object("gathered", name=f"objects {size}")
    assert names == ["gathered"] * size
    with warnings.catch_warnings(record=True) as caught, tf.GradientTape(persistent=True) as tape:
        warnings.simplefilter("always")
        tape.watch(x)
        for step in range(800):  # with those from before, 1,000 names that a tape needs
            y = _summed(x, f"on tape {step}")
        assert tape.gradient(y, x).numpy().tolist() == [size] * 4
    (told,) = [str(one.message) for one in caught if "distinct names" in str(one.message)]
    assert "on tape" in told, told
    report(grown=grown)


def threads_that_differ_in_digits():
    """Each rank starts them in another order, and has started another number of threads before."""
    for _ in range(rank):
        threading.Thread(target=lambda: None).start()
    results, begin = {}, threading.Barrier(2)

    def work(number):
        begin.wait(60)
        for step in range(20):
            results[number, step] = float(hvd.allreduce(tf.constant(float(number)), op=hvd.Sum))

    threads = [threading.Thread(target=work, args=(n,), name=f"t{n}") for n in (0, 1)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for thread in threads if rank else threads[::-1]:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert [str(one.message) for one in caught if "threads" in str(one.message)] == []
    assert results == {(n, step): float(n * size) for n in (0, 1) for step in range(20)}
    report(done=True)
