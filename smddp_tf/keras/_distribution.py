"""The distribution state of one optimizer, independent of its Keras version."""

import contextlib
import dataclasses
import threading
import warnings
from typing import Any

from smddp_tf._src.collectives.reduction import needs_gather
from smddp_tf._src.gradients.marks import is_marked, mark_what_comes_from_marked
from smddp_tf._src.gradients.options import ReduceOptions
from smddp_tf._src.gradients.reduce import (
    identity,
    kept_by_libraries,
    local_source,
    reduce_all_but_local,
    reduce_overwriting,
)
from smddp_tf._src.graph.ops.ranks import set_is_alone
from smddp_tf._src.job.process_sets import set_of
from smddp_tf.keras import _local

ATTRIBUTE = "_smddp_distribution"


class ReductionState:
    """The state that DistributedOptimizer adds to an optimizer.

    Args:
      options: a ReduceOptions.
      passes: backward passes per update; their gradients are summed before they are reduced.
      average_passes: divide that sum by the number of passes.
      scale_local: divide gradients of local variables by the number of ranks.
      shard_state: each rank keeps the optimizer's state of its part of the variables only.
    """

    is_local_steps = False  # whether ranks exchange weights now and then, and no gradients

    def __init__(
        self, options, *, passes=1, average_passes=False, scale_local=True, shard_state=False
    ) -> None:
        self.options = options
        self.passes = passes
        self.average_passes = average_passes
        self.scale_local = scale_local
        self.shard_state = shard_state
        self.shards: Any = None  # the Shards of an optimizer whose state is divided
        self.whole: Any = None  # meanwhile, an undivided optimizer with the gathered state
        self._local: set = set()
        self._reduced = False
        self._step = threading.local()  # MirroredStrategy has a thread for each replica
        self._warned = False
        self.aggregated: list = []  # the variables of the gradients reduced last, in Keras 2

    def shared(self) -> "ReductionState":
        """A copy for another optimizer of the same variables."""
        copied = ReductionState(
            self.options,
            passes=self.passes,
            average_passes=self.average_passes,
            scale_local=self.scale_local,
        )
        copied._local = set(self._local)
        return copied

    def __reduce__(self):
        """Supports pickle and deepcopy; drops what refers to variables (local ones, groups)."""
        if self._local:
            warnings.warn(
                "a copy of an optimizer that has local variables reduces their gradients too, "
                "until it is told with register_local_var() which of its variables are local",
                RuntimeWarning,
                stacklevel=2,
            )
        options = {
            field.name: getattr(self.options, field.name)
            for field in dataclasses.fields(self.options)
        }
        options["groups"] = None  # buckets by size give the same result
        options["process_set"] = self.options.process_set.process_set_id
        return _restored, (options, self.passes, self.average_passes, self.scale_local)

    def description(self) -> dict:
        """The options that must be equal on all ranks, as text: argument -> value."""
        return self.options.description() | {
            "backward_passes_per_step": str(self.passes),
            "average_aggregated_gradients": str(bool(self.average_passes)),
            "scale_local_gradients": str(bool(self.scale_local)),
            "shard_state": str(bool(self.shard_state)),
        }

    @property
    def is_divided(self) -> bool:
        """Whether the ranks have divided the optimizer's state, and this one has its part of it."""
        return self.shards is not None and bool(self.shards.variables)

    def is_local(self, variable) -> bool:
        """Whether this variable's gradients stay local."""
        return identity(variable) in self._local or bool(kept_by_libraries([variable]))

    @property
    def has_local(self) -> bool:
        """Whether some variables' gradients stay local."""
        return bool(self._local)

    def register_local_var(self, variable) -> None:
        """Keeps this variable's gradients local.

        Raises:
          ValueError: the optimizer's state was divided already, that of this variable too.
        """
        if self.is_divided:
            raise ValueError(
                "with shard_state=True, register_local_var() must be called before the optimizer "
                "is built (used for the first time)"
            )
        self._local.add(local_source(variable))

    def reduce(self, grads, variables) -> list:
        """Reduces gradients over all ranks, but for those that are marked as reduced already.

        So are, in a graph, those made of marked ones, where reducing them again would change them.
        None stays None.
        """
        grads, variables = list(grads), list(variables)
        process_set = self.options.process_set
        self._local |= kept_by_libraries(variables)
        if not (set_is_alone(process_set) or self.options.is_idempotent()):
            mark_what_comes_from_marked(grads, process_set, variables)
        done = {i: grad for i, grad in enumerate(grads) if is_marked(grad, process_set)}
        if done and all(i in done for i, grad in enumerate(grads) if grad is not None):
            return grads
        scattered = self._scattered(grads, variables, done)
        results = reduce_all_but_local(
            [None if i in done or i in scattered else grad for i, grad in enumerate(grads)],
            variables,
            self.options,
            self._local,
            self.scale_local,
        )
        ready = done | scattered
        results = [ready.get(i, result) for i, result in enumerate(results)]
        if self._loss_scaled and self._local and not set_is_alone(process_set):
            results = _local.sync_overflow(results, variables, self._local, process_set)
        return results

    def _scattered(self, grads, variables, done) -> dict:
        """This rank's rows of the gradients of which it needs no others: index -> rows.

        A loss scale looks at all of each, to skip the same steps on all ranks.
        """
        if not self.is_divided or self._loss_scaled or needs_gather(self.options):
            return {}
        found = [
            i
            for i, (grad, variable) in enumerate(zip(grads, variables, strict=True))
            if i not in done and self.shards.can_scatter(grad, variable)
        ]
        pairs = [grads[i] for i in found], [variables[i] for i in found]
        return dict(zip(found, self.shards.scattered(*pairs, self.options), strict=True))

    def clip_by_global_norm(self, grads, variables, limit: float) -> list:
        """Clips gradients, some of which are local, by one norm on all ranks."""
        process_set = self.options.process_set
        return _local.clip_by_global_norm(grads, variables, limit, self._local, process_set)

    def clips_together(self, limit) -> bool:
        """Whether clip_by_global_norm() is to clip: the optimizer's own would differ by rank."""
        return bool(limit) and self.has_local and not set_is_alone(self.options.process_set)

    def reduce_overwriting(self, grads, variables) -> list:
        """Reduces only the gradients that overwrite their variables (float8 in Keras 3)."""
        return reduce_overwriting(grads, variables, self.options.process_set)

    @property
    def reduced(self) -> bool:
        """Whether the step that is being traced or run has its gradients reduced by our hooks."""
        return self._reduced or getattr(self._step, "reduced", False)

    @contextlib.contextmanager
    def step(self):
        """Context of a step whose gradients are, or will be, reduced by our hooks."""
        before, self._step.reduced = getattr(self._step, "reduced", False), True
        try:
            yield
        finally:
            self._step.reduced = before

    def update(self, optimizer, variables):
        """Context of a call that updates variables."""
        del optimizer, variables
        return contextlib.nullcontext()

    def ensure_state(self, optimizer, variables) -> None:
        """Creates the variables of state_variables(), for an optimizer of these variables."""

    def synchronize(self) -> None:
        """Makes the ranks' weights equal, where they are not in every step."""

    def state_variables(self) -> list:
        """Variables that the distribution has besides the optimizer's."""
        return []

    def not_exchanged(self) -> list:
        """The variables in which ranks differ until the next exchange."""
        return []

    @contextlib.contextmanager
    def loss_scaled(self):
        """Context of a step that is skipped if some gradients are not finite."""
        before, self._step.loss_scaled = self._loss_scaled, True
        try:
            yield
        finally:
            self._step.loss_scaled = before

    @property
    def _loss_scaled(self) -> bool:
        return getattr(self._step, "loss_scaled", False)

    def mark_reduced(self, reduced=True) -> None:
        """Sets `reduced` directly, for optimizers that reduce and apply in separate calls.

        Keras's legacy optimizers may apply in another thread, the others do so in the same one.
        """
        self._reduced = self._step.reduced = reduced

    def expect_reduced(self) -> None:
        """Warns once if variables are about to be updated with unreduced gradients."""
        if self.reduced or self._warned or set_is_alone(self.options.process_set):
            return
        self._warned = True
        warnings.warn(
            "an optimizer wrapped by DistributedOptimizer takes a step with gradients that were "
            "not reduced, so the ranks' weights drift apart. Call its apply_gradients() as it is: "
            "not that of its class, and without skip_gradients_aggregation=True or "
            "experimental_aggregate_gradients=False. If DistributedGradientTape reduces them "
            "already, do not wrap the optimizer",
            RuntimeWarning,
            stacklevel=3,
        )


