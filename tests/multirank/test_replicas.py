"""Ranks that train on several devices each."""

from bodies import replicas


def test_mirrored_strategy(keras_job):
    """2 ranks with two devices each, by fit() and in a loop, train as one process with one."""
    keras_job(replicas.fit_and_loop, 2).check(2)
