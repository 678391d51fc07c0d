"""Makes random programs that differentiate through collectives, from a seed alone.

    grammar.py 17      prints one

A program is a function build(P) that returns main(x, t): P is what it computes with (model.py), x
a vector, t an integer that all ranks share. What each statement makes is a vector.
"""

import argparse
import dataclasses
import random

from statements import Statements, indented

WEIGHTS = {
    "local": 3,
    "collective": 6,
    "unused": 1,
    "inline": 2,
    "shared": 2,
    "cond": 1,
    "if": 1,
    "case": 1,
    "while": 1.5,
    "for": 1,
    "map": 1,
    "scan": 0.7,
    "vectorized": 0.8,
    "tape": 3,
    "distributed": 2,
    "symbolic": 1,
    "jacobian": 1,
    "batch": 0.6,
    "forward": 0.6,
    "recompute": 1,
    "custom": 1,
    "assign": 1,
    "control": 0.5,
    "late": 2,
    "stop": 0.4,
}
LIMITS = {"jit": {"uneven", "subset"}}


@dataclasses.dataclass(frozen=True)
class Scope:
    """Where a statement stands."""

    vectors: tuple
    depth: int = 0
    orders: int = 0  # of differentiation around it
    autograph: bool = True  # Python's if and for may have tensors
    pure: bool = False  # may run twice: assigns nothing
    variables: bool = True
    rows: bool = False  # the vectors are of two rows
    dynamic: bool = False  # shapes are not known
    vectorized: bool = False  # by tf.vectorized_map

    def inner(self, *vectors, **changes):
        more = {"depth": self.depth + 1, "vectors": (*self.vectors, *vectors), **changes}
        return dataclasses.replace(self, **more)


