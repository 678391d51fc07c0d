"""Horovod's DistributedOptimizer: reduces gradients while the backward pass still runs."""

from __future__ import annotations

import contextlib
import itertools
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from smddp_tf._src.job import config
from smddp_tf._src.job.process_sets import (
    ProcessSet,
    check_process_set,
    global_process_set,
    is_outside,
)
from smddp_tf._src.job.reduce_op import Adasum, Average, ReduceOp, Sum
from smddp_tf.torch import _adasum, _collectives, _steps
from smddp_tf.torch._compression import Compression
from smddp_tf.torch._sparse import reduced_gradient

_Tensors = list[torch.Tensor]


def _buckets(parameters: _Tensors, limit: int) -> list[_Tensors]:
    """Parameters whose gradients travel together: of one dtype on one device, last ones first."""
    buckets: list[_Tensors] = []
    size = 0
    for one in reversed(parameters):
        bytes_of_one = one.numel() * one.element_size()
        alike = buckets and (buckets[-1][0].dtype, buckets[-1][0].device) == (one.dtype, one.device)
        if not alike or size + bytes_of_one > limit:
            buckets.append([])
            size = 0
        buckets[-1].append(one)
        size += bytes_of_one
    return buckets


def _check_names(named: list[tuple[str, torch.Tensor]], parameters: _Tensors) -> None:
    """Rejects names that do not fit the optimizer's parameters.

    Raises:
      ValueError: named_parameters are no pairs, repeat a name, or leave out a parameter.
    """
    if any(not isinstance(pair, tuple) for pair in named):
        raise ValueError("named_parameters takes pairs, as model.named_parameters() gives them")
    names = [name for name, _ in named]
    if len(set(names)) != len(names):
        raise ValueError(f"named_parameters has {names} with equal names; each must be unique")
    missing = {id(one) for one in parameters} - {id(one) for _, one in named}
    if named and missing:
        raise ValueError(
            f"named_parameters lacks {len(missing)} of the optimizer's parameters; give those of "
            "the whole model"
        )


_made = 0
_reducers: weakref.WeakSet[_Reducer] = weakref.WeakSet()  # those that live


