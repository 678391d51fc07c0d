"""Adasum of PyTorch tensors, and of optimizers' steps, on every rank."""

import numpy as np
import torch
from caught import error_of
from harness import rank, report, size, without_init
from ranks_horovod import _own

import smddp_tf.torch as hvd


def _combined(vectors):
    """Adasum as the paper has it, in float64: parallel vectors are averaged."""
    while len(vectors) > 1:
        rows = []
        for a, b in zip(vectors[::2], vectors[1::2], strict=False):
            dot, na, nb = a @ b, a @ a, b @ b
            scale_a, scale_b = (1 - dot / 2 / norm if norm else 1.0 for norm in (na, nb))
            rows.append(scale_a * a + scale_b * b)
        vectors = rows + vectors[2 * len(rows) :]
    return vectors[0]


def _vector(of, elements, seed):
    return np.random.RandomState(100 * seed + of).randn(elements)


def _want(elements, seed, ranks=range(size)):
    return _combined([_vector(one, elements, seed) for one in ranks])


def _same_on_all(tensor):
    return len({bytes(one) for one in hvd.allgather_object(tensor.numpy().tobytes())}) == 1


@without_init
def collectives():
    """All forms of allreduce, of several shapes and dtypes, against the formula."""
    hvd.init()
    for dtype, bound in (
        (torch.float64, 1e-12),
        (torch.float32, 1e-5),
        (torch.float16, 1e-2),
        (torch.bfloat16, 1e-1),
    ):
        own = torch.from_numpy(_vector(rank, 30, 1)).to(dtype)
        got = hvd.allreduce(own.reshape(5, 6), op=hvd.Adasum, name=f"{dtype}")
        assert got.dtype is dtype and got.shape == (5, 6)
        assert np.abs(got.double().numpy().ravel() - _want(30, 1)).max() < bound
    assert _same_on_all(hvd.allreduce(torch.from_numpy(_vector(rank, 999, 3)), op=hvd.Adasum))
    assert hvd.allreduce(torch.full([4], 3.0), op=hvd.Adasum).tolist() == 4 * [3.0]  # parallel
    axes = torch.eye(size)  # orthogonal
    assert hvd.allreduce(axes[rank], op=hvd.Adasum).tolist() == size * [1.0]
    assert hvd.allreduce(torch.zeros(3), op=hvd.Adasum).tolist() == 3 * [0.0]
    lonely = torch.ones(2) if rank == 0 else torch.zeros(2)
    assert hvd.allreduce(lonely, op=hvd.Adasum).tolist() == [1.0, 1.0]
    assert hvd.allreduce(torch.tensor(2.0), op=hvd.Adasum).item() == 2.0
    assert hvd.allreduce(torch.empty(0, 3), op=hvd.Adasum).shape == (0, 3)
    options = {"op": hvd.Adasum, "prescale_factor": 2.0, "postscale_factor": 0.25}
    assert hvd.allreduce(torch.full([4], 3.0), **options).tolist() == 4 * [1.5]
    half = hvd.allreduce(torch.full([4], 3.0), op=hvd.Adasum, compression=hvd.Compression.fp16)
    assert half.dtype is torch.float32 and half.tolist() == 4 * [3.0]
    some = [torch.from_numpy(_vector(rank, n, n)) for n in (3, 8)] + [_own(2) * 0 + 5]
    handle = hvd.grouped_allreduce_async_(some, op=hvd.Adasum)
    for tensor, n in zip(hvd.synchronize(handle), (3, 8), strict=False):
        assert np.abs(tensor.numpy() - _want(n, n)).max() < 1e-12  # each for itself
    assert some[2].tolist() == [5.0, 5.0]
    image = torch.from_numpy(_vector(rank, 24, 5)).reshape(1, 2, 3, 4)
    image = image.contiguous(memory_format=torch.channels_last)
    hvd.allreduce_(image, op=hvd.Adasum)
    assert np.abs(image.numpy().ravel() - _want(24, 5)).max() < 1e-12
    last = hvd.add_process_set(range(1, size))
    if rank:
        got = hvd.allreduce(torch.from_numpy(_vector(rank, 7, 6)), op=hvd.Adasum, process_set=last)
        assert np.abs(got.numpy() - _want(7, 6, range(1, size))).max() < 1e-12
    report(done=True)


