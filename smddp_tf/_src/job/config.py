"""Reads SMDDP_* environment variables; nothing else in Python does. The core reads its own.

``make options`` copies each comment and docstring that begins with a variable's name and a colon to
docs/options.md (docs/write_options.py).
"""

import dataclasses
import os


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of the Python layer."""

    # SMDDP_BUCKET_BYTES: approximate size of gradient buckets. Larger ones overlap less with the
    # backward pass; smaller ones cost more operations.
    bucket_bytes: int = 32 << 20
    # SMDDP_FIRST_BUCKET_BYTES: size of the first bucket of a step, which is smaller to start early.
    first_bucket_bytes: int = 1 << 20
    # SMDDP_LIBRARY_DIR: folder of the native libraries. Default: inside the package.
    library_dir: str = ""


def _positive_int(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ValueError(
            f"{name}={text!r} is not understood; it takes a whole number of bytes >= 1"
        )
    return value


def load() -> Config:
    """Reads the environment.

    Raises:
      ValueError: a variable has an invalid value.
    """
    gpu_kernels()
    default = Config()
    return Config(
        bucket_bytes=_positive_int("SMDDP_BUCKET_BYTES", default.bucket_bytes),
        first_bucket_bytes=_positive_int("SMDDP_FIRST_BUCKET_BYTES", default.first_bucket_bytes),
        library_dir=library_dir(),
    )


def library_dir() -> str:
    """Returns SMDDP_LIBRARY_DIR, without validating the rest.

    The native library must load even if other variables are invalid, since it reports the problem
    to the other ranks.
    """
    return os.environ.get("SMDDP_LIBRARY_DIR", Config.library_dir)


def blocking_ops() -> bool:
    """SMDDP_TEST_BLOCKING_OPS=1, for tests: treat TensorFlow's completion callback as unusable."""
    return os.environ.get("SMDDP_TEST_BLOCKING_OPS", "") == "1"


def gpu_kernels() -> bool:
    """SMDDP_GPU_KERNELS: 1: a GPU's tensors are processed there (see docs/gpu.md). Default: 0.

    By default TensorFlow places the operations on the CPU, and copies by itself.

    Raises:
      ValueError: it has another value.
    """
    text = os.environ.get("SMDDP_GPU_KERNELS", "")
    if text not in ("", "0", "1"):
        raise ValueError(f"SMDDP_GPU_KERNELS={text!r} is not understood; it takes 0 or 1")
    return text == "1"


def commits_folder() -> str:
    """SMDDP_COMMITS: folder of elastic commits (see docs/elastic.md). Default: memory only.

    "" if none is named. ``smddprun --max-restarts`` names one.
    """
    return os.environ.get("SMDDP_COMMITS", "")


def rendezvous() -> tuple[str, str, str]:
    """SMDDP_RENDEZVOUS, which smddprun sets in elastic jobs, its secret and slot; "" in others."""
    suffixes = ("", "_SECRET", "_SLOT")
    address, secret, slot = (os.environ.get("SMDDP_RENDEZVOUS" + end, "") for end in suffixes)
    return address, secret, slot


def visible_gpus() -> str:
    """CUDA_VISIBLE_DEVICES, which a launcher may set for each rank; "" if it is not set."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "")


def keras_backend() -> str:
    """KERAS_BACKEND, with which Keras 3 computes; "tensorflow" if it is not set."""
    return os.environ.get("KERAS_BACKEND", "tensorflow")


def xla_call() -> str:
    """SMDDP_TEST_XLA_CALL, for tests: forces "typed" or "legacy" custom calls; "" by default.

    Raises:
      ValueError: it has another value.
    """
    kind = os.environ.get("SMDDP_TEST_XLA_CALL", "")
    if kind not in ("", "typed", "legacy"):
        raise ValueError(f"SMDDP_TEST_XLA_CALL={kind!r} is not understood; it is typed or legacy")
    return kind


def set_bucket_bytes(size: int) -> None:
    """Sets SMDDP_BUCKET_BYTES in this process."""
    os.environ["SMDDP_BUCKET_BYTES"] = str(int(size))


def set_timeout(seconds: float) -> None:
    """Sets SMDDP_TIMEOUT_SECONDS in this process, unless it is set."""
    os.environ.setdefault("SMDDP_TIMEOUT_SECONDS", f"{max(1, seconds):.0f}")


# What a launcher sets anew that a rank starts: the ranks of a job inside a job are ranks.
_LAUNCH = (
    "PMIX_NAMESPACE",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMI_FD",
    "PMI_PORT",
    "SLURM_STEP_ID",
)


def _launch() -> str:
    return ",".join(os.environ.get(name, "") for name in _LAUNCH)


def mark_rank() -> None:
    """Sets SMDDP_RANK_PROCESS, by which processes that this rank starts know that they are none.

    They inherit what the launcher told the rank, so MPI would take them for it.
    """
    os.environ["SMDDP_RANK_PROCESS"] = f"{os.getpid()} {_launch()}"


def unmark_rank() -> None:
    """Takes back mark_rank(), in the rank itself."""
    if os.environ.get("SMDDP_RANK_PROCESS", "").startswith(f"{os.getpid()} "):
        del os.environ["SMDDP_RANK_PROCESS"]


def parent_rank() -> str:
    """The process id of the rank that started this process; "" if none did."""
    parent, _, launch = os.environ.get("SMDDP_RANK_PROCESS", "").partition(" ")
    return "" if parent == str(os.getpid()) or launch != _launch() else parent