def _restored(options: dict, passes, average_passes, scale_local) -> ReductionState:
    options["process_set"] = set_of(options["process_set"])
    return ReductionState(
        ReduceOptions(**options),
        passes=passes,
        average_passes=average_passes,
        scale_local=scale_local,
    )


class Hook:
    """Replaces a method of one optimizer. A class, so that copying and pickling recognise it."""

    def __init__(self, method: str, optimizer, distribution: ReductionState) -> None:
        self.method = method
        self.optimizer = optimizer
        self.distribution = distribution
        before = vars(optimizer).get(method)
        self.replaced = None if isinstance(before, Hook) else before  # by a library, on this object

    def original(self, *args, **kwargs):
        """Calls the method of the optimizer's class, or what a library had put in its place."""
        if self.replaced is not None:
            return self.replaced(*args, **kwargs)
        return getattr(type(self.optimizer), self.method)(self.optimizer, *args, **kwargs)


def innermost(optimizer):
    """The optimizer inside a LossScaleOptimizer."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return optimizer if inner is None else innermost(inner)


def of(optimizer):
    """The state of an optimizer, or of the one inside a LossScaleOptimizer; None without."""
    if not hasattr(type(optimizer), "apply_gradients"):
        return None  # something else that a model holds, which may answer to any name
    found = vars(optimizer).get(ATTRIBUTE)
    inner = getattr(optimizer, "inner_optimizer", None)
    return of(inner) if found is None and inner is not None else found


def raw(variable: Any) -> Any:
    """The tf.Variable inside a Keras 3 variable."""
    return getattr(variable, "_value", variable)


def own_variables(optimizer: Any) -> list:
    """The variables of an optimizer, which is a property or a method."""
    variables = optimizer.variables
    return list(variables if isinstance(variables, (list, tuple)) else variables())


def package_of(optimizer) -> str:
    """The Keras whose optimizer this is: the module that has its layers, optimizers and so on."""
    modules = [
        kind.__module__ for kind in type(optimizer).__mro__ if ".optimizers." in kind.__module__
    ]
    return modules[-1].split(".optimizers.")[0]
