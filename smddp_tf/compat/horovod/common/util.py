"""horovod.common.util: version checks and build queries."""

import importlib.util
import re

import smddp_tf


def _numbers(version: str) -> tuple:
    return tuple(int(number) for number in re.findall(r"\d+", version.split("+")[0])[:3])


def is_version_greater_equal_than(version: str, target: str) -> bool:
    """Whether a version is at least the target; both have the form "2.15.1"."""
    return _numbers(version) >= _numbers(target)


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(items, num_parts: int) -> list:
    """Splits a list into num_parts nearly equal parts."""
    each, odd = divmod(len(items), num_parts)
    parts, at = [], 0
    for part in range(num_parts):
        end = at + each + (1 if part < odd else 0)
        parts.append(items[at:end])
        at = end
    return parts


def extension_available(ext_base_name: str, verbose=False) -> bool:
    """Whether collectives of this framework are there: "tensorflow", or "torch" if installed."""
    del verbose
    if ext_base_name == "torch":
        return importlib.util.find_spec("torch") is not None
    return ext_base_name == "tensorflow"


def check_extension(ext_name: str, ext_env_var="", pkg_path="", *args) -> None:
    """Raises ImportError unless it is horovod.tensorflow, or horovod.torch with PyTorch."""
    del ext_env_var, pkg_path, args
    if not extension_available(ext_name.removeprefix("horovod.")):
        raise ImportError(
            f"{ext_name} is not provided: this library is for TensorFlow, and for PyTorch where "
            "that is installed"
        )


def gpu_available(ext_base_name="tensorflow", verbose=False) -> bool:
    """Whether TensorFlow sees a GPU."""
    del ext_base_name, verbose
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


def _built(name: str):
    def query(verbose=False) -> bool:
        del verbose
        return getattr(smddp_tf, name)()

    query.__doc__ = f"As smddp_tf.{name}()."
    return query


mpi_built = _built("mpi_built")
gloo_built = _built("gloo_built")
nccl_built = _built("nccl_built")
ddl_built = _built("ddl_built")
ccl_built = _built("ccl_built")
cuda_built = _built("cuda_built")
rocm_built = _built("rocm_built")
