"""Import hooks that provide horovod's and smdistributed's modules in this process."""

import importlib
import importlib.abc
import importlib.util
import sys

ROOTS = ("horovod", "smdistributed", "smddpcommon")

# Modules that are not provided, and what to use instead.
REFUSED = {
    "horovod.torch": "this library is for TensorFlow",
    "horovod.mxnet": "this library is for TensorFlow",
    "horovod.spark": "launch the script with smddprun",
    "horovod.ray": "launch the script with smddprun",
    "horovod.runner": "launch the script with smddprun",
    "horovod.run": "launch the script with smddprun",
    "horovod.tensorflow.elastic": "a job keeps its ranks; restart it from its last checkpoint",
    "horovod.tensorflow.keras.elastic": "a job keeps its ranks; restart it from its checkpoint",
    "horovod.keras.elastic": "a job keeps its ranks; restart it from its last checkpoint",
    "horovod.tensorflow.data": "use tf.data in each rank, or tf.data's own service",
    "smdistributed.dataparallel.torch": "this library is for TensorFlow",
    "smdistributed.modelparallel": "this library trains data-parallel",
}


class _Alias(importlib.abc.Loader):
    """Loads the module of this package under the foreign name."""

    def create_module(self, spec):
        return importlib.import_module(f"smddp_tf.compat.{spec.name}")

    def exec_module(self, module):
        """Does nothing: the module ran when it was imported under its own name."""


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        del path, target
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
