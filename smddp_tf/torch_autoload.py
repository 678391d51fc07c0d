"""Makes the backend "smddp" known to PyTorch wherever this package is installed.

`import torch` calls register(), by the entry point that pyproject.toml has in the group
torch.backends. So a script that takes the backend's name as an option, or names it to Lightning,
needs no import of ours.
TORCH_DEVICE_BACKEND_AUTOLOAD=0 switches that off for all packages
(https://github.com/pytorch/pytorch/issues/122468).
"""

from __future__ import annotations

import importlib.metadata
import os
from typing import Any

from smddp_tf.launch import reaper, torch_variables


def _create(options: Any, backend_options: Any = None) -> Any:
    """Makes a process group; loads the library only then."""
    from smddp_tf.torch import _backend

    return _backend.create(options, backend_options)


def _sagemakers_is_installed() -> bool:
    """Whether SageMaker's own library is there, which registers a backend of the same name."""
    try:
        importlib.metadata.version("smdistributed-dataparallel")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def register() -> None:
    """Registers the backend, and sets RANK and its like if smddprun has started this rank.

    Ranks of other launchers are left as they are: not each script that imports PyTorch is ours.
    """
    import torch.distributed

    if not torch.distributed.is_available() or _sagemakers_is_installed():
        return
    torch.distributed.Backend.register_backend(
        "smddp", _create, extended_api=True, devices=["cpu", "cuda"]
    )
    if reaper.VARIABLE in os.environ and all(n in os.environ for n in torch_variables.MASTER):
        os.environ.update(torch_variables.of_rank(os.environ))
