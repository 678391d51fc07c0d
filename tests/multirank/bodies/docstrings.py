"""What ranks do in test_docstrings.py."""

import doctest
import inspect
import os

import harness
import numpy as np
import tensorflow as tf
from harness import report

import smddp_tf
import smddp_tf.keras

# A set of all ranks exists already, so these need a second rank.
OF_TWO_RANKS = ("add_process_set", "remove_process_set")
# tests/launch has the example of run(), which is not for ranks.
LEFT_OUT = ("__version__", "run")


def documented():
    """(name, object, module) of the public names; once for an object that has several."""
    found = {}
    for module in (smddp_tf, smddp_tf.keras):
        for name in module.__all__:
            if name not in LEFT_OUT:
                one = getattr(module, name)
                found.setdefault(id(one), (name, one, module))
    return list(found.values())


def examples(of_two_ranks=False):
    """Runs them; reports how many there were, and what differs."""
    os.chdir(harness.OUT)
    runner = doctest.DocTestRunner(verbose=False)
    without, output = [], []
    for name, one, module in documented():
        if (name in OF_TWO_RANKS) != of_two_ranks:
            continue
        smddp_tf.init()  # shutdown's example has left the job
        text = inspect.getdoc(one) or ""
        given = {"hvd": module, "np": np, "tf": tf}
        test = doctest.DocTestParser().get_doctest(text, given, name, None, None)
        if not test.examples or "Examples:" not in text:
            without.append(name)
        runner.run(test, out=output.append)
    report(without=without, run=runner.tries, differ="".join(output))
