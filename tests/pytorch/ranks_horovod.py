"""Horovod's functions for PyTorch, on every rank."""

import contextlib
import itertools
import time

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from caught import error_of
from harness import rank, report, size, without_init
from ranks_training import RATE, ROWS, Model, Whole, _assert_equal, _loss, _sgd, _train

import smddp_tf.torch as hvd

SUM = sum(range(1, size + 1))


def _own(*shape, dtype=torch.float32):
    return torch.full(shape, rank + 1, dtype=dtype)


@without_init
def collectives():
    """Exact results, sync and async, in place and not; handles that ranks begin in other orders."""
    hvd.init()
    assert (hvd.rank(), hvd.size(), hvd.local_size()) == (rank, size, size)
    assert hvd.allreduce(_own(3)).tolist() == 3 * [SUM / size]
    assert hvd.allreduce(_own(3), average=False).tolist() == 3 * [SUM]
    assert hvd.allreduce(_own(3, dtype=torch.int64), op=hvd.Sum).tolist() == 3 * [SUM]
    assert hvd.allreduce(_own(2), op=hvd.Max, name="max").tolist() == 2 * [size]
    assert hvd.allreduce(_own(2), compression=hvd.Compression.fp16).dtype is torch.float32
    scaled = hvd.allreduce(_own(2), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    assert scaled.tolist() == 2 * [2.0 * SUM]
    tensor = _own(2)
    assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor and tensor.tolist() == 2 * [SUM]
    numbers = range(20) if rank % 2 else reversed(range(20))
    handles = {i: hvd.allreduce_async(_own(5) * i, name=str(i), op=hvd.Sum) for i in numbers}
    for i in range(20):
        assert hvd.synchronize(handles[i]).tolist() == 5 * [SUM * i]
        assert hvd.poll(handles[i])
    weights = _own(3).requires_grad_()
    (hvd.allreduce(weights * 2, op=hvd.Sum) * (rank + 1)).sum().backward()
    assert weights.grad.tolist() == 3 * [2.0 * SUM]
    rows = hvd.allgather(_own(rank + 1, 2))
    assert rows[:, 0].tolist() == [r + 1.0 for r in range(size) for _ in range(r + 1)]
    assert hvd.allgather(torch.tensor(rank)).tolist() == list(range(size))
    assert hvd.allgather(torch.empty(0 if rank else 2, 3)).shape == (2, 3)
    assert hvd.broadcast(_own(2), size - 1).tolist() == 2 * [float(size)]
    tensor = _own(2)
    assert hvd.broadcast_(tensor, 0) is tensor and tensor.tolist() == [1.0, 1.0]
    assert hvd.broadcast_object([rank, "x" * 1000], 1) == [1, "x" * 1000]
    assert hvd.allgather_object({"r": "y" * rank}) == [{"r": "y" * r} for r in range(size)]
    hvd.barrier()
    one = hvd.add_process_set([0])
    if rank == 0:
        assert hvd.allreduce(_own(2), process_set=one).tolist() == [1.0, 1.0]
    report(done=True)


@without_init
def errors():
    """Shapes that differ, and arguments that cannot be used."""
    hvd.init()
    kind, text = error_of(lambda: hvd.allreduce(_own(3 + rank), name="loss"))
    assert kind == "DistBackendError" and "'allreduce.loss'" in text, text
    assert "rank 0 has [float32 [3]]" in text and "[float32 [4]]" in text, text
    kind, text = error_of(lambda: hvd.allgather(torch.ones(2, 3 + rank)))
    assert kind == "DistBackendError" and "rows of [3]" in text and "rows of [4]" in text, text
    for function, words in {
        lambda: hvd.allreduce(_own(2), average=True, op=hvd.Sum): "give op or average, not both",
        lambda: hvd.allreduce(_own(2) > 1, op=hvd.Sum): "allreduce of torch.bool",
        lambda: hvd.broadcast(_own(2), size): f"root_rank={size} is not among",
        lambda: hvd.allgather_async(_own(2).requires_grad_()): "allgather_async has no gradient",
        lambda: hvd.broadcast_parameters([1, 2]): "takes model.state_dict()",
    }.items():
        kind, text = error_of(function)
        assert kind in ("ValueError", "BadInputError") and words in text, (kind, text)
    model = torch.nn.Linear(2, 1)
    names = [("same", one) for one in model.parameters()]
    for function, words in {
        lambda: hvd.DistributedOptimizer(_sgd(model.parameters()), names): "must be unique",
        lambda: hvd.DistributedOptimizer(_sgd(model.parameters()), names[:1]): "lacks 1 of",
        lambda: hvd.DistributedOptimizer(_sgd(model.parameters()), op=hvd.Max): "Sum or Adasum",
    }.items():
        kind, text = error_of(function)
        assert kind == "ValueError" and words in text, (kind, text)
    optimizer = hvd.DistributedOptimizer(_sgd(model.parameters()), model.named_parameters())
    kind, text = error_of(lambda: hvd.DistributedOptimizer(optimizer))
    assert kind == "ValueError" and "already" in text, text
    model(torch.ones(1, 2)).sum().backward()
    kind, text = error_of(lambda: model(torch.ones(1, 2)).sum().backward())
    assert "backward_passes_per_step" in text, text
    optimizer.step()
    table = torch.nn.Embedding(5, 2, sparse=True)
    table.weight.data.fill_(0)
    dense = hvd.DistributedOptimizer(_sgd(table.parameters()), sparse_as_dense=True)
    table(torch.tensor([rank])).sum().backward()
    dense.step()
    assert table.weight[:size].flatten().tolist() == 2 * size * [-RATE / size]
    assert hvd.allreduce(_own(2), op=hvd.Sum).tolist() == 2 * [SUM]
    report(done=True)


def _zeros(optimizer, *_):
    """Gives what was not used a gradient of zeros, as DistributedOptimizer does."""
    for weights in optimizer.param_groups[0]["params"]:
        if weights.grad is None:
            weights.grad = torch.zeros_like(weights)


@without_init
def training():
    """DistributedOptimizer in its modes has the weights of one process, bit for bit."""
    hvd.init()
    cases = [
        (Whole, {}, {}),
        (Whole, {"gradient_predivide_factor": 2.0}, {}),
        (Whole, {"backward_passes_per_step": 2}, {"every": 2}),
        (Model, {}, {}),
    ]
    for make, options, training in cases:
        model = make()
        if rank:
            for weights in model.parameters():
                weights.data.fill_(rank)
        hvd.broadcast_parameters(model.state_dict(), 0)
        optimizer = _sgd(model.parameters())
        named = model.named_parameters()
        optimizer = hvd.DistributedOptimizer(optimizer, named, **options)
        _train(model, optimizer, **training)
        alone = make()
        optimizer = _sgd(alone.parameters())
        optimizer.register_step_pre_hook(_zeros)
        _train(alone, optimizer, own_rows=False, **training)
        alone = list(alone.parameters())
        _assert_equal(list(model.parameters()), alone)
    report(done=True)


@without_init
def new_optimizer():
    """The next phase of a training has an optimizer of its own, for the same model."""
    hvd.init()
    model, alone = Whole(), Whole()
    optimizers = []
    for _ in range(2):
        optimizers.append(hvd.DistributedOptimizer(_sgd(model.parameters())))
        _train(model, optimizers[-1])
        _train(alone, _sgd(alone.parameters()), own_rows=False)
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-14)
    kind, text = error_of(optimizers[0].step)
    assert kind == "ValueError" and "a newer DistributedOptimizer" in text, text
    report(done=True)


