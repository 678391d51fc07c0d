"""Makes random programs, as Python source, from a seed alone: `generate.py 17` prints one.

Programs are what a user could write: nested tf.functions, with and without variables, with and
without jit_compile; loops, branches, tapes, threads and sessions. See support.py for what they
compute. The same source runs on every rank.
"""

import argparse
import dataclasses
import random
from collections.abc import Callable

from emit import Statements

# What the statements of each kind of program are, by weight.
KINDS = {
    "nested": {"collective": 4, "call": 5},
    "loops": {"collective": 3, "while": 3, "for": 2, "unrolled": 1, "map": 2, "call": 2},
    "branches": {"collective": 3, "cond": 2, "if": 2, "case": 2, "call": 2},
    "tapes": {"collective": 2, "tape": 4, "through": 1, "call": 3, "cond": 1, "while": 1},
    "jit": {"collective": 4, "call": 4, "tape": 2, "while": 1, "cond": 1, "unrolled": 1},
    "eager": {"collective": 3, "call": 3, "tape": 1, "cond": 1, "for": 1, "through": 1},
    "threads": {"collective": 4, "call": 3, "while": 1, "cond": 1, "for": 1},
    "sessions": {"collective": 5, "call": 2, "while": 2, "cond": 1, "map": 1},
    "mixed": {
        "collective": 5,
        "call": 4,
        "tape": 2,
        "through": 1,
        "while": 1,
        "for": 1,
        "unrolled": 1,
        "map": 1,
        "cond": 1,
        "if": 1,
        "case": 1,
    },
}
# How many functions are compiled.
JIT = {"jit": 0.6, "mixed": 0.25, "threads": 0.15, "eager": 0.15, "sessions": 0.25}
STEPS = 3

HEADER = """\
import tensorflow as tf
from support import (
    check,
    in_threads,
    merge,
    merge_rows,
    nothing,
    sent,
    shuffled,
    splits,
    value,
    zero,
)

import smddp_tf as hvd
"""


@dataclasses.dataclass
class Program:
    """A program's source, and how many checks each step makes."""

    seed: int
    kind: str
    source: str
    counts: list


def kind_of(seed: int) -> str:
    """The kinds take turns."""
    return list(KINDS)[seed % len(KINDS)]


@dataclasses.dataclass(frozen=True)
class Scope:
    """Where a statement stands."""

    turn: str = "turn"
    depth: int = 0
    style: str = "eager"  # "function": AutoGraph converts; "graph": nothing does
    jit: bool = False
    thread: str = ""  # the beginning of names

    def inner(self, **changes):
        return dataclasses.replace(self, depth=self.depth + 1, **changes)


