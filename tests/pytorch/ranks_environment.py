"""What importing the package does to a process."""

import os
import sys

from harness import rank, report, size, without_init

_NAMES = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]


@without_init
def imported():
    """The variables of env://, and which frameworks are there."""
    import smddp_tf

    before = [name for name in ("torch", "tensorflow") if name in sys.modules]
    import smddp_tf.torch

    after = [name for name in ("torch", "tensorflow") if name in sys.modules]
    values = {name: os.environ.get(name) for name in _NAMES}
    connected = smddp_tf.is_initialized()
    import torch
    import torch.distributed as dist

    dist.init_process_group("smddp")
    ones = torch.ones(3)
    dist.all_reduce(ones)
    assert ones[0].item() == dist.get_world_size() == size, ones
    assert dist.get_rank() == rank
    report(before=before, after=after, values=values, connected=connected)


@without_init
def beside_gloo():
    """The default group is gloo's; a group of this backend begins the job."""
    import torch
    import torch.distributed as dist

    import smddp_tf.torch

    dist.init_process_group("gloo")
    begun = smddp_tf.torch.is_initialized()
    refused = ""
    if not begun:
        try:
            own = [dist.get_rank()]
            dist.new_group(own, backend="smddp", use_local_synchronization=True)
        except dist.DistBackendError as error:
            refused = str(error)
    group = dist.new_group(backend="smddp")
    another = dist.new_group(backend="smddp")
    size = dist.get_world_size()
    for one, name in ((None, "gloo"), (group, "smddp"), (another, "smddp")):
        ones = torch.ones(3)
        dist.all_reduce(ones, group=one)
        assert (ones.tolist(), dist.get_backend(one)) == (3 * [size], name)
    model = torch.nn.Linear(2, 1)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    wrapped(torch.ones(1, 2) * dist.get_rank()).sum().backward()
    assert model.weight.grad.tolist() == [2 * [(size - 1) / 2]]
    report(begun=begun, refused=refused)


@without_init
def other_ranks():
    """The default group is gloo's, and numbers the ranks in another order than the launcher."""
    import torch.distributed as dist

    import smddp_tf.torch

    smddp_tf.torch.init()
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), size, rank == 0)
    dist.init_process_group("gloo", store=store, rank=size - 1 - rank, world_size=size)
    try:
        dist.new_group(backend="smddp")
    except dist.DistBackendError as error:
        report(text=str(error))


@without_init
def examples():
    """Those of the docstrings."""
    import doctest
    import importlib
    import pkgutil

    import torch

    import smddp_tf.torch

    names, tried = {"hvd": smddp_tf.torch, "torch": torch}, 0
    below = pkgutil.walk_packages(smddp_tf.torch.__path__, "smddp_tf.torch.")
    for found in ["smddp_tf.torch", *(one.name for one in below)]:
        result = doctest.testmod(importlib.import_module(found), extraglobs=names)
        assert result.failed == 0
        tried += result.attempted
    report(tried=tried)
