"""The statements of generated programs.

Each method returns (lines of source, the name of the vector that they make, or None).
"""

import dataclasses


def indented(lines: list) -> list:
    """The lines, one level deeper."""
    return [f"    {line}" if line else line for line in lines]


class Statements:
    """Mixed into the Generator, which chooses among them."""

    # ---- statements: (lines, the name of what they made) ----

    def local_statement(self, scope):
        y = f"y{self.site()}"
        return [f"{y} = {self.expression(scope)}"], y

    def collective_statement(self, scope):
        y = f"y{self.site()}"
        return [f"{y} = {self.collective(scope)}"], y

    def unused_statement(self, scope):
        return [self.collective(scope)], None

    def stop_statement(self, scope):
        y = f"y{self.site()}"
        a, b = self.pick(scope), self.pick(scope)
        return [f"{y} = tf.stop_gradient({a}) + {b} * 0.5"], y

    def late_statement(self, scope):
        site = self.site()
        return [f"y{site} = P.late({self.pick(scope)}, {site})"], f"y{site}"

    def assign_statement(self, scope):
        v, a = self.variable(), self.pick(scope)
        return [f"{v}.assign(tf.sin({v} + tf.stop_gradient({a})))"], None

    def control_statement(self, scope):
        y = f"y{self.site()}"
        first, second = self.collective(scope), self.collective(scope)
        return [f"with tf.control_dependencies([{first}]):", f"    {y} = {second}"], y

    # ---- functions ----

    def options(self) -> str:
        found = []
        if self.jit and self.chance(0.4):
            found.append("jit_compile=True")
        if self.chance(0.15):
            found.append("reduce_retracing=True")
        return ", ".join(found)

    def inline_statement(self, scope):
        """A function in a function; it captures tensors of the one around it."""
        n = self.site()
        autograph = not scope.rows and self.chance(0.7)
        inner = scope.inner(f"x{n}", autograph=autograph)
        lines, result = self.block(inner)
        options = self.options() + ("" if autograph else ", autograph=False")
        text = [f"@P.function({options.lstrip(', ')})", f"def f{n}(x{n}):"]
        text += indented([*lines, f"return {result}"])
        calls = [f"f{n}({self.pick(scope)})" for _ in range(self.random.choice([1, 1, 2]))]
        return [*text, f"y{n} = {' + '.join(calls)}"], f"y{n}"

    def shared_statement(self, scope):
        """A function that others may call too, once with another shape."""
        key = (scope.pure, scope.variables, scope.orders, scope.vectorized, scope.dynamic)
        fitting = [one for one in self.pool if one[1] == key]
        if fitting and self.chance(0.5):
            name, _, dynamic = self.random.choice(fitting)
        else:
            n, dynamic = self.site(), scope.dynamic or self.chance(0.3)
            name = f"g{n}"
            inner = dataclasses.replace(
                scope.inner(), vectors=("x",), autograph=True, rows=False, dynamic=dynamic
            )
            lines, result = self.block(inner)
            text = [f"@P.function({self.options()})", f"def {name}(x, t):"]
            self.declarations += [*text, *indented([*lines, f"return {result}"]), ""]
            self.pool.append((name, key, dynamic))
        y, a = f"y{self.site()}", self.pick(scope)
        lines = [f"{y} = {name}({a}, t)"]
        if dynamic and not scope.dynamic and self.chance(0.7):
            b = self.pick(scope)
            lines.append(f"{y} = {y} + {name}(tf.concat([{a}, {b}], -1), t)[..., P.K:]")
        return lines, y

    def vectors_function(self, name, scope, *vectors, **changes) -> list:
        changes.setdefault("autograph", False)
        lines, result = self.block(scope.inner(*vectors, **changes))
        return [f"def {name}({', '.join(vectors)}):", *indented([*lines, f"return {result}"])]

    # ---- branches ----

    def condition(self, scope) -> str:
        forms = ["t % 2 == 0", "t > 1", f"P.agreed({self.pick(scope)})"]
        return self.random.choice(forms)

    def cond_statement(self, scope):
        n = self.site()
        text = self.vectors_function(f"true{n}", scope) + self.vectors_function(f"false{n}", scope)
        condition = self.condition(scope)
        return [*text, f"y{n} = tf.cond({condition}, true{n}, false{n})"], f"y{n}"

    def case_statement(self, scope):
        n = self.site()
        text = []
        for i in range(3):
            text += self.vectors_function(f"case{n}_{i}", scope)
        return [*text, f"y{n} = tf.switch_case(t % 3, [case{n}_0, case{n}_1, case{n}_2])"], f"y{n}"

    def if_statement(self, scope):
        n = self.site()
        (yes, a), (no, b) = (self.block(scope.inner(), most=2) for _ in range(2))
        lines = [f"if {self.condition(scope)}:", *indented([*yes, f"y{n} = {a}"])]
        return [*lines, "else:", *indented([*no, f"y{n} = {b}"])], f"y{n}"

    # ---- loops ----

    def while_statement(self, scope):
        n, times = self.site(), self.random.randint(1, 3)
        lines, result = self.block(scope.inner(f"x{n}", autograph=False), most=2)
        condition = f"i < {times}"
        if self.chance(0.2):
            condition = f"tf.logical_and({condition}, P.agreed(x{n}))"
        text = [f"def body{n}(i, x{n}):", *indented([*lines, f"return i + 1, {result}"])]
        options = f"maximum_iterations={self.random.choice([times, 3])}"
        options += f", parallel_iterations={self.random.choice([1, 10])}"
        return [
            *text,
            f"_, y{n} = tf.while_loop(lambda i, x{n}: {condition}, body{n}, "
            f"(tf.constant(0), {self.pick(scope)}), {options})",
        ], f"y{n}"

    def for_statement(self, scope):
        n, times = self.site(), self.random.randint(1, 3)
        lines, result = self.block(scope.inner(f"y{n}"), most=2)
        return [
            f"y{n} = {self.pick(scope)}",
            f"for i{n} in tf.range({times}):",
            *indented([*lines, f"y{n} = 0.5 * y{n} + {result} * tf.cast(i{n} + 1, tf.float64)"]),
        ], f"y{n}"

    def _mapped(self, scope, **changes):
        n = self.site()
        lines, result = self.block(scope.inner(autograph=False, **changes), most=2)
        text = [f"def row{n}(e):", *indented([*lines, f"return ({result}) * e"])]
        return n, text, "tf.constant([1.0, 0.5], tf.float64)"

    def map_statement(self, scope):
        n, text, elements = self._mapped(scope)
        return [*text, f"y{n} = tf.reduce_sum(tf.map_fn(row{n}, {elements}), 0)"], f"y{n}"

    def vectorized_statement(self, scope):
        n, text, elements = self._mapped(scope, pure=True, vectorized=True)
        call = f"P.vectorized_map(row{n}, {elements})"
        return [*text, f"y{n} = tf.reduce_sum({call}, 0)"], f"y{n}"

    def scan_statement(self, scope):
        n = self.site()
        lines, result = self.block(scope.inner(f"x{n}", autograph=False), most=2)
        text = [f"def step{n}(x{n}, e):", *indented([*lines, f"return x{n} + e * ({result})"])]
        start = self.pick(scope)
        elements = "tf.constant([1.0, 0.5], tf.float64)"
        return [*text, f"y{n} = tf.scan(step{n}, {elements}, initializer={start})[-1]"], f"y{n}"

    # ---- differentiation ----

    def sources(self, scope, *more) -> str:
        found = list(more)
        if scope.variables and not scope.rows and not scope.dynamic:
            found += self.random.sample(self.variables, min(len(self.variables), 2))
            if self.tables and self.chance(0.5):
                found.append(self.random.choice(self.tables))
        return ", ".join(found)

    def tape_statement(self, scope):
        n, a = self.site(), self.pick(scope)
        persistent = self.chance(0.2)
        inner = scope.inner(f"x{n}", orders=scope.orders + 1)
        if scope.autograph and self.chance(0.5):
            lines, result = self.block(inner)
        else:
            lines, result = self.block(dataclasses.replace(inner, autograph=scope.autograph))
        inside = [f"tape{n}.watch(x{n})", *lines, f"loss{n} = P.total({result})"]
        text = [f"x{n} = tf.identity({a})"]
        text += [f"with tf.GradientTape(persistent={persistent}) as tape{n}:", *indented(inside)]
        grads = f"P.grad(tape{n}, loss{n}, [{self.sources(scope, f'x{n}')}])"
        if persistent:
            grads += f" + P.grad(tape{n}, loss{n}, [x{n}])"
        return [*text, f"y{n} = {grads}"], f"y{n}"

    def distributed_statement(self, scope):
        n, a, op = self.site(), self.pick(scope), self.random.choice(["Sum", "Average"])
        lines, result = self.block(scope.inner(f"x{n}", orders=scope.orders + 1))
        inside = [f"tape{n}.watch(x{n})", *lines, f"loss{n} = P.total({result})"]
        make = f"P.distributed(tf.GradientTape(), {op!r})"
        text = [f"x{n} = tf.identity({a})", f"with {make} as tape{n}:", *indented(inside)]
        grads = f"P.grad(tape{n}, loss{n}, [{self.sources(scope, f'x{n}')}])"
        return [*text, f"y{n} = {grads}"], f"y{n}"

    def symbolic_statement(self, scope):
        n = self.site()
        text = self.vectors_function(f"f{n}", scope, f"x{n}", orders=scope.orders + 1)
        call = f"y{n}, g{n} = P.symbolic(f{n}, {self.pick(scope)})"
        return [*text, call, f"y{n} = y{n} + g{n}"], f"y{n}"

    def jacobian_statement(self, scope):
        n, a, pfor = self.site(), self.pick(scope), self.chance(0.7)
        lines, result = self.block(scope.inner(f"x{n}", orders=scope.orders + 1), most=2)
        inside = [f"tape{n}.watch(x{n})", *lines, f"j{n} = {result}"]
        text = [f"x{n} = tf.identity({a})", f"with tf.GradientTape(persistent=True) as tape{n}:"]
        call = f"y{n} = P.jacobian(tape{n}, j{n}, x{n}, {pfor})"
        return [*text, *indented(inside), call], f"y{n}"

    def batch_statement(self, scope):
        n, a, b = self.site(), self.pick(scope), self.pick(scope)
        pfor = self.chance(0.7)
        inner = scope.inner(orders=scope.orders + 1, rows=True, autograph=False)
        inner = dataclasses.replace(inner, vectors=(f"x{n}",))
        lines, result = self.block(inner, most=2)
        inside = [f"tape{n}.watch(x{n})", *lines, f"j{n} = {result}"]
        text = [f"x{n} = tf.stack([{a}, {b}], -2)"]
        text.append(f"with tf.GradientTape(persistent=True) as tape{n}:")
        call = f"y{n} = P.batch_jacobian(tape{n}, j{n}, x{n}, {pfor})"
        return [*text, *indented(inside), call], f"y{n}"

    def forward_statement(self, scope):
        n, a = self.site(), self.pick(scope)
        lines, result = self.block(scope.inner(f"x{n}", orders=scope.orders + 1), most=2)
        tangent = f"P.vector({self.site()})"
        text = [f"x{n} = tf.identity({a})"]
        text.append(f"with tf.autodiff.ForwardAccumulator(x{n}, {tangent}) as acc{n}:")
        inside = [*lines, f"j{n} = {result}", f"y{n} = acc{n}.jvp(j{n}, 'zero')"]
        return [*text, *indented(inside)], f"y{n}"

    def recompute_statement(self, scope):
        n = self.site()
        # What it captures has no gradient, and tapes in it record nothing.
        inner = dataclasses.replace(scope, vectors=(), orders=2)
        text = self.vectors_function(f"f{n}", inner, f"x{n}", pure=True, variables=False)
        return [*text, f"y{n} = P.recompute(f{n})({self.pick(scope)})"], f"y{n}"

    def custom_statement(self, scope):
        """A function whose gradient is something else, with collectives of its own."""
        n = self.site()
        inner = scope.inner(f"x{n}", autograph=False, variables=False, pure=True)
        lines, result = self.block(inner, most=2)
        back = scope.inner(f"u{n}", autograph=False, variables=False, pure=True)
        back = dataclasses.replace(back, vectors=(f"u{n}", f"x{n}"))
        back_lines, gradient = self.block(back, most=2)
        text = [f"def back{n}(u{n}):", *indented([*back_lines, f"return {gradient}"])]
        body = [*lines, *text, f"return {result}, back{n}"]
        text = ["@tf.custom_gradient", f"def f{n}(x{n}):", *indented(body)]
        return [*text, f"y{n} = f{n}({self.pick(scope)})"], f"y{n}"