class _Reducer:
    """Starts a bucket's reduction when all its gradients are there.

    Scripts freeze and unfreeze layers, and give optimizers more parameters. Each step reduces the
    gradients of those that require one then; the next step has them in its buckets.

    backward() ends when these reductions have ended: scripts clip gradients after it, or scale
    them, and must not meet one that is being written. A rank that has not used all layers does not
    wait, as the others may wait for what it reduces in step(). Nor do the others, if it calls
    another collective before step() that comes first; if theirs come first, it reduces then.

    Args:
      wanted: returns the parameters whose gradients are to be reduced, as they are now.
      reduce: reduce(gradients, name) begins to, and returns a handle.
      awaited: awaited(process set, name) tells whether the other ranks wait for that.
      passes: backward passes a step.
      dense: whether sparse gradients travel as dense ones.
      key: the same number on all ranks, and another one for each optimizer.
    """

    def __init__(
        self,
        wanted: Callable[[], _Tensors],
        reduce: Any,
        awaited: Callable[[int, str], bool],
        passes: int,
        dense: bool,
        key: int,
    ):
        self._wanted, self._reduce, self._awaited = wanted, reduce, awaited
        self._passes, self._dense, self._key = passes, dense, key
        self._sparse: dict[torch.Tensor, int] = {}  # dims that are sparse, where gradients were
        self._hooks: dict[torch.Tensor, Any] = {}
        self._handles: dict[int, list[Any]] = {}
        self._waits = False  # for the handles of a step
        self._patience = 1.0  # at the end of backward(), until it was in vain
        self._thread = threading.get_ident()  # which runs the steps
        self._reduced = False  # the gradients, and there are no newer ones
        self._make_buckets()
        if _send_awaited not in _steps.helpers:
            _steps.helpers.append(_send_awaited)

    def _make_buckets(self) -> None:
        self._parameters = self._wanted()
        self._buckets: list[_Tensors] = []
        self._names: list[str] = []
        self._bucket: dict[torch.Tensor, int] = {}
        self._add(self._parameters, "bucket")
        for other in list(_reducers):
            if other is not self and not other._bucket.keys().isdisjoint(self._bucket):
                other._retire()
        _reducers.add(self)
        self._begin_step()
        # A step may be compiled as a whole; what makes it run on ranks is not for the compiler.
        ready = torch.compiler.disable(self._ready)
        for one in self._parameters:
            if one not in self._hooks:
                self._hooks[one] = one.register_post_accumulate_grad_hook(ready)

    def _add(self, parameters: _Tensors, kind: str) -> None:
        """Makes buckets; names have no total that changes, as ranks start them at other times."""
        buckets = _buckets(parameters, config.load().bucket_bytes)
        of = f"of {len(buckets)}"
        for number, bucket in enumerate(buckets, 1):
            self._bucket |= dict.fromkeys(bucket, len(self._buckets))
            self._buckets.append(bucket)
            self._names.append(f"optimizer {self._key}, {kind} {number} {of}")

    def begin_again(self) -> None:
        """Drops the gradients of a step that is under way: its reductions have failed."""
        begun = any(left != self._passes for left in self._left.values())
        if begun or self._handles or self._waits:
            for one in self._bucket:
                one.grad = None
        self._handles, self._waits, self._reduced = {}, False, False
        self._make_buckets()

    def _retire(self) -> None:
        """A newer optimizer has some of the parameters: gradients must not be reduced twice."""
        _reducers.discard(self)
        for hook in self._hooks.values():
            hook.remove()

    def _begin_step(self) -> None:
        self._in_vain = False  # waiting at the end of backward()
        self._left = dict.fromkeys(self._bucket, self._passes)  # passes, of each parameter
        self._open = [len(bucket) for bucket in self._buckets]  # parameters, of each bucket

    def _ready(self, one: torch.Tensor) -> None:
        """The gradient of a parameter is there."""
        self._reduced = False
        number = self._bucket.get(one)
        if number is None:
            return  # it was frozen when the buckets were made: synchronize() finds it
        if number in self._handles:
            raise AssertionError(
                "a gradient was computed again after its reduction began; call optimizer.step() "
                "after each backward pass, or give backward_passes_per_step. If the ranks use "
                "different layers, call other collectives after the step's last backward pass"
            )
        self._left[one] -= 1
        self._open[number] -= self._left[one] == 0
        if self._open[number] == 0:
            self._start(number)
            if _steps.in_compiled_backward():
                self._end_of_backward()  # it calls nobody back
            else:
                torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)

    def _start(self, number: int) -> None:
        gradients: _Tensors = []
        name = self._names[number]
        handles: list[Any] = []
        for place, one in enumerate(self._buckets[number]):
            if one.grad is None and not one.requires_grad:
                continue  # it was frozen since
            if one.grad is None:  # not computed here, but perhaps on another rank
                one.grad = self._nothing(one)
            if one.grad.is_sparse:
                self._sparse[one] = one.grad.sparse_dim()
            if one.grad.is_sparse and self._dense:
                one.grad = one.grad.to_dense()
                handles.append((None, one))
            if one.grad.is_sparse:
                handle = self._reduce(one.grad, f"{name}, sparse {place}")
                handles.append((handle, one))
                continue
            if one.grad.layout is torch.strided and not one.grad.is_contiguous():
                one.grad = one.grad.contiguous()
            gradients.append(one.grad)
        if gradients:
            handles.append((self._reduce(gradients, name), None))
        self._handles[number] = handles

    def _end_of_backward(self) -> None:
        """Waits; what has failed is raised by synchronize()."""
        if self._in_vain or len(self._handles) < len(self._buckets):
            return
        for handle, _ in itertools.chain.from_iterable(self._handles.values()):
            if handle is not None and not handle.await_end_or_others(self._patience):
                self._in_vain, self._patience = True, 0  # it is called for each bucket
                return

    def send_awaited(self, process_set: int) -> bool:
        """Begins the reduction that the other ranks wait for, if this rank has left out its layers.

        Only the thread that runs the steps does so. It waits for something else when it calls this,
        so it computes no gradients meanwhile.

        Returns:
          Whether there was one.
        """
        if self._waits or self._thread != threading.get_ident():
            return False  # in step() all of them have begun
        for number, name in enumerate(self._names):
            if number in self._handles:
                continue
            bucket = self._buckets[number]
            sparse = (self._awaited(process_set, f"{name}, sparse {i}") for i in range(len(bucket)))
            place = next((i for i, is_awaited in enumerate(sparse) if is_awaited), None)
            if place is not None:  # on the others; perhaps this rank has never used it
                self._sparse.setdefault(bucket[place], 1)  # as all of PyTorch's layers have it
            if place is not None or self._awaited(process_set, name):
                self._start(number)
                return True
        return False

    def _nothing(self, one: torch.Tensor) -> torch.Tensor:
        """A gradient of zeros."""
        dims = self._sparse.get(one)
        if dims is None:
            return torch.zeros_like(one)
        indices = torch.empty((dims, 0), dtype=torch.int64, device=one.device)
        return torch.sparse_coo_tensor(indices, one.new_empty((0, *one.shape[dims:])), one.shape)

    def step_is_made(self) -> None:
        """The next step reduces what gradients there are then, also without a backward pass."""
        self._reduced = False

    def synchronize_once(self) -> None:
        """Same as synchronize(), unless that was called for the same gradients."""
        if not self._reduced:
            self.synchronize()

    def synchronize(self) -> None:
        """Waits for all gradients; those that were not computed count as zeros.

        Raises:
          ValueError: a newer DistributedOptimizer has some of the parameters.
        """
        if self not in _reducers:
            raise ValueError(
                "a newer DistributedOptimizer has parameters of this one, and reduces their "
                "gradients; call its step() instead, or give each its own parameters"
            )
        _steps.note_caller()
        self._thread = threading.get_ident()
        wanted = self._wanted()
        changed = list(map(id, wanted)) != list(map(id, self._parameters))
        if changed:
            self._add([one for one in wanted if one not in self._bucket], "late bucket")
        for number in range(len(self._buckets)):
            if number not in self._handles:
                self._start(number)
        handles, self._handles = self._handles, {}
        if changed:
            self._make_buckets()
        self._begin_step()
        self._waits = True
        to_sparse = []
        for handle, one in itertools.chain.from_iterable(handles.values()):
            if handle is None:
                to_sparse.append(one)
                continue
            handle.wait()
            if one is not None:
                one.grad = handle()
        for one in to_sparse:  # as its optimizer expects
            one.grad = one.grad.to_sparse(self._sparse[one])
        self._waits, self._reduced = False, True


