"""Local steps between exchanges of weights (DiLoCo), for networks slower than the gradients need.

Each rank's optimizer updates its own weights by its own gradients. After every `sync_every` updates
the ranks average how far each has come since the last exchange, and an outer optimizer takes that
average for a gradient of the weights that they had then, the anchors:

    difference = anchor - weight        on each rank
    anchor     = outer optimizer(anchor, average of the differences)
    weight     = anchor

Anchors and outer optimizers are the same bits on all ranks at any time, weights after an exchange.
With several fragments, each has its turn at a step of its own in the round.
"""

import contextlib
import dataclasses
import importlib
from typing import Any

from smddp_tf._src.collectives.allreduce import allreduce
from smddp_tf._src.collectives.reduction import by_dtype
from smddp_tf._src.gradients.marks import is_marked
from smddp_tf._src.gradients.options import ReduceOptions, whole_number
from smddp_tf._src.gradients.reduce import identity, reduce_gradients
from smddp_tf._src.graph import xla
from smddp_tf._src.graph.branches import run_if
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.order import in_session
from smddp_tf._src.job import rendezvous
from smddp_tf._src.job.process_sets import set_of
from smddp_tf._src.job.reduce_op import Average, Max
from smddp_tf.keras import _distribution, _hooks, _in_flight, _outer_state

tf = tensorflow()


@dataclasses.dataclass(frozen=True)
class Rounds:
    """How often ranks exchange, and what they do with it; arguments of DistributedOptimizer.

    Raises:
      TypeError: an argument has the wrong type.
      ValueError: an argument is out of range.
    """

    sync_every: int
    outer_kind: Any  # a class of optimizers
    outer_config: Any
    package: str  # the Keras of the optimizers
    fragments: int = 1
    delay: int = 0  # fragment_sync_delay
    alpha: float = 0.0  # fragment_update_alpha

    def __post_init__(self) -> None:
        whole_number("sync_every", self.sync_every, 1)
        whole_number("fragments", self.fragments, 1)
        whole_number("fragment_sync_delay", self.delay, 0)
        if self.delay >= self.sync_every:
            raise ValueError(
                f"fragment_sync_delay={self.delay} is not less than sync_every={self.sync_every}: "
                "an exchange has to end before the next one of the same weights begins"
            )
        if not 0.0 <= self.alpha <= 1.0:
            raise ValueError(f"fragment_update_alpha={self.alpha} is not from 0 to 1")
        if self.fragments > self.sync_every:
            raise ValueError(
                f"fragments={self.fragments} is more than sync_every={self.sync_every}; each "
                "fragment has a step of its own in a round"
            )

    def make_optimizer(self) -> Any:
        """A new outer optimizer."""
        return self.outer_kind.from_config(self.outer_config)

    def description(self) -> dict:
        """The options that must be equal on all ranks, as text: argument -> value."""
        config = {name: value for name, value in self.outer_config.items() if name != "name"}
        return {
            "sync_every": str(self.sync_every),
            "fragments": str(self.fragments),
            "fragment_sync_delay": str(self.delay),
            "fragment_update_alpha": str(float(self.alpha)),
            "outer_optimizer": f"{self.outer_kind.__name__} {config}",
        }


def rounds_of(
    optimizer: Any, sync_every: Any, outer: Any, fragments: Any, delay: Any, alpha: Any
) -> Rounds:
    """The Rounds of an optimizer.

    Args:
      optimizer: the innermost one, which makes the local steps.
      sync_every: same as for DistributedOptimizer.
      outer: outer_optimizer of DistributedOptimizer.
      fragments: same as for DistributedOptimizer.
      delay: fragment_sync_delay of DistributedOptimizer.
      alpha: fragment_update_alpha of DistributedOptimizer.

    Raises:
      TypeError: an argument has the wrong type.
      ValueError: an argument is out of range, or one of the optimizers has no meaning there.
    """
    kind = _hooks.kind_of(optimizer)
    if kind is _hooks.v1:
        raise ValueError(
            f"sync_every={sync_every} needs a Keras optimizer; {type(optimizer).__name__} of "
            "tf.compat.v1 runs in sessions too, where nothing orders the exchanges"
        )
    if delay and rendezvous.is_elastic():
        raise ValueError(
            f"fragment_sync_delay={delay} in an elastic job, whose ranks may change while an "
            "exchange is under way: leave it out, or start a job of fixed ranks"
        )
    package = _distribution.package_of(optimizer)
    if outer is None:
        kinds = importlib.import_module(f"{package}.optimizers")
        outer = kinds.SGD(0.7, momentum=0.9, nesterov=True)
    _check_outer(outer, kind)
    for which, one in (("the optimizer", optimizer), ("outer_optimizer", outer)):
        if getattr(one, "use_ema", False):
            raise ValueError(
                f"{which} has use_ema=True: its averages would be those of one rank's weights, "
                "which exchanges replace; leave use_ema out with sync_every"
            )
    config = outer.get_config()
    return Rounds(sync_every, type(outer), config, package, fragments, delay, alpha)


