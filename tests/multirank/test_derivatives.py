"""Random programs that differentiate through collectives give what a model of the job gives.

`make soak` runs more, each in every way. A failure prints the program and what runs it again.
"""

import sys

import launcher
import pytest

DERIVATIVES = launcher.ROOT / "tests" / "derivatives"
PROGRAMS = 12

# Each collective, three times differentiated: gradients are collectives with gradients again.
THRICE = """
import tensorflow as tf


def build(P):
    def thrice(f, x):
        with tf.GradientTape() as third:
            third.watch(x)
            with tf.GradientTape() as second:
                second.watch(x)
                with tf.GradientTape() as first:
                    first.watch(x)
                    y = P.total(tf.sin(f(x * x * P.scalar(1))) * P.scalar(2))
                once = P.grad(first, y, [x])
                squares = P.total(once * once * P.scalar(3))
            twice = P.grad(second, squares, [x])
            last = P.total(tf.sin(twice) * P.scalar(4))
        return [once, twice, P.grad(third, last, [x])]

    def main(x, t):
        forms = [
            lambda x: P.allreduce(x, "Sum"),
            lambda x: P.allreduce(x, "Average"),
            lambda x: tf.add_n(P.grouped([x, 2 * x])),
            lambda x: P.broadcast(x, 1),
            lambda x: P.subset(x, 1),
            lambda x: P.gather(x),
            lambda x: P.exchange(x),
            lambda x: P.scatter(x, "Sum"),
            lambda x: P.scatter(x, "Average"),
            lambda x: P.slices(x, t, "Sum"),
            lambda x: P.slices(x, t, "Average"),
        ]
        return [one for form in forms for one in thrice(form, x)]

    return main, []
"""
WRONG = """
def build(P):
    def main(x, t):
        return [x * (1.0 if P.model else 2.0)]

    return main, []
"""


@pytest.fixture
def programs(monkeypatch):
    """The modules of tests/derivatives, by name; names are other folders' too."""
    monkeypatch.syspath_prepend(str(DERIVATIVES))
    mine = {path.stem for path in DERIVATIVES.glob("*.py")}
    kept = {name: sys.modules.pop(name) for name in mine & set(sys.modules)}
    import grammar
    import soak

    yield grammar, soak
    for name in mine:
        sys.modules.pop(name, None)
    sys.modules.update(kept)


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.thorough), 3])
def test_random_programs(programs, ranks):
    """Each in one of its ways; all ways are among them."""
    _, soak = programs
    todo = []
    for seed in range(PROGRAMS // 2 * (ranks - 2), PROGRAMS // 2 * (ranks - 1)):
        ways = soak.ways_of(seed)
        todo.append(ways[seed % len(ways)])
    verdicts = []
    for seed, way, verdict, text in soak.run_on(todo, ranks):
        assert verdict == "right", soak.describe(seed, way, ranks, verdict, text)
        verdicts.append([seed, way])
    assert verdicts == todo


@pytest.mark.thorough
def test_thrice(programs, python):
    """Every collective's gradient, and the next two, in functions and compiled."""
    _, soak = programs
    found = list(soak.run_on([[0, "function"], [0, "jit"]], 2, {0: THRICE}, python))
    assert [verdict for _, _, verdict, _ in found] == ["right", "right"], found


def test_a_wrong_number_is_told(programs):
    """With the ranks' numbers and those of the model."""
    _, soak = programs
    [(_, _, verdict, text)] = soak.run_on([[0, "mixed"]], 2, {0: WRONG})
    assert verdict == "wrong"
    assert "rank 1: wrong step 0, result 0: [" in text


def test_a_seed_makes_one_program(programs):
    """The same on every rank, and whatever was made before."""
    grammar, _ = programs
    for seed in range(100):
        source, _ = grammar.generate(seed)
        assert source == grammar.generate(seed)[0]
        compile(source, f"program{seed}", "exec")