def _send_awaited(process_set: int) -> bool:
    if _steps.in_backward():
        return False  # from which the gradients may yet come
    return any(one.send_awaited(process_set) for one in list(_reducers))


def count() -> int:
    """How many optimizers were made; each is known by its number."""
    return _made


def begin_again(count: int) -> None:
    """After a failure: gradients of this step are dropped, and optimizers counted from there."""
    global _made
    _made = count
    for one in _reducers:
        one.begin_again()


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> torch.optim.Optimizer:
    """Makes an optimizer reduce gradients over the ranks before each step.

    Gradients travel in buckets of SMDDP_BUCKET_BYTES, while the backward pass still runs, which
    ends when they have arrived, unless ranks leave out layers. The optimizer also gets
    synchronize(), which reduces those of all layers, so that a script can clip gradients before
    step(). That does not reduce them again, with Horovod's skip_synchronize() or without.
    step(closure) reduces what the closure has computed; for LBFGS also the loss that it returns.
    Layers may be frozen and unfrozen, and parameters added, on all ranks alike.

    Args:
      optimizer: of parameters in the same order on all ranks.
      named_parameters: model.named_parameters(); only checked.
      compression: Compression.none or .fp16; of dense gradients.
      backward_passes_per_step: gradients of so many passes are summed before they are reduced.
      op: Average, Sum or Adasum. With Adasum each rank makes a step of its own, and the ranks'
        steps are combined, as with Horovod.
      gradient_predivide_factor: divides before the sum, with Average; the rest follows after it.
      num_groups: accepted as Horovod accepts it; buckets are by size.
      groups: likewise.
      sparse_as_dense: sparse gradients travel as dense ones, and are sparse again afterwards;
        otherwise ranks gather their elements. If a rank computes none for a parameter, it takes for
        dense what was never sparse.
      process_set: whose ranks take part; on others gradients stay as they are.

    Returns:
      The same optimizer. It takes over the parameters of an older DistributedOptimizer, which
      cannot make steps any more.

    Raises:
      ValueError: an argument cannot be used; or from step(): a newer one has the parameters.
      torch.distributed.DistBackendError: from step(): ranks disagree, or one died.

    Examples:
      >>> model = torch.nn.Linear(2, 1)
      >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
      >>> optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
      >>> model(torch.ones(1, 2)).sum().backward()
      >>> optimizer.step()  # with the average of the ranks' gradients
    """
    global _made
    del num_groups, groups
    outside = is_outside(process_set)
    if not outside:
        check_process_set(process_set)
    op = _collectives.resolve_op(None, op)
    if op not in (Average, Sum, Adasum):
        raise ValueError(f"op={op}: gradients are reduced by Average, Sum or Adasum")
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise ValueError("gradient_predivide_factor is for op=hvd.Average")
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step} is not >= 1")
    if hasattr(optimizer, "skip_synchronize"):
        raise ValueError("this optimizer is a DistributedOptimizer already")
    parameters = [one for part in optimizer.param_groups for one in part["params"]]
    _check_names(list(named_parameters or ()), parameters)
    factor = gradient_predivide_factor

    optimizer_or_none = weakref.ref(optimizer)  # hooks of parameters must not keep its state

    def wanted() -> _Tensors:
        alive = optimizer_or_none()
        if outside or alive is None:
            return []
        every = (one for part in alive.param_groups for one in part["params"])
        return [one for one in every if one.requires_grad]

    def reduce(gradients: Any, name: str) -> Any:
        group = check_process_set(process_set)  # whose ranks may have changed
        before, after, kind = 1.0, 1.0, op
        if factor != 1.0:
            before, after, kind = 1 / factor, factor / group.size, Sum
        if isinstance(gradients, torch.Tensor):
            return reduced_gradient(gradients, kind, before, after, name, group)
        steps = _collectives.reduced(gradients, compression, kind, before, after, group)
        begin = _collectives.begin
        return begin("gradients", name, group.id, steps, wait=False, tensors=gradients)

    _made += 1
    if op is Adasum:
        name = f"optimizer {_made}"
        _adasum.combine_steps(
            optimizer,
            lambda: _buckets(wanted(), config.load().bucket_bytes),
            lambda steps, of: reduce(steps, f"{name}, {of}"),
        )
        _give_adasum_methods(optimizer)
        return optimizer

    def awaited(number: int, name: str) -> bool:
        ours = process_set.process_set_id == number
        return ours and _steps.is_awaited(number, f"gradients.{name}")

    reducer = _Reducer(wanted, reduce, awaited, backward_passes_per_step, sparse_as_dense, _made)

    def agree(loss: Any) -> Any:
        if outside or not isinstance(optimizer, torch.optim.LBFGS):
            return loss
        # It goes by the loss how far it steps, and how often it calls the closure.
        tensor = torch.as_tensor(loss).detach()
        return _collectives.allreduce(tensor, op=op, name=loss_name, process_set=process_set)

    loss_name = f"loss of optimizer {_made}"
    _give_methods(optimizer, reducer, agree)
    return optimizer


