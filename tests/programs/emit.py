"""The statements of generated programs.

Each method returns (lines of source, name of the record, checks): checks(turn) is how many checks
the statement makes when it runs at that turn.
"""

import dataclasses


def indented(lines: list) -> list:
    """The lines, one level deeper."""
    return [f"    {line}" if line else line for line in lines]


class Statements:
    """Mixed into the Generator, which chooses among them."""

    result = ""  # of the last collective

    def with_variable(self, lines: list, use: str) -> list:
        """Lets a function capture a variable of its own, which is 1.0."""
        name = f"one{len(self.variables)}"
        # In a session 1.0 is what the broadcast brings.
        start = "1.0 + hvd.rank()" if self.kind == "sessions" else "1.0"
        self.variables.append(f"{name} = tf.Variable({start})")
        changed = [line.replace("value(", f"{name} * value(", 1) for line in lines]
        return [*([f"{name}.assign({name} * 1.0)"] if use == "assign" else []), *changed]

    def weights(self) -> str:
        """A variable that gradients are of."""
        name = f"weights{len(self.variables)}"
        self.variables.append(f"{name} = tf.Variable(tf.ones([12]))")
        return name

    def value(self, scope, site: int, earlier=None, elements: int | str = 12) -> str:
        """The source of an input; perhaps late, perhaps after an earlier result."""
        late = self.random.choices(["", "busy", "sleep"], [5, 3, 0 if scope.jit else 2])[0]
        more = f", {late!r}" if late else ""
        more += f", elements={elements}" if elements != 12 else ""
        text = f"value({site}, {scope.turn}{more})"
        return f"{text} + zero({earlier})" if earlier and self.chance(0.3) else text

    def collective_statement(self, scope, earlier):
        """One collective, mostly an allreduce, so that many could be taken for one another."""
        site = self.site()
        how = self.random.choices(
            ["sum", "grouped", "max", "root0", "root1", "gather", "scatter", "alltoall", "splits"],
            [10, 1, 1, 1, 1, 1, 1, 1, 2],
        )[0]
        if how == "splits" and scope.jit:  # the shape of its result is not known
            how = "alltoall"
        if how == "grouped":
            return self._grouped(scope, site)
        elements = 6000 if how == "sum" and self.chance(0.1) else 12
        if how == "splits":
            elements = f"sent({site})"
        x = self.value(scope, site, earlier, elements)
        name = f', name="{scope.thread}s{site}"' if scope.thread else ""
        call = {
            "sum": f"hvd.allreduce({x}, op=hvd.Sum{name})",
            "max": f"hvd.allreduce({x}, op=hvd.Max{name})",
            "gather": f"hvd.allgather({x}{name})",
            "scatter": f"hvd.reducescatter({x}, op=hvd.Sum{name})",
            "alltoall": f"hvd.alltoall({x}{name})",
            "splits": f"hvd.alltoall({x}, splits=splits({site})[hvd.rank()]{name})[0]",
        }.get(how) or f"hvd.broadcast({x}, {how[4:]}{name})"
        self.result = f"a{site}"
        more = f", {how!r}" if how != "sum" else ""
        more += f", elements={elements}" if elements != 12 else ""
        lines = [f"a{site} = {call}", f"r{site} = check({site}, {scope.turn}, a{site}{more})"]
        return lines, f"r{site}", lambda turn: 1

    def _grouped(self, scope, site: int):
        other = self.site()
        name = f', name="{scope.thread}s{site}"' if scope.thread else ""
        inputs = f"{self.value(scope, site)}, {self.value(scope, other)}"
        self.result = f"a{site}"
        first, second = (f"check({one}, {scope.turn}, a{one})" for one in (site, other))
        lines = [
            f"a{site}, a{other} = hvd.grouped_allreduce([{inputs}], op=hvd.Sum{name})",
            f"r{site} = merge({first}, {second})",
        ]
        return lines, f"r{site}", lambda turn: 2

    def call_statement(self, scope, _):
        """A call of another tf.function."""
        number = self.site()
        name, counter, call = self.function(scope)
        line = f"r{number} = {name}({scope.turn} * 4 + {call})"
        return [line], f"r{number}", lambda turn: counter(turn * 4 + call)

    def tape_statement(self, scope, _):
        """Gradients through a distributed tape."""
        count = self.random.randint(1, 3)
        sites = [self.site() for _ in range(count)]
        weights = [self.weights() for _ in sites]
        products = [
            f"tf.reduce_sum({w} * {self.value(scope, site)})"
            for site, w in zip(sites, weights, strict=True)
        ]
        first = sites[0]
        grads = ", ".join(f"g{site}" for site in sites)
        checks = ", ".join(f"check({site}, {scope.turn}, g{site})" for site in sites)
        lines = [
            f"with tf.GradientTape() as tape{first}:",
            f"    loss{first} = " + " + ".join(products),
            f"tape{first} = hvd.DistributedGradientTape(tape{first}, op=hvd.Sum)",
            f"[{grads}] = tape{first}.gradient(loss{first}, [{', '.join(weights)}])",
            f"r{first} = merge({checks})",
        ]
        return lines, f"r{first}", lambda turn: count

    def through_statement(self, scope, _):
        """The gradient of an allreduce, which is one too."""
        site, weights = self.site(), self.weights()
        name = f', name="{scope.thread}s{site}"' if scope.thread else ""
        lines = [
            f"with tf.GradientTape() as tape{site}:",
            f"    y{site} = hvd.allreduce({weights} * 1.0, op=hvd.Sum{name})",
            f"    loss{site} = tf.reduce_sum(y{site} * {self.value(scope, site)})",
            f"r{site} = check({site}, {scope.turn}, tape{site}.gradient(loss{site}, {weights}))",
        ]
        return lines, f"r{site}", lambda turn: 1

    # ---- loops ----

    def _loop(self, scope, **changes):
        number, times = self.site(), self.random.randint(2, 3)
        inner = scope.inner(turn=f"turn{number}", **changes)
        lines, records, counter = self.block(inner, most=2)
        lines = [f"turn{number} = {scope.turn} * 4 + i{number}", *lines]

        def checks(turn):
            return sum(counter(turn * 4 + i) for i in range(times))

        return number, times, lines, ", ".join(records), checks

    def while_statement(self, scope, _):
        """tf.while_loop whose iterations need nothing of each other."""
        style = "graph" if scope.style == "graph" else scope.style
        number, times, lines, records, checks = self._loop(scope, style=style)
        parallel = self.random.choice([1, 10])
        text = [
            f"def body{number}(i{number}, record{number}):",
            *indented(lines),
            f"    return i{number} + 1, merge(record{number}, {records})",
            "",
            f"_, r{number} = tf.while_loop(",
            f"    lambda i, _: i < {times}, body{number}, (tf.constant(0), nothing()),",
            f"    parallel_iterations={parallel},",
            ")",
        ]
        return text, f"r{number}", checks

    def for_statement(self, scope, _):
        """Python's for over a tensor: AutoGraph makes a loop of it."""
        number, times, lines, records, checks = self._loop(scope)
        text = [
            f"r{number} = nothing()",
            f"for i{number} in tf.range({times}):",
            *indented([*lines, f"r{number} = merge(r{number}, {records})"]),
        ]
        return text, f"r{number}", checks

    def unrolled_statement(self, scope, _):
        """Python's for over numbers, which TensorFlow does not see."""
        number, times, lines, records, checks = self._loop(scope)
        text = [
            f"r{number} = nothing()",
            f"for i{number} in range({times}):",
            *indented([*lines, f"r{number} = merge(r{number}, {records})"]),
        ]
        return text, f"r{number}", checks

    def map_statement(self, scope, _):
        """tf.map_fn."""
        if scope.style == "eager":
            # TensorFlow converts the function, and fails at tf.while_loop within Python's for.
            scope = dataclasses.replace(scope, style="graph")
        number, times, lines, records, checks = self._loop(scope)
        text = [
            f"def row{number}(i{number}):",
            *indented([*lines, f"return merge({records})"]),
            "",
            f"r{number} = merge_rows(",
            f"    tf.map_fn(row{number}, tf.range({times}), fn_output_signature=tf.float64)",
            ")",
        ]
        return text, f"r{number}", checks

    # ---- branches; all ranks take the same ----

    def _branches(self, scope, count: int):
        number = self.site()
        made = [self.block(scope.inner(), most=2) for _ in range(count)]
        bodies = [(lines, ", ".join(records)) for lines, records, _ in made]

        def checks(turn):
            return made[turn % count][2](turn)

        return number, bodies, checks

    def _functions_of(self, number: int, bodies) -> list:
        text = []
        for i, (lines, records) in enumerate(bodies):
            text.append(f"def branch{number}_{i}():")
            text += indented([*lines, f"return merge({records})"])
            text.append("")
        return text

    def cond_statement(self, scope, _):
        """tf.cond."""
        number, bodies, checks = self._branches(scope, 2)
        text = self._functions_of(number, bodies)
        choice = f"{scope.turn} % 2 == 0"
        if scope.style != "graph" or self.chance(0.5):
            choice = f"tf.equal({scope.turn} % 2, 0)"
        else:
            choice = f"tf.less({scope.turn} % 2, 1)"
        text.append(f"r{number} = tf.cond({choice}, branch{number}_0, branch{number}_1)")
        return text, f"r{number}", checks

    def if_statement(self, scope, _):
        """Python's if on a tensor: AutoGraph makes a cond of it.

        Without AutoGraph's loops in it: their variables would have to exist in both branches.
        """
        scope = dataclasses.replace(scope, style="graph")
        number, ((yes, first), (no, second)), checks = self._branches(scope, 2)
        text = [
            f"if {scope.turn} % 2 == 0:",
            *indented([*yes, f"r{number} = merge({first})"]),
            "else:",
            *indented([*no, f"r{number} = merge({second})"]),
        ]
        return text, f"r{number}", checks

    def case_statement(self, scope, _):
        """tf.switch_case."""
        count = self.random.randint(2, 3)
        number, bodies, checks = self._branches(scope, count)
        text = self._functions_of(number, bodies)
        names = ", ".join(f"branch{number}_{i}" for i in range(count))
        text.append(f"r{number} = tf.switch_case({scope.turn} % {count}, [{names}])")
        return text, f"r{number}", checks
