"""run_if(): a branch that is seldom taken has the values of its place in the program."""

import gc

import numpy as np
import pytest
import tensorflow as tf

from smddp_tf._src.graph.branches import run_if

COUNT, SHAPE = 20, (40, 30)


def _variables(count=COUNT):
    return [tf.Variable(tf.zeros(SHAPE)) for _ in range(count)]


class Program:
    """Writes weights, a branch that reads and writes them if it is due, and reads them."""

    def __init__(self):
        self.weights, self.kept = _variables(), _variables()
        self.step = tf.Variable(0, dtype=tf.int64)

    def exchange(self):
        for weight, kept in zip(self.weights, self.kept, strict=True):
            kept.assign_add(2 * weight)
            weight.assign(kept + 1)

    def once(self):
        self.step.assign_add(1)
        for weight in self.weights:
            weight.assign(tf.fill(SHAPE, tf.cast(self.step, tf.float32)))
        for kept in self.kept:
            kept.assign(tf.fill(SHAPE, 10.0))
        run_if(tf.equal(self.step % 2, 0), self.exchange)
        for weight in self.weights:
            weight.assign_add(tf.ones(SHAPE))
        return [tf.convert_to_tensor(one) for one in self.weights + self.kept]

    def wanted(self, step):
        """What once() returns as the step's number `step`."""
        kept = 10.0 + (2 * step if step % 2 == 0 else 0)
        weight = kept + 2 if step % 2 == 0 else step + 1
        return [weight] * COUNT + [kept] * COUNT

    def check(self, run, steps=30):
        """run() makes a step, each of which has all values that a program has in its order."""
        for step in range(1, steps + 1):
            found = [np.unique(one) for one in run()]
            assert all(len(one) == 1 for one in found), (step, found)
            assert [one.item() for one in found] == self.wanted(step), step


@pytest.mark.parametrize("jit", [False, True])
def test_in_a_function(jit):
    """Also in the graphs of XLA, where it is a plain tf.cond."""
    program = Program()
    program.check(tf.function(program.once, jit_compile=jit), steps=4 if jit else 30)


def test_eagerly():
    """As an if."""
    program = Program()
    program.check(program.once, steps=4)


def test_in_nested_functions():
    """The call with the branch comes after what other functions write, and before what they read.

    A function has only the packed handles of variables that it uses in no other way.
    """
    program = Program()

    @tf.function
    def write():
        program.step.assign_add(1)
        for weight, kept in zip(program.weights, program.kept, strict=True):
            weight.assign(tf.fill(SHAPE, tf.cast(program.step, tf.float32)))
            kept.assign(tf.fill(SHAPE, 10.0))

    @tf.function
    def branch():
        run_if(tf.equal(program.step % 2, 0), program.exchange)

    @tf.function
    def add():
        for weight in program.weights:
            weight.assign_add(tf.ones(SHAPE))

    @tf.function
    def once():
        write()
        branch()
        add()
        return [tf.convert_to_tensor(one) for one in program.weights + program.kept]

    program.check(once)


def test_in_a_loop():
    """Each pass of a loop has its branch in its place; so several steps are one call."""
    program = Program()

    @tf.function
    def steps():
        for _ in tf.range(6):
            values = program.once()
        del values
        return [tf.convert_to_tensor(one) for one in program.weights + program.kept]

    for calls in (1, 2, 3):
        found = [np.unique(one).tolist() for one in steps()]
        assert found == [[one] for one in program.wanted(6 * calls)]


def test_in_branches():
    """A branch in a branch, where both use a variable that is nowhere else."""
    inner, outer = tf.Variable(0), tf.Variable(0)
    turn = tf.Variable(0)

    @tf.function
    def step():
        turn.assign_add(1)

        def often():
            outer.assign_add(1)
            run_if(tf.equal(turn % 4, 0), lambda: inner.assign_add(outer))

        run_if(tf.equal(turn % 2, 0), often)
        return turn.read_value()

    for _ in range(12):
        step()
    assert (outer.numpy(), inner.numpy()) == (6, 2 + 4 + 6)


def test_the_branch_lives_as_long_as_the_function():
    """What was traced is not collected before it first runs."""
    program = Program()
    step = tf.function(program.once)
    step()
    gc.collect()
    program.step.assign(0)
    program.check(step, steps=4)


def test_few_tensors_enter_the_branch():
    """However many variables it uses, which is what a step without it pays for."""
    program = Program()
    graph = tf.function(program.once).get_concrete_function().graph
    (branch,) = [op for op in graph.get_operations() if op.type in ("If", "StatelessIf")]
    assert len(branch.inputs) <= 3, branch