def _in_phases(rows, op, passes=1):
    """Weights after layers were frozen, unfrozen and added; `op` None: of one process."""
    torch.manual_seed(1)
    sizes = [(4, 6), (6, 5), (5, 2)]
    layers = [torch.nn.Linear(*of, dtype=torch.float64) for of in sizes]
    model = torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1], torch.nn.Tanh(), layers[2])
    layers[0].requires_grad_(False)
    two = [*layers[0].parameters(), *layers[1].parameters()]
    optimizer = torch.optim.SGD(two, 0.1, momentum=0.9, weight_decay=0.01)
    if op is not None:
        options = {"backward_passes_per_step": passes, "op": op}
        optimizer = hvd.DistributedOptimizer(optimizer, **options)

    def add_the_last():
        optimizer.add_param_group({"params": list(layers[2].parameters())})

    phases = [
        lambda: None,
        lambda: layers[0].requires_grad_(True),
        lambda: layers[1].requires_grad_(False),
        add_the_last,
        lambda: (layers[1].requires_grad_(True), layers[0].requires_grad_(False)),
    ]
    batches = iter(rows)
    for change in phases:
        change()
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(passes):
                inputs = next(batches).flatten(0, -2)
                (model(inputs).square().mean() / passes).backward()
            optimizer.step()
    return list(model.parameters())


