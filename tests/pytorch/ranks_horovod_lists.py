"""Horovod's functions of lists, rows and sparse tensors for PyTorch, on every rank."""

import torch
import torch.distributed as dist
from caught import error_of
from harness import rank, report, size, without_init
from ranks_horovod import SUM, _own
from ranks_training import RATE

import smddp_tf.torch as hvd

ALL = list(range(size))


@without_init
def grouped():
    """Lists of several dtypes, in place and not, and their gradients."""
    hvd.init()
    for function in (hvd.grouped_allreduce, hvd.grouped_allreduce_):
        tensors = [_own(3), _own(2, 2, dtype=torch.float64), _own(1), _own(0)]
        results = function(tensors, op=hvd.Sum, name="list")
        assert [one.tolist() for one in results] == [[SUM] * 3, [[SUM] * 2] * 2, [SUM], []]
        in_place = function is hvd.grouped_allreduce_
        assert tensors[0].tolist() == 3 * [SUM if in_place else rank + 1]
        assert all((a is b) == in_place for a, b in zip(tensors, results, strict=True))
    small = hvd.grouped_allreduce([_own(2)], compression=hvd.Compression.fp16)
    assert small[0].dtype is torch.float32 and small[0].tolist() == 2 * [SUM / size]
    assert hvd.grouped_allreduce([]) == hvd.grouped_allgather([]) == []
    numbers = range(9) if rank % 2 else reversed(range(9))  # in other orders
    handles = {
        i: hvd.grouped_allreduce_async([_own(5) * i], name=str(i), op=hvd.Sum) for i in numbers
    }
    assert all(hvd.synchronize(handles[i])[0].tolist() == 5 * [SUM * i] for i in range(9))
    rows, ranks = hvd.grouped_allgather([_own(rank + 1, 2), torch.tensor(rank)])
    assert rows[:, 1].tolist() == [r + 1.0 for r in ALL for _ in range(r + 1)]
    assert ranks.tolist() == ALL
    one, other = hvd.grouped_reducescatter(
        [_own(size + 1), _own(size, 2, dtype=torch.int64)], op=hvd.Sum
    )
    assert one.tolist() == (2 if rank == 0 else 1) * [SUM]
    assert other.tolist() == [2 * [SUM]]
    x, y = _own(2).requires_grad_(), _own(rank + 1).requires_grad_()
    a, b = hvd.grouped_allreduce([x, y[:1]], op=hvd.Sum)
    ((a * (rank + 1)).sum() + b.sum() * 2).backward()
    assert x.grad.tolist() == 2 * [SUM]
    assert y.grad.tolist() == [2.0 * size] + rank * [0.0]
    (whole,) = hvd.grouped_allgather([y])
    y.grad = None
    (whole * (rank + 1)).sum().backward()  # Horovod averages
    assert y.grad.tolist() == (rank + 1) * [SUM / size]
    z = torch.ones(size, 2, requires_grad=True)
    (own,) = hvd.grouped_reducescatter([z], op=hvd.Sum)
    (own * (rank + 1)).sum().backward()
    assert z.grad.tolist() == [2 * [float(size * (r + 1))] for r in ALL]
    report(done=True)