class Generator(Statements):
    """Grows one program; the statements are those of statements.py."""

    def __init__(self, seed: int, jit=None) -> None:
        self.random = random.Random(f"derivatives {seed}")
        self.jit = self.chance(0.3) if jit is None else jit
        self.seed, self.sites, self.budget = seed, 0, self.random.randint(6, 22)
        self.declarations, self.variables, self.tables, self.pool = [], [], [], []
        self.sets = True

    def chance(self, probability) -> bool:
        return self.random.random() < probability

    def site(self) -> int:
        self.sites += 1
        return self.sites

    def pick(self, scope) -> str:
        """A vector, mostly one of the last."""
        near = scope.vectors[-3:]
        return self.random.choice(near if self.chance(0.8) else scope.vectors)

    def name(self, site) -> str:
        return f', name="s{site}"' if self.chance(0.4) else ""

    def variable(self) -> str:
        if self.variables and self.chance(0.5):
            return self.random.choice(self.variables)
        self.variables.append(f"v{len(self.variables)}")
        return self.variables[-1]

    def table(self) -> str:
        if not self.tables or self.chance(0.3):
            self.tables.append(f"table{len(self.tables)}")
        return self.random.choice(self.tables)

    # ---- expressions ----

    def expression(self, scope) -> str:
        a, b = self.pick(scope), self.pick(scope)
        forms = [
            f"tf.sin({a})",
            f"{a} * tf.cos({b})",
            f"0.5 * {a} + {b}",
            f"{a} * {b} * 0.25",
            f"{a} * tf.cast(t, tf.float64)",
            f"tf.tanh({a}) + 1.5 * {b}",
        ]
        if not scope.dynamic and not self.jit:
            forms.append(
                f"{a} + tf.random.stateless_uniform([P.K], [t, {self.site()}], dtype=tf.float64)"
            )
        if not scope.rows:
            forms.append(f"{a} * P.scalar({self.site()})")
        if scope.variables and not scope.dynamic and not scope.rows:
            forms += [f"{a} * {self.variable()}"] * 2
            forms.append(f"{a} + P.lookup({self.table()}, t)")
        return self.random.choice(forms)

    def collective(self, scope) -> str:
        site, a, b = self.site(), self.pick(scope), self.pick(scope)
        name, op = self.name(site), self.random.choice(["Sum", "Sum", "Average"])
        forms = {
            f"P.allreduce({a}, {op!r}{name})": 5,
            f"P.allreduce({a}, {op!r}, 0.5, 2.0{name})": 0.5,
            f"tf.add_n(P.grouped([{a}, tf.sin({b})], {op!r}{name}))": 1,
            f"P.broadcast({a}, {self.random.randint(0, 1)}{name})": 1.5,
            f"{a} * P.integers(t{name})": 0.5,
        }
        if not scope.rows:
            forms |= {
                f"P.gather({a}{name})": 1,
                f"P.exchange({a}{name})": 1,
                f"P.scatter({a}, {op!r}{name})": 1,
            }
            if not scope.dynamic:
                forms[f"P.slices({a}, t, {op!r}{name})"] = 0.7
        if not self.jit and not scope.rows:
            forms |= {
                f"P.uneven({a}{name})": 0.7,
            }
        if self.sets:
            forms[f"P.subset({a}, {self.random.randint(0, 1)}, {op!r}{name})"] = 1
        return self.random.choices(list(forms), list(forms.values()))[0]

    def block(self, scope, least=1, most=3) -> tuple:
        """Some statements; the source of what the last made, with a part of the others."""
        lines, made = [], []
        for i in range(self.random.randint(least, most)):
            if self.sites >= self.budget and i >= least:
                break
            kind = self.kind(scope)
            inner = dataclasses.replace(scope, vectors=(*scope.vectors, *made))
            added, y = getattr(self, f"{kind}_statement")(inner)
            lines += added
            made += [y] if y else []
        if not made:
            return lines, self.pick(scope)
        more = f" + 0.5 * {made[0]}" if len(made) > 1 and self.chance(0.5) else ""
        return lines, made[-1] + more

    def kind(self, scope) -> str:
        weights = dict(WEIGHTS)
        if scope.depth >= 4 or self.sites >= self.budget:
            weights = {"local": 1, "collective": 2, "late": 0.5}
        out = set()
        if not scope.autograph or scope.rows:
            out |= {"if", "for"}
        if scope.pure:
            out |= {"assign"}
        if not scope.variables:
            out |= {"assign"}
        if scope.rows:
            out = set(weights) - {
                "local",
                "collective",
                "unused",
                "cond",
                "while",
                "late",
                "stop",
                "inline",
            }
        if scope.dynamic:
            out |= {
                "forward",
                "jacobian",
                "batch",
                "vectorized",
                "assign",
                "while",
                "for",
                "scan",
                "distributed",
            }
        if scope.vectorized:
            out |= {"distributed"}
        if scope.orders >= 2:
            out |= {"tape", "distributed", "symbolic", "jacobian", "batch", "forward"}
        for one in out:
            weights.pop(one, None)
        return self.random.choices(list(weights), list(weights.values()))[0]

    def make(self) -> str:
        scope = Scope(("x",))
        lines, made = [], []
        for _ in range(self.random.randint(2, 4)):
            inner = dataclasses.replace(scope, vectors=("x", *made))
            added, y = getattr(self, f"{self.kind(inner)}_statement")(inner)
            lines += added
            made += [y] if y else []
        made = made or ["x"]
        text = [f"# Program {self.seed}", "import tensorflow as tf", "", "", "def build(P):"]
        inner = [f"{v} = P.variable({1000 + i})" for i, v in enumerate(self.variables)]
        inner += [f"{v} = P.table({2000 + i})" for i, v in enumerate(self.tables)]
        inner += ["", *self.declarations, "def main(x, t):"]
        inner += indented([*lines, f"return [{', '.join(made)}]"])
        inner += ["", f"return main, [{', '.join(self.variables + self.tables)}]"]
        return "\n".join([*text, *indented(inner), ""])


def generate(seed: int):
    """(source, whether all of it compiles with XLA)."""
    generator = Generator(seed)
    return generator.make(), generator.jit


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    print(generate(parser.parse_args().seed)[0])