@without_init
def other_parameters():
    """Layers that are frozen, unfrozen or added between steps: as in one process."""
    hvd.init()
    torch.manual_seed(2)
    rows = torch.randn(20, size, 3, 4, dtype=torch.float64)
    for passes in (1, 2):
        own = _in_phases(rows[:, rank], hvd.Average, passes)
        for one, other in zip(own, _in_phases(rows, None, passes), strict=True):
            assert torch.allclose(one, other, rtol=0, atol=1e-14), (passes, one - other)
    alone = _in_phases(rows[:, 0], None)
    same_rows = rows[:, :1].expand_as(rows)[:, rank]
    for one, other in zip(_in_phases(same_rows, hvd.Adasum), alone, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-14), one - other
    combined = _in_phases(rows[:, rank], hvd.Adasum)
    assert len(set(hvd.allgather_object(repr([one.tolist() for one in combined])))) == 1
    report(done=True)


def _changed_after_backward(rows, wrap, change):
    """Weights of a model whose gradients are changed between backward() and step()."""
    torch.manual_seed(3)
    sizes = [3, *[700] * 4, 2]
    layers = [torch.nn.Linear(*of, dtype=torch.float64) for of in itertools.pairwise(sizes)]
    optimizer = wrap(torch.optim.SGD([one for each in layers for one in each.parameters()], 0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    for inputs in rows:
        inputs = inputs.flatten(0, -2).detach().requires_grad_()  # as reentrant checkpoints need
        for layer in layers:
            inputs = torch.utils.checkpoint.checkpoint(
                layer, inputs, use_reentrant=change == "reentrant"
            )
        optimizer.zero_grad()
        loss = inputs.square().mean()
        if change == "scaler":
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            continue
        (100 * loss).backward()
        norm = torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.5)
        assert norm > 0.5
        optimizer.step()
    return [one.detach() for one in optimizer.param_groups[0]["params"]]


@without_init
def changed_after_backward():
    """Clipped or scaled without synchronize(), as scripts for one process do."""
    hvd.init()
    torch.manual_seed(2)
    rows = torch.randn(4, size, 5, 3, dtype=torch.float64)
    for change in ("clip", "reentrant", "scaler"):
        own = _changed_after_backward(rows[:, rank], hvd.DistributedOptimizer, change)
        alone = _changed_after_backward(rows, lambda optimizer: optimizer, change)
        for one, other in zip(own, alone, strict=True):
            assert torch.allclose(one, other, rtol=0, atol=1e-13), (
                change,
                (one - other).abs().max(),
            )
    report(done=True)


@without_init
def clipped_after_compiled_backward():
    """torch.compile() of the backward pass too, which calls no callbacks of autograd."""
    hvd.init()
    torch.manual_seed(2)
    rows = torch.randn(3, size, 5, 300, dtype=torch.float64)
    torch._dynamo.config.compiled_autograd = True
    ends = []
    for distribute in (True, False):
        torch.manual_seed(3)
        layers = [torch.nn.Linear(300, 300, dtype=torch.float64) for _ in range(3)]
        model = torch.nn.Sequential(*layers)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if distribute:
            optimizer = hvd.DistributedOptimizer(optimizer)

        @torch.compile(backend="aot_eager")
        def backward(inputs, model=model):
            (1000 * model(inputs).square().mean()).backward()

        for inputs in rows[:, rank] if distribute else rows.flatten(1, 2):
            optimizer.zero_grad()
            backward(inputs)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        ends.append([one.detach() for one in model.parameters()])
    for one, other in zip(*ends, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-13), one - other
    report(done=True)


@without_init
def one_sided():
    """A layer that one rank alone has used."""
    hvd.init()
    model = Model()
    optimizer = hvd.DistributedOptimizer(_sgd(model.parameters()))
    _loss(model, 0, ROWS * rank, ROWS * (rank + 1), rank == 0).backward()
    optimizer.synchronize()
    alone = Model()
    (_loss(alone, 0, 0, ROWS, True) / size).backward()
    assert torch.equal(model.second.weight.grad, alone.second.weight.grad)
    assert not model.third.weight.grad.any()
    with optimizer.skip_synchronize():
        optimizer.step()
    report(done=True)


@without_init
def optimizer_state():
    """All take rank 0's, whatever they had, and its options."""
    hvd.init()
    model = torch.nn.Linear(3, 2)
    hvd.broadcast_parameters(model.named_parameters(), 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5 if rank else 0.25)
    if rank == 0:
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert optimizer.param_groups[0]["lr"] == 0.25
    states = hvd.allgather_object([one["exp_avg"] for one in optimizer.state.values()])
    assert len(states[0]) == 2 and states[0][0].any()
    assert all(torch.equal(a, b) for one in states for a, b in zip(one, states[0], strict=True))
    dist.init_process_group("smddp")  # both ways in one process
    assert dist.get_world_size() == size
    report(done=True)


def _uneven_steps(model, optimizer, rows, batches):
    """Trains on rows of small integers, whose sums are exact."""
    for step in range(batches):
        optimizer.zero_grad()
        (model(rows[step]) * 2.0**-3).sum().backward()
        optimizer.step()
        yield


def _without_optimizer(all_rows, batches, over):
    """What joined ranks' zeros make of the weights: the sum of those that have rows, over all."""
    weight, bias = torch.ones(1, 4), torch.zeros(1)
    for step in range(max(batches)):
        pairs = zip(all_rows, batches, strict=True)
        present = [rows[step] for rows, count in pairs if step < count]
        weight -= 0.5 * 2.0**-3 * sum(rows.sum(0) for rows in present) / over
        bias -= 0.5 * 2.0**-3 * sum(len(rows) for rows in present) / over
    return torch.cat([weight.flatten(), bias])


@without_init
def outside_of_a_set():
    """An optimizer of a process set leaves the gradients of other ranks alone, as Horovod's."""
    hvd.init()
    first = hvd.add_process_set(range(size - 1))
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=RATE), process_set=first)
    for _ in range(2):
        optimizer.zero_grad()
        (weight * (rank + 1)).sum().backward()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
    mean = rank + 1 if rank == size - 1 else sum(range(1, size)) / (size - 1)
    assert weight.tolist() == 2 * [-2 * RATE * mean], (weight, mean)
    kind, text = error_of(lambda: hvd.allreduce(weight, process_set=first))
    assert kind == ("ValueError" if rank == size - 1 else ""), text
    report(done=True)


