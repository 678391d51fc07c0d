"""The names by which ranks compare, and where there is no order match, their collectives."""

import collections
import re
import sys
import threading
import warnings
import weakref

from smddp_tf._src.graph import order
from smddp_tf._src.graph.calls import function_graph
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job.process_sets import ProcessGroup

tf = tensorflow()

_PACKAGE = __name__.split(".")[0] + "."
_COUNTS = "_smddp_tf_counts"
_DATASET = "_smddp_tf_dataset"
_datasets: collections.Counter = collections.Counter()  # functions of tf.data with collectives
# What Python numbers: Thread-5, Thread-5 (target), ThreadPoolExecutor-0_1, prefix_1.
_COUNTED = re.compile(r"(?<=^Thread)-\d+|(?<=^ThreadPoolExecutor)-\d+|_\d+$")
# Default name -> the thread that used it last.
_threads: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


def _thread_title() -> str:
    """Tells the collectives of this thread from those of others; "" in the main thread.

    It is the name of a thread that the script started, with the digits that the script gave it.
    Those that Python counts are left out (Thread-5, and of a pool's thread prefix_0), since ranks
    may have started other threads before, and a pool gives work to whichever is idle. TensorFlow's
    threads have no names. They run the Python code of a tf.data.Dataset (from_generator,
    tf.py_function) while the main thread trains, so that of the function that calls the collective
    is in the title.
    """
    thread = threading.current_thread()
    if thread is threading.main_thread():
        return ""
    if not isinstance(thread, threading._DummyThread):
        return _COUNTED.sub("", thread.name)
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_name}, in a thread of TensorFlow's"


def _warn_of_two_threads(name: str) -> None:
    """Warns once of a default name that two threads use.

    Both may run at the same time, or, as those of a pool, one after the other.
    """
    thread = threading.current_thread()
    other = _threads.get(name, thread)
    _threads[name] = thread
    if other is not thread and other.is_alive():
        warnings.warn(
            f"threads {other.name!r} and {thread.name!r} both have the collective {name!r}; if "
            "they run at the same time, ranks may combine different ones: give the threads names "
            "of their own (threading.Thread(name=...)), or the collectives (name=)",
            stacklevel=2,
        )


def _count(graph, group: ProcessGroup, name: str = "") -> int:
    """Counts the collectives of a process set, or those of a name, in a function's or TF1 graph.

    Each set is counted apart, since other ranks of it may not be in the other sets. In an
    attribute, not a collection: a function's graph begins with those of the graph around it, so
    the number would depend on where the function is traced first.
    """
    if not hasattr(graph, _COUNTS):
        setattr(graph, _COUNTS, collections.Counter())
    counts = getattr(graph, _COUNTS)
    counts[group.id, name] += 1
    return counts[group.id, name]


def unique_name(name: str, group: ProcessGroup) -> str:
    """The name, with a number appended if the graph already uses it, as with TensorFlow's ops."""
    count = _count(function_graph(), group, name)
    return name if count == 1 else f"{name}#{count}"


def given_name(name: str, group: ProcessGroup) -> str:
    """A name that the script gives; a second one in a function gets a number, so that they differ.

    The order of operations in functions of tf.compat.v1.wrap_function() is not fixed, for example.
    In TF1 sessions emit.py numbers them.
    """
    in_function = not tf.executing_eagerly() and not order.in_session()
    return unique_name(name, group) if in_function else name


def _function_name(graph, group: ProcessGroup, thread: str) -> str:
    """The function's name, without what depends on which others the process has traced.

    In a dataset it has the dataset's too, since the training loop may call another function of the
    name at the same time.
    """
    name, dataset = _plain_name(graph), order.dataset_graph()
    if dataset is None:
        return name
    title = _dataset_title(dataset, group, thread)
    return title if dataset is graph else f"{title}/{name}"


def _plain_name(graph) -> str:
    return re.sub(r"_\d+$", "", getattr(graph, "name", ""))


def _dataset_title(graph, group: ProcessGroup, thread: str) -> str:
    """The name of a dataset's function, with a number.

    Several datasets may run functions of one name (lambdas have no other) at the same time, so
    those with collectives are numbered: for each process set, as _count() does, and each thread
    that makes datasets.
    """
    name = _plain_name(graph)
    if not hasattr(graph, _DATASET):
        setattr(graph, _DATASET, {})
    numbers = getattr(graph, _DATASET)
    if group.id not in numbers:
        _datasets[name, group.id, thread] += 1
        numbers[group.id] = _datasets[name, group.id, thread]
    return name if numbers[group.id] == 1 else f"{name}#{numbers[group.id]}"


def site_name(kind: str, group: ProcessGroup) -> str:
    """The default name of a collective: its kind and the call site.

    Collectives of one function and process set are numbered in tracing order, so that ranks that
    run them in different orders get a mismatch instead of wrong results. A cond or loop counts as
    part of the function around it. Eager calls are not numbered, since one rank may have made more
    of them.
    """
    name, thread = kind, _thread_title()
    if not tf.executing_eagerly():
        graph = function_graph()
        function, number = _function_name(graph, group, thread), _count(graph, group)
        name = f"{function}/{kind}.{number}" if function else f"{kind}.{number}"
    if not thread:
        return name
    name = f"{name} ({thread})"
    if not isinstance(threading.current_thread(), threading._DummyThread):
        _warn_of_two_threads(name)
    return name
