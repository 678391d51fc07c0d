"""What ranks do in test_once_per_node.py."""

import pickle

from harness import OUT, rank, report

import smddp_tf as hvd


def results():
    """The function runs on two of four ranks; each node has its own result."""

    def prepare(text, suffix):
        (OUT / f"prepared{rank}").touch()
        return f"{text} {rank}{suffix}"

    report(got=hvd.once_per_node(prepare, "of", suffix="!"), node=hvd.cross_rank())


def failures():
    """An error reaches all; a later call works."""

    def fails_on_the_second_node():
        if hvd.cross_rank() == 1:
            raise OSError("disk full")

    try:
        hvd.once_per_node(fails_on_the_second_node)
        said = ""
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    try:
        hvd.once_per_node(lambda: (n for n in range(3)))
        unpicklable = ""
    except (pickle.PicklingError, TypeError) as error:
        unpicklable = type(error).__name__
    report(said=said, unpicklable=unpicklable, after=hvd.once_per_node(lambda: 7))