@without_init
def unnamed_in_sets():
    """Ranks of different process sets make different numbers of collectives without a name."""
    hvd.init()
    sets = [hvd.add_process_set([r for r in range(size) if r % 2 == odd]) for odd in (0, 1)]
    mine = sets[rank % 2]
    for _ in range(3 + 4 * (rank % 2)):
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=mine).item() == mine.size()
        assert hvd.broadcast(_own(2), mine.ranks[0], process_set=mine).tolist() == 2 * [
            mine.ranks[0] + 1
        ]
    assert hvd.allreduce(_own(3), op=hvd.Sum).tolist() == 3 * [SUM]
    assert hvd.broadcast(_own(2), size - 1).tolist() == 2 * [float(size)]
    report(done=True)


@without_init
def steps_of_the_script():
    """synchronize() before step(), which reduces no gradient again; sparse gradients as dense."""
    hvd.init()
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Sum)
    for step in range(1, 4):
        optimizer.zero_grad()
        (weight * (rank + 1)).sum().backward()
        if step != 2:
            optimizer.synchronize()
            assert weight.grad.tolist() == 2 * [SUM]
            weight.grad /= 2
        optimizer.step()
    assert weight.tolist() == 2 * [-2.0 * SUM]
    weight.grad = torch.full((2,), rank + 1.0)  # not by a backward pass
    optimizer.step()
    assert weight.tolist() == 2 * [-3.0 * SUM]
    for keyword in (False, True):
        skips = optimizer.skip_synchronize() if keyword else contextlib.nullcontext()

        def closure(waits=keyword):
            optimizer.zero_grad()
            loss = (weight * (rank + 1)).sum()
            loss.backward()
            if waits:  # as scripts and trainers do that clip
                optimizer.synchronize()
                weight.grad /= 2
            return loss

        with skips:
            loss = optimizer.step(closure=closure) if keyword else optimizer.step(closure)
        assert loss.item() == (rank + 1) * 2 * -SUM * (4 if keyword else 3), loss
    assert weight.tolist() == 2 * [-4.5 * SUM]
    optimizer.zero_grad()
    (weight * (rank + 1)).sum().backward()
    optimizer.step()
    assert weight.tolist() == 2 * [-5.5 * SUM]

    table = torch.nn.Embedding(6, 2, sparse=True)
    torch.nn.init.zeros_(table.weight)
    sparse = torch.optim.SparseAdam(list(table.parameters()), lr=0.5)
    sparse = hvd.DistributedOptimizer(sparse, sparse_as_dense=True, op=hvd.Sum)
    sparse.zero_grad()
    (table(torch.tensor([rank % 2, 4])) * (rank + 1)).sum().backward()
    sparse.synchronize()
    assert table.weight.grad.is_sparse
    rows = [sum(r + 1 for r in range(size) if r % 2 == odd) for odd in (0, 1)] + [0, 0, SUM, 0]
    assert table.weight.grad.to_dense()[:, 0].tolist() == rows
    sparse.step()
    assert table.weight[:, 0].ne(0).tolist() == [row != 0 for row in rows]
    report(done=True)