def _check_outer(outer: Any, kind: Any) -> None:
    if isinstance(outer, type) or _hooks.kind_of(outer) is not kind:
        raise TypeError(
            f"outer_optimizer={outer!r} is not an optimizer object of the Keras that the "
            "optimizer is of, such as SGD(0.7, momentum=0.9, nesterov=True)"
        )
    if _distribution.innermost(outer) is not outer or _distribution.of(outer) is not None:
        raise ValueError(
            "outer_optimizer is wrapped, by a LossScaleOptimizer or DistributedOptimizer; give the "
            "plain optimizer: what it gets is averaged already, and is not scaled"
        )
    if getattr(outer, "gradient_accumulation_steps", None):
        raise ValueError(
            "outer_optimizer has gradient_accumulation_steps; an exchange is one update of it, so "
            "leave that out, or make sync_every larger"
        )


def _refuse(options: Any) -> None:
    """Refuses options of the reduction of gradients that mean nothing for weights."""
    reasons = {
        f"op={options.op}": options.op != Average,
        "gradient_predivide_factor": options.gradient_predivide_factor != 1.0,
        "groups and num_groups": options.groups is not None or options.num_groups,
    }
    for what, is_set in reasons.items():
        if is_set:
            raise ValueError(
                f"{what} is for gradients; with sync_every ranks average differences of weights, "
                "divided by fragments="
            )