class Generator(Statements):
    """Grows one program; the statements are those of emit.py."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seed, self.kind = seed, kind_of(seed)
        self.sites = self.functions = 0
        self.budget = self.random.randint(4, 9)  # sites; a block always gets one
        self.declarations: list = []
        self.pool: list = []
        self.variables: list = []
        self.may_compile = True
        self.old_loops = self.kind == "sessions" and self.chance(0.5)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def site(self) -> int:
        self.sites += 1
        return self.sites

    def block(self, scope: Scope, least=1, most=3) -> tuple:
        """Some statements. Returns (lines, names of their records, checks of a turn)."""
        lines, records, counters = [], [], []
        earlier = None
        for _ in range(self.random.randint(least, most)):
            weights = dict(KINDS[self.kind])
            if self.sites >= self.budget and len(records) >= least:
                break
            if scope.depth >= 3 or self.sites >= self.budget:
                weights = {"collective": 1}
            if scope.style == "graph":  # without AutoGraph, Python's if and for take no tensors
                weights.pop("if", None)
                weights.pop("for", None)
            kind = self.random.choices(list(weights), list(weights.values()))[0]
            added, record, counter = getattr(self, f"{kind}_statement")(scope, earlier)
            earlier = self.result if kind == "collective" else None
            lines += added
            records.append(record)
            counters.append(counter)
        return lines, records, lambda turn: sum(counter(turn) for counter in counters)

    def function(self, scope: Scope) -> tuple:
        """A new tf.function for that scope, or one that is there. Returns (name, its counter)."""
        fitting = [one for one in self.pool if one["key"] == self._callers(scope)]
        done = [one for one in fitting if one["calls"] < 3]
        if done and self.chance(0.3):
            chosen = self.random.choice(done)
        else:
            chosen = self._new_function(scope)
        chosen["calls"] += 1
        return chosen["name"], chosen["counter"], chosen["calls"]

    def _in_old_loop(self, scope: Scope) -> bool:
        return self.old_loops and scope.style == "graph" and scope.depth > 0

    def _callers(self, scope: Scope) -> tuple:
        """Which scopes may call the functions made for this one."""
        return scope.jit, scope.thread, self._in_old_loop(scope)

    def _new_function(self, scope: Scope) -> dict:
        self.functions += 1
        name = f"f{self.functions}"
        # TensorFlow cannot call compiled functions in TF1's loops.
        may_compile = self.may_compile and not self._in_old_loop(scope)
        jit = scope.jit or self.chance(JIT.get(self.kind, 0) if may_compile else 0)
        inner = scope.inner(turn="turn", jit=jit, style="function")
        lines, records, counter = self.block(inner, least=self.random.choice([1, 2]))
        use = self.random.choice(["", "read", "assign"])
        if jit and self.kind == "sessions" and use == "assign":
            # A compiled function locks what it assigns until it ends, so two calls of it, which a
            # session runs in any order, can wait for each other.
            use = "read"
        if use:
            lines = self.with_variable(lines, use)
        self.declare_function(name, jit, lines, records)
        made = {"key": self._callers(scope), "name": name, "counter": counter, "calls": 0}
        self.pool.append(made)
        return made

    def declare_function(self, name, jit, lines, records) -> None:
        """Writes a tf.function."""
        decorator = "@tf.function(jit_compile=True)" if jit else "@tf.function"
        body = [*lines, f"return merge({', '.join(records)})"]
        self.declarations += [decorator, f"def {name}(turn):", *_indented(body), ""]

    def make(self) -> Program:
        """The program."""
        make = {"threads": self._threads, "sessions": self._session}.get(self.kind, self._main)
        lines, counter = make()
        text = [f"# Program {self.seed}, of kind {self.kind!r}.", HEADER, *lines]
        counts = counter if isinstance(counter, list) else _counts(counter)
        return Program(self.seed, self.kind, "\n".join(text) + "\n", counts)

    def _main(self):
        jit = self.chance(JIT.get(self.kind, 0) / 2)
        graph = self.kind != "eager" and (jit or self.chance(0.7))
        style = "function" if graph else "eager"
        lines, records, counter = self.block(Scope(style=style, jit=graph and jit), least=2, most=4)
        if graph:
            self.declare_function("main", jit, lines, records)
        else:
            body = [*lines, f"return merge({', '.join(records)})"]
            self.declarations += ["def main(turn):", *_indented(body), ""]
        return [*self.variables, "", *self.declarations, "", *_RUN], counter

    def _threads(self):
        threads = self.random.randint(2, 4)
        counters, names, jit = [], [], 0
        for i in range(threads):
            # Compiled code holds one of TensorFlow's threads while it waits, of which there are as
            # many as cores: two that wait could keep a third from running.
            self.may_compile = jit < 1
            before = len(self.declarations)
            self.budget = self.sites + self.random.randint(2, 4)
            style = self.random.choice(["eager", "function"])
            scope = Scope(style=style, thread=f"thread{i}.")
            lines, records, counter = self.block(scope, least=2, most=3)
            body = [*lines, f"return merge({', '.join(records)})"]
            decorator = ["@tf.function"] if style == "function" else []
            self.declarations += [*decorator, f"def thread{i}(turn):", *_indented(body), ""]
            jit += any("jit_compile" in line for line in self.declarations[before:])
            names.append(f"thread{i}")
            counters.append(counter)
        main = ["def main(turn):", f"    return in_threads(turn, {', '.join(names)})", ""]
        lines = [*self.variables, "", *self.declarations, *main, "", *_RUN]
        return lines, lambda turn: sum(counter(turn) for counter in counters)

    def _session(self):
        scope = Scope(style="graph")
        lines, records, counters = [], [], []
        for _ in range(self.random.randint(3, 5)):
            added, names, counter = self.block(scope, most=1)
            lines += added
            records += names
            counters.append(counter)
        fetches = []
        for _ in range(STEPS):
            many = self.random.randint(1, len(records))
            fetches.append(sorted(self.random.sample(range(len(records)), many)))
        build = [
            "turn = tf.compat.v1.placeholder(tf.int32, [])",
            *self.variables,
            *self.declarations,
            *lines,
            f"records = [{', '.join(records)}]",
            "start = [tf.compat.v1.global_variables_initializer()]",
            "start.append(hvd.broadcast_global_variables(0))",
        ]
        text = [
            "tf.compat.v1.disable_control_flow_v2()" if self.old_loops else "",
            "graph = tf.Graph()",
            "with graph.as_default():",
            *_indented(build),
            "tf.compat.v1.enable_control_flow_v2()",
            "config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=16)",
            *(_OPTIMIZE_NOTHING if self.chance(0.3) else []),
            "session = tf.compat.v1.Session(graph=graph, config=config)",
            "for op in start:",
            "    session.run(op)",
            f"FETCHES = {fetches}",
            "",
            "",
            "def run(step):",
            "    wanted = [records[i] for i in shuffled(FETCHES[step], step)]",
            "    return merge(*session.run(wanted, {turn: step + 1}))",
        ]
        counts = [sum(counters[i](step + 1) for i in fetches[step]) for step in range(STEPS)]
        return text, counts


# TensorFlow then runs functions as they are instead of inlining them.
_OPTIMIZE_NOTHING = [
    "config.graph_options.rewrite_options.disable_meta_optimizer = True",
    "config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0",
]
_RUN = ["def run(step):", "    return main(tf.constant(step + 1))"]


def _indented(lines: list) -> list:
    return [f"    {line}" if line else line for line in lines]


def _counts(counter: Callable) -> list:
    return [counter(step + 1) for step in range(STEPS)]


def generate(seed: int) -> Program:
    """The program of a seed."""
    return Generator(seed).make()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    program = generate(parser.parse_args().seed)
    print(program.source + f"# checks of each step: {program.counts}")