def _fitted(parameters, first, last, distribute):
    """Fits a curve to rows by L-BFGS, which calls the closure as often as the loss asks for."""
    inputs = torch.linspace(-1, 1, 24, dtype=torch.float64)[first:last]
    wanted, calls = torch.sin(3 * inputs), []
    optimizer = torch.optim.LBFGS(parameters, max_iter=7, line_search_fn="strong_wolfe")
    if distribute:
        optimizer = hvd.DistributedOptimizer(optimizer)

    def closure():
        optimizer.zero_grad()
        a, b, c = parameters
        loss = (a * torch.tanh(b * inputs + c) - wanted).square().mean()
        loss.backward()
        calls.append(loss.item())
        return loss

    losses = [float(optimizer.step(closure)) for _ in range(4)]
    return losses, len(calls)


@without_init
def lbfgs():
    """The way of one process that has all ranks' rows."""
    hvd.init()
    own, alone = (
        [torch.nn.Parameter(torch.tensor(x, dtype=torch.float64)) for x in (0.5, 0.7, 0.3)]
        for _ in range(2)
    )
    rows = 24 // size
    got, calls = _fitted(own, rank * rows, (rank + 1) * rows, distribute=True)
    want, calls_alone = _fitted(alone, 0, 24, distribute=False)
    assert calls == calls_alone > 4, (calls, calls_alone)
    assert torch.allclose(torch.tensor(got), torch.tensor(want), rtol=1e-6), (got, want)
    for one, other in zip(own, alone, strict=True):
        assert torch.allclose(one, other, rtol=1e-5), (own, alone)
    assert len(set(hvd.allgather_object(repr([one.item().hex() for one in own])))) == 1
    report(done=True)