@without_init
def errors():
    """What cannot be combined, on one rank or on all; and ranks that ask for other things."""
    hvd.init()
    for function, words in {
        lambda: hvd.allreduce(torch.ones(2, dtype=torch.int64), op=hvd.Adasum): "floating-point",
        lambda: hvd.reducescatter(_own(size), op=hvd.Adasum): "reducescatter takes no Adasum",
    }.items():
        kind, text = error_of(function)
        assert kind in ("ValueError", "BadInputError") and words in text, (kind, text)
    op = hvd.Sum if rank else hvd.Adasum
    kind, text = error_of(lambda: hvd.allreduce(_own(2), name="loss", op=op))
    assert kind == "DistBackendError" and "Adasum" in text, text
    kind, text = error_of(lambda: hvd.allreduce(_own(6 - rank), name="loss", op=hvd.Adasum))
    assert kind == "DistBackendError" and "of [[6]]" in text and "of [[5]]" in text, text
    options = {"op": hvd.Adasum, "postscale_factor": 1.0 + rank}
    kind, text = error_of(lambda: hvd.allreduce(_own(2), name="loss", **options))
    assert kind == "DistBackendError" and "postscale_factor=2.0" in text, text
    weights = _own(2).requires_grad_()
    total = hvd.allreduce(weights, op=hvd.Adasum).sum()
    kind, text = error_of(total.backward)
    assert kind == "ValueError" and "has no gradient" in text, text
    model = torch.nn.Linear(2, 1)
    options = {"op": hvd.Adasum, "gradient_predivide_factor": 2.0}
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    kind, text = error_of(lambda: hvd.DistributedOptimizer(sgd, **options))
    assert kind == "ValueError" and "op=hvd.Average" in text, text
    optimizer = hvd.DistributedOptimizer(sgd, op=hvd.Adasum)
    kind, text = error_of(optimizer.skip_synchronize)
    assert kind == "ValueError" and "cannot be skipped" in text, text
    assert hvd.allreduce(_own(2), op=hvd.Sum).tolist() == 2 * [size * (size + 1) / 2]
    report(done=True)


def _model():
    torch.manual_seed(4)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3), torch.nn.Linear(3, 1)
    ).double()


def _backward(model, of, step):
    inputs = torch.from_numpy(np.random.RandomState(10 * step + of).randn(4, 6))
    (model(inputs) - inputs[:, :1]).square().mean().backward()


def _alone(make, steps, passes):
    """Trains as all ranks do, in one process: each steps, then their steps are combined."""
    models = [_model() for _ in range(size)]
    optimizers = [make(model.parameters()) for model in models]
    for step in range(steps):
        starts = [one.detach().numpy().copy() for one in models[0].parameters()]
        for of, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            for each in range(passes):
                _backward(model, of, passes * step + each)
            optimizer.step()
            optimizer.zero_grad()
        everyone = zip(*(model.parameters() for model in models), strict=True)
        for start, each in zip(starts, everyone, strict=True):
            deltas = [one.detach().numpy().ravel() - start.ravel() for one in each]
            whole = start + _combined(deltas).reshape(start.shape)
            with torch.no_grad():
                for one in each:
                    one.copy_(torch.from_numpy(whole))
    return [one.detach().numpy() for one in models[0].parameters()]


@without_init
def training():
    """The weights of one process that makes all ranks' steps; the ranks' are equal."""
    hvd.init()
    for passes, make in (
        (1, lambda some: torch.optim.SGD(some, lr=0.05, momentum=0.5)),
        (2, lambda some: torch.optim.Adam(some, lr=0.01)),
    ):
        model = _model()
        names = model.named_parameters()
        optimizer = hvd.DistributedOptimizer(
            make(model.parameters()), names, op=hvd.Adasum, backward_passes_per_step=passes
        )
        for step in range(5):
            for each in range(passes):
                _backward(model, rank, passes * step + each)
            if step == 3:
                optimizer.synchronize()  # as scripts do that clip
            optimizer.step()
            optimizer.zero_grad()
        for got, want in zip(model.parameters(), _alone(make, 5, passes), strict=True):
            assert np.abs(got.detach().numpy() - want).max() < 1e-8  # Adam magnifies rounding
            assert _same_on_all(got.detach())
    frozen = _model()
    frozen[0].requires_grad_(False)
    before = frozen[0].weight.clone()
    sgd = torch.optim.SGD(frozen.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(sgd, op=hvd.Adasum, compression=hvd.Compression.fp16)
    if rank == 0:  # a layer that only some ranks use
        _backward(frozen, rank, 0)

    def closure():
        return 7.0

    assert optimizer.step(closure) == 7.0
    assert torch.equal(frozen[0].weight, before) and _same_on_all(frozen[2].weight.detach())
    assert not torch.equal(frozen[2].weight, _model()[2].weight)
    report(done=True)