@without_init
def rows():
    """Alltoall and reducescatter with their gradients; allgather's and broadcast's."""
    hvd.init()
    sent = torch.arange(size, dtype=torch.float32) + 10 * rank
    assert hvd.alltoall(sent).tolist() == [10.0 * r + rank for r in ALL]
    splits = [(rank + p) % 3 for p in ALL]  # some are 0
    values = torch.tensor([[rank, p] for p in ALL for _ in range(splits[p])]).reshape(-1, 2)
    for given in (splits, torch.tensor(splits, dtype=torch.int32)):
        came, counts = hvd.alltoall(values, given, name="rows")
        assert counts.tolist() == [(r + rank) % 3 for r in ALL] and counts.dtype is torch.int32
        assert came.tolist() == [[r, rank] for r in ALL for _ in range((r + rank) % 3)]
    came, counts = hvd.synchronize(hvd.alltoall_async(values.bool(), splits))
    assert came.dtype is torch.bool and len(came) == counts.sum()
    x = torch.ones(sum(splits), requires_grad=True)
    came, _ = hvd.alltoall(x, splits)
    (came * (rank + 1)).sum().backward()
    assert x.grad.tolist() == [p + 1.0 for p in ALL for _ in range(splits[p])]
    for many in (size, size + 1, 1, 2 * size + 1):
        whole = torch.arange(many * 2.0).reshape(many, 2) * (rank + 1)
        own = [r for r in ALL for _ in range(many // size + (r < many % size))]
        begin, count = own.index(rank) if rank in own else 0, own.count(rank)
        wanted = (torch.arange(many * 2.0).reshape(many, 2) * SUM)[begin : begin + count]
        assert torch.equal(hvd.reducescatter(whole, op=hvd.Sum), wanted)
    assert hvd.reducescatter(_own(size)).tolist() == [SUM / size]
    scaled = hvd.reducescatter(_own(size), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    assert scaled.tolist() == [2.0 * SUM]
    assert hvd.reducescatter(_own(size), op=hvd.Max).tolist() == [size]
    x = torch.ones(size + 1, requires_grad=True)
    own = hvd.reducescatter(x, postscale_factor=2.0)
    (own * (rank + 1)).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0] + [2.0 * (r + 1) for r in ALL[1:]]
    x = _own(rank + 1, 2).requires_grad_()
    (hvd.allgather(x) * (rank + 1)).sum().backward()
    assert x.grad.tolist() == (rank + 1) * [2 * [SUM / size]]
    x = _own(2).requires_grad_()
    (hvd.broadcast(x, 1) * (rank + 1)).sum().backward()
    assert x.grad.tolist() == 2 * [SUM / size if rank == 1 else 0.0]
    report(done=True)


@without_init
def errors():
    """Rows that differ, and arguments that cannot be used, on all ranks or on one."""
    hvd.init()
    last = rank == size - 1
    cases = {
        "rows of [3": lambda: hvd.alltoall(torch.ones(size, 3 + rank)),
        "rows of [1, 6]": lambda: hvd.allgather(torch.ones(2, *([1, 6] if last else [2, 3]))),
        "rows of [2], [3]": lambda: hvd.grouped_allgather(
            [torch.ones(1, 2), torch.ones(1, 4 if last else 3)]
        ),
        "float32 [4]": lambda: hvd.reducescatter(_own(4 if last else 3)),
        "splits >= 0": lambda: hvd.alltoall(torch.ones(size), size * [1 + last]),
        "integers as splits": lambda: hvd.alltoall(torch.ones(size), size * [1.5 if last else 1]),
        "sparse [4] of torch.float32": lambda: hvd.synchronize(
            hvd.sparse_allreduce_async(torch.ones(5 if last else 4).to_sparse(), "s")
        ),
    }
    for words, function in cases.items():
        kind, text = error_of(function)
        assert kind == "DistBackendError" and words in text, (kind, text)
    cases = {
        "give splits": lambda: hvd.alltoall(torch.ones(size + 1)),
        "not a scalar": lambda: hvd.alltoall(torch.tensor(1)),
        "at least one dimension": lambda: hvd.reducescatter(torch.tensor(1.0)),
        "list of tensors": lambda: hvd.grouped_allreduce(torch.ones(2)),
        "torch.sparse_coo": lambda: hvd.sparse_allreduce_async(torch.ones(2)),
        "Average or Sum": lambda: hvd.sparse_allreduce_async(torch.ones(2), op=hvd.Max),
        "without _async": lambda: hvd.allgather_async(torch.ones(2, requires_grad=True)),
        "more than one value": lambda: hvd.SyncBatchNorm(2)(torch.ones(1 - min(rank, 1), 2)),
    }
    for words, function in cases.items():
        kind, text = error_of(function)
        assert kind in ("ValueError", "BadInputError") and words in text, (kind, text)
    assert hvd.allreduce(_own(2), op=hvd.Sum).tolist() == 2 * [SUM]
    report(done=True)


def _table(rows, width=2):
    """A sparse [size + 1, width] tensor with rank + 1 in these rows."""
    values = torch.full((len(rows), width), rank + 1.0)
    return torch.sparse_coo_tensor([rows], values, (size + 1, width))


@without_init
def sparse():
    """Sums, averages, a rank without elements; torch.distributed's; Embedding(sparse=True)."""
    hvd.init()
    wanted = torch.zeros(size + 1, 2)
    for r in ALL:
        wanted[r] += r + 1
        wanted[size] += 2 * (r + 1)
    own = _table([size, rank, size])
    handle = hvd.sparse_allreduce_async(own, name="table", op=hvd.Sum)
    result = hvd.synchronize(handle)
    assert result.is_coalesced() and torch.equal(result.to_dense(), wanted) and hvd.poll(handle)
    handle = hvd.sparse_allreduce_async(own, name="table", op=hvd.Average)
    assert torch.equal(handle().to_dense(), wanted * (1 / size))  # as Horovod's is called
    some = hvd.synchronize(hvd.sparse_allreduce_async(_table([0] if rank == 1 else []), op=hvd.Sum))
    assert some.to_dense()[0].tolist() == [2.0, 2.0] and some.values().numel() == 2
    dist.init_process_group("smddp")
    for numbers in (own, own.to(torch.int64)):
        inplace = numbers.clone()
        dist.all_reduce(inplace)
        assert torch.equal(inplace.to_dense(), wanted.to(numbers.dtype))
    kind, text = error_of(lambda: dist.all_reduce(own.clone(), op=dist.ReduceOp.MAX))
    assert "sparse tensors takes SUM or AVG, not MAX" in text, (kind, text)

    for passes in (1, 2):
        table, head = torch.nn.Embedding(4, 2, sparse=True), torch.nn.Linear(2, 1)
        table.weight.data.fill_(1)
        head.weight.data.fill_(1)
        sgd = torch.optim.SGD([*table.parameters(), *head.parameters()], RATE)
        optimizer = hvd.DistributedOptimizer(sgd, backward_passes_per_step=passes)
        for step in range(2):
            optimizer.zero_grad()
            before = table.weight.detach().clone()
            for _ in range(passes):
                looked = table(torch.tensor([rank % 4])) if rank or not step else None
                (head(looked) if looked is not None else head(torch.zeros(1, 2))).sum().backward()
            weight = head.weight.detach().clone().flatten()
            optimizer.synchronize()
            assert table.weight.grad.is_sparse
            wanted = torch.zeros(4, 2)
            for r in ALL:
                wanted[r % 4] += weight * (passes if r or not step else 0)
            assert torch.allclose(table.weight.grad.to_dense(), wanted / size)
            with optimizer.skip_synchronize():
                optimizer.step()
            assert torch.allclose(table.weight, before - RATE * wanted / size)
    report(done=True)


@without_init
def batch_norm():
    """Outputs, gradients and running statistics are those of one process with all rows."""
    hvd.init()
    counts = [0 if r == 1 else 3 * r + 5 for r in ALL]  # of rows
    begin, own = sum(counts[:rank]), counts[rank]
    for shape, options in [
        ([sum(counts), 3], {}),
        ([sum(counts), 3, 4], {"momentum": None}),
        ([sum(counts), 3, 2, 2], {"affine": False, "eps": 1e-3}),
        ([sum(counts), 3], {"track_running_stats": False}),
    ]:
        generator = torch.Generator(torch.empty(0).device).manual_seed(3)
        whole = torch.randn(shape, generator=generator, dtype=torch.float64) * 3 + 1000
        wanted = torch.nn.BatchNorm1d(3, **options).double()
        wanted._check_input_dim = lambda _: None
        layer = hvd.SyncBatchNorm(3, **options).double()
        if layer.affine:
            for one in (wanted, layer):
                one.weight.data.copy_(torch.tensor([1.0, 2.0, 3.0]))
        for step in range(3):
            x = (whole * (step + 1)).requires_grad_()
            mine = (whole * (step + 1))[begin : begin + own].clone().requires_grad_()
            slope = torch.cos(whole)
            whole_output, output = wanted(x), layer(mine)
            (whole_output * slope).sum().backward()
            (output * slope[begin : begin + own]).sum().backward()
            assert torch.allclose(output, whole_output[begin : begin + own])
            assert torch.allclose(mine.grad, x.grad[begin : begin + own], atol=1e-9)
        if layer.affine:
            total = hvd.allreduce(layer.weight.grad, op=hvd.Sum)
            assert torch.allclose(total, wanted.weight.grad)
            assert torch.allclose(hvd.allreduce(layer.bias.grad, op=hvd.Sum), wanted.bias.grad)
        if layer.track_running_stats:
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                running = getattr(layer, name)
                assert torch.allclose(running, getattr(wanted, name))
                assert all(torch.equal(one, running) for one in hvd.allgather(running[None]))
        layer.eval()
        wanted.eval()
        evaluated = wanted(x.detach())[begin : begin + own]
        assert torch.allclose(layer(mine.detach()), evaluated)
    report(done=True)
