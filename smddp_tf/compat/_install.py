"""Import hooks that provide horovod's and smdistributed's modules in this process."""

import importlib
import importlib.abc
import importlib.util
import sys

_OWN = "smddp_tf.compat."
ROOTS = ("horovod", "smdistributed", "smddpcommon")

_PASSES = "pass backward_passes_per_step to DistributedOptimizer"

# Modules that are not provided, and what to use instead.
REFUSED = {
    "horovod.mxnet": "this library is for TensorFlow",
    "horovod.spark": "launch the script with smddprun, or call horovod.run()",
    "horovod.ray": 'call horovod.run(..., launcher="ray")',
    "horovod.runner.launch": "launch the script with smddprun, or call horovod.run()",
    "horovod.run": "it is a function: horovod.run(), or smddp_tf.run()",
    "horovod.tensorflow.data": "use tf.data in each rank, or tf.data's own service",
    "horovod.common.elastic": "its names are in horovod.tensorflow.elastic and torch.elastic",
    "horovod.tensorflow.gradient_aggregation": _PASSES,
    "horovod.tensorflow.gradient_aggregation_eager": _PASSES,
    "horovod._keras": "its functions are those of horovod.tensorflow.keras",
    "horovod.common.basics": "its functions are those of horovod.tensorflow",
    "smdistributed.modelparallel": "this library trains data-parallel",
}


class _Alias(importlib.abc.Loader):
    """Loads the module of this package under the foreign name."""

    def create_module(self, spec):
        return importlib.import_module(f"smddp_tf.compat.{spec.name}")

    def exec_module(self, module):
        """Does nothing: the module ran when it was imported under its own name."""


def _refuse_in_from(name: str) -> None:
    """Raises what `from horovod.tensorflow import data` shows, if that name is refused.

    Python looks for a submodule where a module has no such attribute. It would hide this error if
    it named the module that Python has looked for, which has our name and not the foreign one.
    """
    module, _, last = name.rpartition(".")
    names = getattr(sys.modules.get(_OWN + module), "REFUSED", {})
    instead = names.get(last) or REFUSED.get(name)
    if instead:
        raise ModuleNotFoundError(
            f"{name} is not provided by smddp_tf.compat: {instead}", name=name
        )


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        del path, target
        if name.startswith(_OWN):
            _refuse_in_from(name.removeprefix(_OWN))
        if name.split(".")[0] not in ROOTS:
            return None
        for refused, instead in REFUSED.items():
            if name == refused or name.startswith(refused + "."):
                raise ModuleNotFoundError(
                    f"{name} is not provided by smddp_tf.compat: {instead}", name=name
                )
        if importlib.util.find_spec(f"smddp_tf.compat.{name}") is None:
            raise ModuleNotFoundError(
                f"{name} is not provided by smddp_tf.compat; docs/api-parity.md lists what is",
                name=name,
            )
        return importlib.util.spec_from_loader(name, _Alias(), is_package=True)


def install() -> None:
    """Provides the modules in this process, shadowing any real installation."""
    loaded = [name for name in sys.modules if name.split(".")[0] in ROOTS]
    if loaded:
        raise RuntimeError(f"{loaded[0]} is imported already; install the names before that")
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def refuse_names(module: str, refused: dict):
    """Returns a module __getattr__ whose errors say what to use instead of a missing name."""

    def missing(name: str):
        if name in refused:
            raise AttributeError(f"{module}.{name} is not provided: {refused[name]}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return missing