def _give_adasum_methods(optimizer: Any) -> None:
    """Adds synchronize() and skip_synchronize(), by which scripts reach reduced gradients."""

    def synchronize(self: Any) -> None:
        """Does nothing, as with Horovod: gradients stay the rank's own."""

    def skip_synchronize(self: Any) -> None:
        raise ValueError("with op=hvd.Adasum each step() exchanges; it cannot be skipped")

    optimizer.synchronize = types.MethodType(synchronize, optimizer)
    optimizer.skip_synchronize = types.MethodType(skip_synchronize, optimizer)


def _with_reduction(closure: Any, reducer: _Reducer, agree: Any) -> Any:
    """A closure after which the gradients that it computed are reduced, and its loss agreed."""

    def reducing() -> Any:
        loss = agree(closure())
        reducer.synchronize_once()
        reducer.step_is_made()
        return loss

    return reducing


def _give_methods(optimizer: Any, reducer: _Reducer, agree: Any) -> None:
    """Has step() wait for gradients; adds synchronize() and skip_synchronize().

    agree: makes of this rank's loss one that all ranks have, for step(closure).
    """
    waits = True

    @torch.compiler.disable
    def before_step(self: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        closure = next(filter(callable, (*arguments[1:], *named.values())), None)
        if closure is not None and (waits or isinstance(self, torch.optim.LBFGS)):
            reducer.step_is_made()
            given = {id(closure): _with_reduction(closure, reducer, agree)}
            named = {name: given.get(id(one), one) for name, one in named.items()}
            return tuple(given.get(id(one), one) for one in arguments), named
        if waits:
            reducer.synchronize_once()
        reducer.step_is_made()
        return None

    @torch.compiler.disable
    def synchronize(self: Any) -> None:
        reducer.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self: Any) -> Iterator[None]:
        nonlocal waits
        waits = False
        try:
            yield
        finally:
            waits = True

    optimizer.register_step_pre_hook(before_step)
    optimizer.synchronize = types.MethodType(synchronize, optimizer)
    optimizer.skip_synchronize = types.MethodType(skip_synchronize, optimizer)