class LocalSteps(_distribution.ReductionState):
    """The state of an optimizer whose ranks exchange weights and not gradients.

    Args:
      options: a ReduceOptions: how differences of weights are averaged.
      rounds: the Rounds.
      passes: same as for ReductionState.
      average_passes: same as for ReductionState.
    """

    is_local_steps = True

    def __init__(self, options, rounds, *, passes=1, average_passes=False) -> None:
        _refuse(options)
        words = " ".join(f"{name}={text}" for name, text in rounds.description().items())
        if words not in options.accumulation:  # a copy's have them
            words = f"{options.accumulation} {words}".strip()
            options = dataclasses.replace(options, accumulation=words)
        super().__init__(options, passes=passes, average_passes=average_passes, scale_local=False)
        self.rounds = rounds
        self.state: Any = None  # an OuterState, once the variables are known
        self.variables: list = []  # what is exchanged
        self._fragments: list = []  # indices of variables
        self._calls = passes  # of apply_gradients() in an update
        self._updating = False
        self._in_flight = _in_flight.InFlight(self.options.name, self._average)

    def shared(self) -> "LocalSteps":
        """A copy for another optimizer of the same variables."""
        copied = LocalSteps(
            self.options,
            self.rounds,
            passes=self.passes,
            average_passes=self.average_passes,
        )
        copied._local = set(self._local)
        return copied

    def __reduce__(self):
        """Supports pickle and deepcopy: a copy begins a round of its own."""
        _, (options, passes, average_passes, _) = super().__reduce__()
        return _restored, (options, self.rounds, passes, average_passes)

    def description(self) -> dict:
        """The options that must be equal on all ranks, as text: argument -> value."""
        return super().description() | self.rounds.description()

    def register_local_var(self, variable) -> None:
        """Keeps a variable out of the exchange.

        Raises:
          ValueError: the exchange has it already.
        """
        if any(identity(variable) == identity(one) for one in self.variables):
            raise ValueError(
                "register_local_var() came after the optimizer was built: with sync_every, register"
                " a variable before fit() or the first step"
            )
        super().register_local_var(variable)

    def reduce(self, grads, variables) -> list:
        """Returns the gradients as they are.

        Raises:
          ValueError: a DistributedGradientTape has reduced them.
        """
        del variables
        grads = list(grads)
        if any(is_marked(grad, self.options.process_set) for grad in grads if grad is not None):
            raise ValueError(
                "an optimizer with sync_every got gradients that DistributedGradientTape reduced, "
                "in every step; use a tf.GradientTape"
            )
        return grads

    def reduce_overwriting(self, grads, variables) -> list:
        """Returns the gradients as they are."""
        del variables
        return list(grads)

    def clips_together(self, limit) -> bool:
        """Never: each rank clips its own gradients."""
        del limit
        return False

    def ensure_state(self, optimizer, variables) -> None:
        """Creates the state, when the variables are known.

        Raises:
          ValueError: there are fewer variables than fragments, or others than in the first call.
          NotImplementedError: fragment_sync_delay is set, in jit_compile=True.
          RuntimeError: in a graph for TF1 sessions.
        """
        if in_session():
            raise RuntimeError(
                "sync_every counts steps in eager execution and tf.function; TF1 sessions and "
                "tf.compat.v1 graphs have no order for it. Leave sync_every out there"
            )
        if self.rounds.delay and xla.inside_jit():
            raise NotImplementedError(
                "fragment_sync_delay hands weights to a thread, which jit_compile=True cannot; "
                "compile without jit, or leave the delay out"
            )
        exchanged = [variable for variable in variables if not self.is_local(variable)]
        if self.state is not None:
            known = {identity(variable) for variable in self.variables}
            if any(identity(variable) not in known for variable in exchanged):
                raise ValueError(
                    "an optimizer with sync_every got variables that its first call did not have; "
                    "give it all variables in the first call, or each set an optimizer of its own"
                )
            return
        sizes = [
            one.shape.num_elements() * one.dtype.size for one in map(_distribution.raw, exchanged)
        ]
        self._fragments = _outer_state.fragments_of(sizes, self.rounds.fragments)
        self.variables = exchanged
        inner = _distribution.innermost(optimizer)
        self._calls = getattr(inner, "gradient_accumulation_steps", None) or self.passes
        self.state = _outer_state.make(
            self.rounds.package, exchanged, self._fragments, self.rounds.make_optimizer
        )
        inner.outer_state = self.state

    def state_variables(self) -> list:
        """The variables of the state: equal on all ranks, at any step."""
        if self.state is None:
            return []
        found = [*self.state.anchors, self.state.steps]
        for optimizer in self.state.outer_optimizers:
            found += _distribution.own_variables(optimizer)
        return found

    def not_exchanged(self) -> list:
        """The variables that have been trained since the last exchange."""
        if self.state is None:
            return []
        since = self._steps_since_exchanges().numpy()
        return [
            self.variables[i]
            for indices, steps in zip(self._fragments, since, strict=True)
            if steps
            for i in indices
        ]

    @property
    def period(self) -> int:
        """The calls of apply_gradients() in a round."""
        return self.rounds.sync_every * self._calls

    def offset(self, fragment: int) -> int:
        """The call of a round after which a fragment is exchanged, counted from 1."""
        return (fragment + 1) * self.rounds.sync_every // self.rounds.fragments * self._calls

    @contextlib.contextmanager
    def update(self, optimizer, variables):
        """Context of a call that updates variables: the outermost one is a local step."""
        if self._updating:
            yield
            return
        self._updating = True
        try:
            self.ensure_state(optimizer, variables)
            self._begin()
            yield
        finally:
            self._updating = False
        self._end()

    def _begin(self) -> None:
        """At the start of a round the weights are the anchors, whoever has set them."""

        def capture():
            for anchor, variable in zip(self.state.anchors, self.variables, strict=True):
                anchor.assign(tf.convert_to_tensor(variable))

        run_if(tf.equal(tf.convert_to_tensor(self.state.steps), 0), capture)

    def _end(self) -> None:
        """Counts the step, and exchanges what is due."""
        self.state.steps.assign_add(1)
        steps = tf.convert_to_tensor(self.state.steps)
        for number in range(len(self._fragments)):
            due = tf.equal(steps % self.period, self.offset(number) % self.period)
            if not self.rounds.delay:
                run_if(due, self._exchange_of(number))
                continue
            since = steps - self.offset(number) - self._delay
            arrives = (since >= 0) & tf.equal(since % self.period, 0)
            run_if(arrives, self._arrival_of(number))
            run_if(due, self._departure_of(number))

    @property
    def _delay(self) -> int:
        """The calls of apply_gradients() between departure and arrival."""
        return self.rounds.delay * self._calls

    def _pairs(self, number: int) -> list:
        """The anchors of a fragment, with their variables."""
        return [(self.state.anchors[i], self.variables[i]) for i in self._fragments[number]]

    def _differences(self, number: int) -> list:
        return [
            tf.convert_to_tensor(anchor) - tf.convert_to_tensor(variable)
            for anchor, variable in self._pairs(number)
        ]

    def _average(self, number: int, differences: list) -> list:
        """The average over the ranks of a fragment's differences."""
        name = f"{self.options.name}.exchange"
        if len(self._fragments) > 1:
            name += f" of fragment {number}"
        options = dataclasses.replace(self.options, name=name)
        variables = [variable for _, variable in self._pairs(number)]
        if hasattr(options.compression, "reduce"):
            return _average_joined(differences, variables, options)
        return reduce_gradients(differences, variables, options)

    def _move_anchors(self, number: int, average: list) -> None:
        anchors = [anchor for anchor, _ in self._pairs(number)]
        outer = self.state.outer_optimizers[number]
        outer.apply_gradients(list(zip(average, anchors, strict=True)))

    def _exchange_of(self, number: int):
        """A function that exchanges a fragment, and ends with equal weights."""

        def exchange():
            self._move_anchors(number, self._average(number, self._differences(number)))
            for anchor, variable in self._pairs(number):
                variable.assign(tf.convert_to_tensor(anchor))
            if len(self._fragments) == 1 and not self.rounds.delay:
                self.state.steps.assign(0)

        return exchange

    def _departure_of(self, number: int):
        """A function that sends a fragment's differences on their way."""
        return lambda: self._in_flight.start(number, self._differences(number))

    def _arrival_of(self, number: int):
        """A function that takes the average, and mixes what has been trained meanwhile into it."""
        alpha = self.rounds.alpha

        def arrive():
            anchors = [tf.convert_to_tensor(anchor) for anchor, _ in self._pairs(number)]
            known, average = self._in_flight.finish(number, anchors)

            def mix():
                self._move_anchors(number, average)
                for anchor, variable in self._pairs(number):
                    anchor, weight = map(tf.convert_to_tensor, (anchor, variable))
                    factor = tf.constant(alpha, weight.dtype)
                    variable.assign(factor * weight + (1 - factor) * anchor if alpha else anchor)

            run_if(known, mix)

        return arrive

    def _is_under_way(self, number: int):
        """Whether a fragment has departed and not arrived."""
        since = tf.convert_to_tensor(self.state.steps) - self.offset(number)
        return (since >= 0) & (since % self.period < self._delay)

    def _steps_since_exchanges(self):
        """How many steps each fragment has made since its last exchange."""
        steps = tf.convert_to_tensor(self.state.steps)
        offsets = tf.constant([self.offset(i) for i in range(len(self._fragments))], tf.int64)
        offsets += self._delay
        if self.rounds.alpha:  # then no exchange but synchronize() makes weights equal
            return tf.broadcast_to(steps, offsets.shape)
        return tf.where(steps < offsets, steps, (steps - offsets) % self.period)

    def synchronize(self) -> None:
        """Exchanges now what has been trained since the last exchange, and begins a new round.

        Collective: all ranks call it together, as before they evaluate, save or end. Does nothing
        if no rank has made a step since.
        """
        if self.state is None:
            return
        since = self._steps_since_exchanges()
        if self.rounds.delay:
            late = [self._is_under_way(number) for number in range(len(self._fragments))]
            for number, is_late in enumerate(late):
                run_if(is_late, self._arrival_of(number))
            if not self.rounds.alpha:  # those have just been made equal
                since = tf.where(tf.stack(late), tf.zeros_like(since), since)
        since = allreduce(
            since,
            op=Max,
            name=f"{self.options.name}.synchronize",
            process_set=self.options.process_set,
        )
        for number in range(len(self._fragments)):
            run_if(since[number] > 0, self._exchange_of(number))
        self.state.steps.assign(0)


def _average_joined(differences: list, variables: list, options: ReduceOptions) -> list:
    """The averages by a compressor that takes each tensor by itself: it gets one for each dtype.

    So a fragment costs few round trips, however many variables it has.
    """
    results: list = list(differences)
    for indices in by_dtype(differences):
        parts = [differences[i] for i in indices]
        flat = tf.concat([tf.reshape(part, [-1]) for part in parts], 0)
        # The first variable stands for all: compressors keep what they have not sent by it.
        (average,) = reduce_gradients([flat], [variables[indices[0]]], options)
        pieces = tf.split(average, [part.shape.num_elements() for part in parts])
        for i, piece in zip(indices, pieces, strict=True):
            results[i] = tf.reshape(piece, differences[i].shape)
    return results


def _restored(options: dict, rounds, passes, average_passes) -> LocalSteps:
    options["process_set"] = set_of(options["process_set"])
    return LocalSteps(
        ReduceOptions(**options), rounds, passes=passes, average_passes=average_passes
    )
