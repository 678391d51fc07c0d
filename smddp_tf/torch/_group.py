"""The process group of torch.distributed: each collective as requests to the core.

Every rank computes the same sizes from its arguments, or gets them from the others first. So all
agree on what is requested, or all get an error that shows two sides.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ProcessGroup, ReduceOp, Work, distributed_c10d
from torch.distributed.constants import default_pg_timeout

from smddp_tf._src.job import adding_sets
from smddp_tf._src.job.reduce_op import ReduceOp as CoreOp
from smddp_tf.torch import _checks, _dtypes, _lists, _monitored, _requests, _sparse, _steps
from smddp_tf.torch._checks import BadInputError
from smddp_tf.torch._messages import Messages
from smddp_tf.torch._point_to_point import PointToPoint, carrier
from smddp_tf.torch._steps import Collective, Steps, numbered


def _list(tensors: Any) -> list[Any]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _op(options: Any) -> Any:
    """The reduce operation: of options, or given itself."""
    return ReduceOp.SUM if options is None else getattr(options, "reduceOp", options)


def _long_dims(tensor: torch.Tensor) -> list[int]:
    """The dimensions that order elements: scripts reduce a number with a list of one."""
    return [dim for dim in tensor.shape if dim != 1]


def _elements(tensor: torch.Tensor) -> list[int]:
    """Their number, the only thing that torch.distributed.broadcast wants to be equal."""
    return [tensor.numel()]


def _reduce_bools(tensors: list[Any], op: Any, words: str) -> Steps:
    """Reduces bools in place, as bytes."""
    values = [tensor.detach().view(torch.uint8) for tensor in tensors]
    yield _requests.allreduce(values, op, 1.0, f"of torch.bool {words}".strip(), dims=_long_dims)
    if op is CoreOp.Sum:
        for value in values:
            value.bitwise_and_(1)


class SmddpProcessGroup(ProcessGroup):
    """A group of ranks whose collectives the core runs.

    Args:
      store: of the group; for what the core does not have.
      rank: this process's, in the group.
      ranks: their numbers in the job, by their rank in the group.
      name: of the group, equal on all its ranks.
      process_set: the core's number of these ranks.
      timeout: of its collectives. PyTorch's default counts as none: then SMDDP_TIMEOUT_SECONDS
        holds.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        ranks: Sequence[int],
        name: str,
        process_set: int,
        timeout: timedelta,
    ) -> None:
        super().__init__(rank, len(ranks))
        self._store, self._rank, self._ranks, self._label = store, rank, ranks, name
        self._set, self._timeout = process_set, timeout
        self._count, self._barriers = itertools.count(1), itertools.count(1)
        self._between_two: PointToPoint | None = None

    # ---- what torch.distributed asks

    def rank(self) -> int:
        """This process's rank in the group."""
        return self._rank

    def size(self) -> int:
        """The number of ranks in the group."""
        return len(self._ranks)

    def name(self) -> str:
        """The backend's name."""
        return "smddp"

    getRank, getSize, getBackendName = rank, size, name  # noqa: N815 - torch's names

    def _set_group_name(self, name: str) -> None:
        """Takes the name by which torch finds the group."""
        self._label = name

    @property
    def group_name(self) -> str:
        """The group's name, the same on all its ranks."""
        return self._label

    @property
    def _device_types(self) -> list[torch.device]:
        """Where tensors may be: asynchronous checkpoints and loaders of whole states ask.

        None until torch knows the group: PyTorch 2.15 attaches its flight recorder to a new group
        that has devices, which only groups in C++ can bear.
        """
        if self not in distributed_c10d._world.pg_map:
            return []
        names = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        return [torch.device(name) for name in names]

    def __repr__(self) -> str:
        return f"SmddpProcessGroup(rank={self._rank}, ranks={list(self._ranks)})"

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the limit of the collectives that are called from now on."""
        self._timeout = timeout

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Leaves the group. The job goes on, for other groups, until the process ends."""
        if self._between_two is not None:
            self._between_two.leave()
        adding_sets.leave_set(self._set)

    def abort(self) -> None:
        """Fails the job on all ranks: all that is under way, in other groups too, and what follows.

        May be called on any thread, while others wait. All ranks together can go on with a new
        init_process_group().
        """
        _steps.abort(
            f"aborted group {self._label}; this job cannot go on: call init_process_group() on all "
            "ranks again, or restart it from its last checkpoint"
        )

    def next_collective(self, what: str, timeout: timedelta | None = None) -> Collective:
        """Counts one more collective of the group; its own timeout comes before the group's."""
        name = f"collective {next(self._count)} of group {self._label}"
        return Collective(what, name, self._set, limit=self._limit(timeout))

    def _limit(self, timeout: timedelta | None = None) -> float:
        """In seconds; 0 for SMDDP_TIMEOUT_SECONDS."""
        own = timeout.total_seconds() if timeout else 0
        if own <= 0 and self._timeout != default_pg_timeout:
            own = self._timeout.total_seconds()
        return max(0, own)

    # ---- reductions

    @numbered("all_reduce")
    def allreduce(self, tensors: Any, opts: Any = None, *_: Any) -> Steps:
        """Reduces tensors in place."""
        tensors = _list(tensors)
        if tensors and tensors[0].layout is torch.sparse_coo:
            yield from self._reduce_sparse(tensors, _op(opts))
        else:
            yield from self._reduce(tensors, _op(opts), "all_reduce")
        return tensors

    allreduce_coalesced = allreduce

    @numbered("reduce")
    def reduce(self, tensors: Any, opts: Any = None, *_: Any) -> Steps:
        """Reduces tensors in place on the root; on others they stay as they are."""
        tensors = _list(tensors)
        _checks.check_dense(tensors, "reduce")
        root = self._rank == opts.rootRank
        mine = tensors if root else [tensor.detach().clone() for tensor in tensors]
        yield from self._reduce(mine, _op(opts), f"reduce to rank {opts.rootRank}")
        return tensors

    def _reduce_sparse(self, tensors: list[Any], op: Any) -> Steps:
        factors = {ReduceOp.SUM: 1.0, ReduceOp.AVG: 1 / self.size()}
        factor = factors.get(_dtypes.kind_of(op))
        if factor is None:
            name = _dtypes.op_name(op)
            raise BadInputError(f"all_reduce of sparse tensors takes SUM or AVG, not {name}")
        for tensor in tensors:
            result = yield from _sparse.summed(tensor, self.size(), factor)
            with torch.no_grad():  # detach() would have indices of its own
                tensor.copy_(result)

    def _reduce(self, tensors: list[Any], op: Any, what: str) -> Steps:
        order = _checks.in_place(tensors, what)
        written = _checks.in_memory(tensors)
        yield from self._reduce_in_memory(written, op, what, order)
        _checks.put_back(written, tensors)

    def _reduce_in_memory(self, tensors: list[Any], op: Any, what: str, order: str) -> Steps:
        if tensors[0].is_complex() and _dtypes.kind_of(op) in (ReduceOp.SUM, ReduceOp.AVG):
            tensors = [torch.view_as_real(tensor.detach()) for tensor in tensors]
        dtype = tensors[0].dtype
        known = _dtypes.core_op(op)
        words = order if what == "all_reduce" else f"{what} {order}".strip()
        if known is not None and dtype in _dtypes.REDUCIBLE:
            yield _requests.allreduce(tensors, *known, words, dims=_long_dims)
            return
        of_bools = _dtypes.op_of_bools(op) if dtype is torch.bool else None
        if of_bools is not None:
            yield from _reduce_bools(tensors, of_bools, words)
            return
        fold = _dtypes.fold_of(op, dtype)
        if fold is None:
            accepted = ", ".join(str(one).removeprefix("torch.") for one in _dtypes.REDUCIBLE)
            raise BadInputError(
                f"{what} has no {_dtypes.op_name(op)} of {dtype}; SUM, AVG, MIN, MAX and PRODUCT "
                f"take {accepted}, bitwise operations take integers and bool"
            )
        for tensor in tensors:
            everyone = tensor.new_empty((self.size(), tensor.numel()))
            yield _requests.allgather(everyone, _lists.apart(tensor, everyone))
            _lists.spread(functools.reduce(fold, everyone), [tensor])

    @numbered("reduce_scatter_tensor")
    def _reduce_scatter_base(self, written: Any, read: Any, opts: Any = None, *_: Any) -> Steps:
        """Reduces a tensor; each rank gets its part."""
        yield from self._scatter_sum(written, read, _op(opts))
        return [written]

    reduce_scatter_tensor = reduce_scatter_single = _reduce_scatter_base

    @numbered("reduce_scatter_tensor")
    def reduce_scatter_tensor_coalesced(
        self, written: Any, read: Any, opts: Any = None, *_: Any
    ) -> Steps:
        """Several reduce_scatter_tensor."""
        for one, other in zip(written, read, strict=True):
            yield from self._scatter_sum(one, other, _op(opts))
        return written

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    @numbered("reduce_scatter")
    def reduce_scatter(self, written: Any, read: Any, opts: Any = None, *_: Any) -> Steps:
        """Reduces lists of tensors, which may differ in size; each rank gets its own."""
        what = "reduce_scatter"
        written = _checks.only(written, what)
        read = read if isinstance(read[0], torch.Tensor) else _checks.only(read, what)
        _checks.check_count(len(read), self.size(), what)
        _checks.check_dense([written, *read], what)
        _checks.check_elements(written.numel(), read[self._rank].numel(), f"{what}'s output")
        if len({tensor.numel() for tensor in read}) == 1:
            yield from self._scatter_sum(written, _lists.joined(read, written), _op(opts))
        else:
            whole = torch.cat([tensor.detach().reshape(-1) for tensor in read])
            yield from self._reduce([whole], _op(opts), what)
            _lists.spread(whole.split([tensor.numel() for tensor in read])[self._rank], [written])
        return [written]

    def _scatter_sum(self, written: Any, read: Any, op: Any) -> Steps:
        what = "reduce_scatter_tensor"
        _checks.output(written, what)
        _checks.check_dense([written, read], what)
        _checks.check_elements(read.numel(), self.size() * written.numel(), f"{what}'s input")
        known = _dtypes.core_op(op)
        if known is not None and read.dtype in _dtypes.REDUCIBLE:
            read = _lists.apart(read, written)
            yield _requests.reducescatter(written, read, self.size(), *known)
            return
        whole = read.detach().clone(memory_format=torch.contiguous_format).view(-1)
        yield from self._reduce([whole], op, what)
        _lists.spread(whole.chunk(self.size())[self._rank], [written])

    # ---- what only moves

    @numbered("broadcast")
    def broadcast(self, tensors: Any, opts: Any = None, *_: Any) -> Steps:
        """Sends tensors of the root to all."""
        tensors = _list(tensors)
        order = _checks.in_place(tensors, "broadcast")
        root = opts if isinstance(opts, int) else opts.rootRank
        written = _checks.in_memory(tensors)
        yield _requests.broadcast(written, self._ranks[root], order, dims=_elements)
        _checks.put_back(written, tensors)
        return tensors

    @numbered("all_gather_into_tensor")
    def _allgather_base(self, written: Any, read: Any, opts: Any = None, *_: Any) -> Steps:
        """Gathers tensors of one size in one tensor."""
        yield from self._gather_into(written, read)
        return [written]

    allgather_into_tensor = all_gather_single = _allgather_base

    @numbered("all_gather_into_tensor")
    def allgather_into_tensor_coalesced(
        self, written: Any, read: Any, opts: Any = None, *_: Any
    ) -> Steps:
        """Several all_gather_into_tensor."""
        for one, other in zip(written, read, strict=True):
            yield from self._gather_into(one, other)
        return written

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def _gather_into(self, written: Any, read: Any) -> Steps:
        what = "all_gather_into_tensor"
        _checks.output(written, what)
        _checks.check_dense([written, read], what)
        _checks.check_elements(written.numel(), self.size() * read.numel(), f"{what}'s output")
        before = self._rank * read.numel()
        own = _lists.own_part(read, written, before)  # FSDP's is in place
        yield _requests.allgather(written, own)

    @numbered("all_gather")
    def allgather(self, written: Any, read: Any, opts: Any = None, *_: Any) -> Steps:
        """Gathers tensors, which may differ in size, in lists."""
        read = _checks.only(read, "all_gather")
        outputs = written if isinstance(written[0], torch.Tensor) else written[0]
        yield from self._gather_list(outputs, read)
        return written

    @numbered("all_gather_coalesced")
    def allgather_coalesced(self, written: Any, read: Any, opts: Any = None, *_: Any) -> Steps:
        """Several all_gather; written[rank] has what comes from that rank."""
        for i, tensor in enumerate(read):
            yield from self._gather_list([outputs[i] for outputs in written], tensor)
        return written

    def _gather_list(self, written: Sequence[Any], read: Any) -> Steps:
        what = "all_gather"
        _checks.check_count(len(written), self.size(), what)
        _checks.check_dense([*written, read], what)
        counts = [tensor.numel() for tensor in written]
        _checks.check_elements(read.numel(), counts[self._rank], f"{what}'s input")
        sizes = None if len(set(counts)) == 1 else counts
        if _lists.in_host_memory(written):
            own = _lists.unchanged(read, _lists.places(written), self._rank)
            yield _requests.with_lists(_requests.allgather(own, own, sizes), written)
            return
        flat = _lists.room(written, read)
        own = _lists.own_part(read, flat, sum(counts[: self._rank]))
        yield _requests.allgather(flat, own, sizes)
        _lists.spread(flat, written)

    @numbered("gather")
    def gather(self, written: Any, read: Any, opts: Any = None, *_: Any) -> Steps:
        """Gathers tensors of one size on the root."""
        read, root, what = _checks.only(read, "gather"), opts.rootRank, "gather"
        outputs = _checks.only(written, what) if self._rank == root else []
        _checks.check_dense([read, *outputs], what)
        if self._rank == root:
            _checks.check_count(len(outputs), self.size(), what)
            for tensor in outputs:
                _checks.check_elements(tensor.numel(), read.numel(), f"{what}'s output")
        words, size = f"gather to rank {root} elements={read.numel()}", self.size()
        counts = [read.numel() if p == root else 0 for _ in range(size) for p in range(size)]
        if _lists.in_host_memory([read, *outputs]):
            own = _lists.unchanged(read, _lists.places(outputs), self._rank)
            request = _requests.alltoall(own, own, counts, words)
            yield _requests.with_lists(request, outputs or None, [own] * size)
            return written
        flat = _lists.room(outputs, read)
        yield _requests.alltoall(flat, _lists.apart(read, flat), counts, words)
        _lists.spread(flat, outputs)
        return written

    @numbered("scatter")
    def scatter(self, written: Any, read: Any, opts: Any = None, *_: Any) -> Steps:
        """Scatters tensors of one size from the root."""
        written, root, what = _checks.only(written, "scatter"), opts.rootRank, "scatter"
        inputs = _checks.only(read, what) if self._rank == root else []
        _checks.output(written, what)
        _checks.check_dense([written, *inputs], what)
        if self._rank == root:
            _checks.check_count(len(inputs), self.size(), what)
            for tensor in inputs:
                _checks.check_elements(tensor.numel(), written.numel(), f"{what}'s input")
        words, size = f"scatter from rank {root} elements={written.numel()}", self.size()
        counts = [written.numel() if r == root else 0 for r in range(size) for _ in range(size)]
        if _lists.in_host_memory([written, *inputs]):
            yield self._of_lists([written] * size, inputs, counts, words)
            return [written]
        yield _requests.alltoall(written, _lists.joined(inputs, written), counts, words)
        return [written]

    def _of_lists(
        self,
        written: Sequence[torch.Tensor],
        read: Sequence[torch.Tensor],
        counts: Sequence[int],
        words: str = "",
    ) -> Any:
        """An alltoall of plain tensors in the host's memory, where they are.

        read: empty on a rank that sends nothing.
        """
        places, own = _lists.places(written), self._rank
        inputs = [
            _lists.unchanged(tensor, places, own if rank == own else None)
            for rank, tensor in enumerate(read)
        ]
        elements = sum(tensor.numel() for tensor in read)
        request = _requests.alltoall(written[0], written[0], counts, words, elements)
        return _requests.with_lists(request, written, inputs or None)

    @numbered("all_to_all_single")
    def alltoall_base(
        self, written: Any, read: Any, to: Any, into: Any, opts: Any = None, *_: Any
    ) -> Steps:
        """Exchanges parts of tensors; `to`: rows that come from each rank, `into`: that go there.

        Empty lists: as many for each.
        """
        what = "all_to_all_single"
        _checks.output(written, what)
        _checks.check_dense([written, read], what)
        received = self._elements(written, to, f"{what}'s output")
        sent = self._elements(read, into, f"{what}'s input")
        counts = yield from self._counts(received, sent)
        yield _requests.alltoall(written, _lists.apart(read, written), counts)
        return [written]

    all_to_all_single = alltoall_base

    @numbered("all_to_all")
    def alltoall(self, written: Any, read: Any, opts: Any = None, *_: Any) -> Steps:
        """Exchanges tensors, which may differ in size."""
        for tensors in (written, read):
            _checks.check_count(len(tensors), self.size(), "all_to_all")
        _checks.check_dense([*written, *read], "all_to_all")
        received, sent = ([tensor.numel() for tensor in tensors] for tensors in (written, read))
        counts = yield from self._counts(received, sent)
        if _lists.in_host_memory([*written, *read]):
            yield self._of_lists(written, read, counts)
            return written
        flat = _lists.room(written, written[0])
        yield _requests.alltoall(flat, _lists.joined(read, flat), counts)
        _lists.spread(flat, written)
        return written

    def _elements(self, tensor: Any, splits: Sequence[int], what: str) -> list[int]:
        """The elements of each rank's part, from its rows."""
        rows = tensor.shape[0] if tensor.dim() else 0
        ranks = self.size()
        if not splits:
            if rows % ranks:
                raise BadInputError(
                    f"{what} has {rows} rows, which {ranks} ranks do not divide; give split sizes"
                )
            splits = [rows // ranks] * ranks
        if len(splits) != ranks or sum(splits) != rows or min(splits) < 0:
            raise BadInputError(
                f"{what} has {rows} rows and split sizes {list(splits)}; give {ranks} that sum to "
                "the rows"
            )
        row = tensor.numel() // rows if rows else 0
        return [count * row for count in splits]

    def _counts(self, received: Sequence[int], sent: Sequence[int]) -> Steps:
        """Tells all ranks how many elements each has for each, and has room for.

        Returns:
          Those that rank r sends to rank p, at [r * ranks + p].
        """
        ranks = self.size()
        request, told = _requests.allgather_integers([*sent, *received], ranks)
        yield request
        sends, rooms = [row[:ranks] for row in told], [row[ranks:] for row in told]
        for source, target in itertools.product(range(ranks), repeat=2):
            if sends[source][target] != rooms[target][source]:
                raise BadInputError(
                    f"rank {source} sends {sends[source][target]} elements to rank {target}, which "
                    f"has room for {rooms[target][source]}; on each pair of ranks the sizes must "
                    "be equal"
                )
        return list(itertools.chain.from_iterable(sends))

    @numbered("barrier")
    def barrier(self, opts: Any = None, *_: Any) -> Steps:
        """Waits for all ranks."""
        yield _requests.barrier()

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Waits for all ranks; rank 0 tells which have not come.

        It goes by the group's store, so the job can go on after an error. PyTorch's function of
        this name refuses all backends but gloo, so it is called as a method of the group.

        Args:
          timeout: of the wait; that of the group by default.
          wait_all_ranks: name all ranks that are missing; only the first one otherwise.

        Raises:
          DistBackendError: a rank has not come; on all ranks that have.

        Examples:
          >>> import torch.distributed as dist
          >>> dist.group.WORLD.monitored_barrier(timedelta(seconds=30))
        """
        seconds = (self._timeout if timeout is None else timeout).total_seconds()
        where = f"barrier {next(self._barriers)} of group {self._label}"
        _monitored.barrier(self._store, self._rank, self.size(), where, seconds, wait_all_ranks)

    # ---- between two ranks; C++ calls these in compiled functions too

    def _connections(self) -> PointToPoint:
        if self._between_two is None:
            messages = Messages(self._set, self._label, self._limit())
            place = (self._store, self._rank, self.size(), self._timeout)
            self._between_two = PointToPoint(carrier(*place, messages))
        return self._between_two

    @torch.compiler.disable
    def send(self, tensors: Any, dst: int, tag: int = 0) -> Work:
        """Sends a tensor to a rank of the group."""
        return self._connections().send(tensors, dst, tag)

    @torch.compiler.disable
    def recv(self, tensors: Any, src: int, tag: int = 0) -> Work:
        """Receives a tensor from a rank of the group."""
        return self._connections().recv(tensors, src, tag)

    @torch.compiler.disable
    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Receives a tensor from any rank of the group."""
        return self._connections().recv_anysource(tensors, tag)

    def _get_backend(self, device: Any) -> Any:
        """The group itself, whatever the device."""
        del device
        return self

    supports_coalescing = supports_splitting = False