@without_init
def names_under_way():
    """A second collective of a name is refused at its call, and the job goes on."""
    hvd.init()
    if rank == 0:
        handle = hvd.allreduce_async(_own(2), name="twice", op=hvd.Sum)
        for call in (hvd.allreduce_async, hvd.allreduce):
            kind, text = error_of(lambda call=call: call(_own(2), name="twice"))
            assert kind == "ValueError" and "'allreduce.twice' is under way" in text, (kind, text)
    else:
        time.sleep(2)  # so that rank 0's is under way while it tries
        handle = hvd.allreduce_async(_own(2), name="twice", op=hvd.Sum)
    assert hvd.synchronize(handle).tolist() == 2 * [SUM]
    again = hvd.allreduce_async(_own(2), name="twice", op=hvd.Sum)
    assert hvd.synchronize(again).tolist() == 2 * [SUM]
    whole = torch.tensor([3 * (rank + 1), 1, 7])
    assert hvd.allreduce(whole).tolist() == [3 * SUM // size, 1, 7]
    assert hvd.allreduce(whole, op=hvd.Sum, prescale_factor=0.5).tolist() == [
        sum(3 * (r + 1) // 2 for r in range(size)),
        0,
        3 * size,
    ]
    rows = torch.full((size, 2), rank + 1)
    assert hvd.reducescatter(rows).tolist() == [2 * [SUM // size]]
    assert hvd.reducescatter(rows, op=hvd.Sum, prescale_factor=1.5).tolist() == [
        2 * [sum(3 * (r + 1) // 2 for r in range(size))]
    ]
    assert rows.tolist() == size * [2 * [rank + 1]]
    report(done=True)


def _largest():
    hvd.allreduce(torch.ones(1), op=hvd.Max)


def _gathered():
    hvd.allgather(torch.ones(1))


@without_init
def joins():
    """Ranks that have fewer batches join, the first ones first, and then the last ones first."""
    hvd.init()
    in_one_node = hvd.local_size() == size
    for batches in ([r + 1 for r in range(size)], [size - r for r in range(size)], size * [2]):
        model = torch.nn.Linear(4, 1)
        torch.nn.init.ones_(model.weight)
        torch.nn.init.zeros_(model.bias)
        all_rows = [
            [torch.arange(8.0).view(2, 4) + r - 2 * step for step in range(size + 1)]
            for r in range(size)
        ]
        op, over = (hvd.Sum, 1) if size == 3 else (hvd.Average, size)  # thirds are not exact
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), op=op)
        for step, _ in enumerate(_uneven_steps(model, optimizer, all_rows[rank], batches[rank])):
            here = sum(step < count for count in batches)
            assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == 3 * [here]  # unnamed
            numbers = list(range(5)) if rank % 2 else [3, 1, 4, 0, 2]
            handles = [
                hvd.allreduce_async(torch.tensor([float(i)]), name=str(i), op=hvd.Sum)
                for i in numbers
            ]
            found = [hvd.synchronize(one).item() for one in handles]
            assert found == [here * i for i in numbers], (here, numbers, found)
            if in_one_node:
                root = batches.index(max(batches))
                assert hvd.broadcast(torch.tensor(rank), root).item() == root
            for refused in (_largest, _gathered) if here < size else ():
                name, text = error_of(refused)
                assert (name, "join" in text) == ("DistBackendError", True), text
            hvd.barrier()
        last = hvd.join()
        assert last == hvd.broadcast_object(last, 0)
        assert batches[last] == max(batches), (last, batches)
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)
        weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        assert torch.equal(weights, _without_optimizer(all_rows, batches, over)), weights
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist() == [size]
    report(done=True)
