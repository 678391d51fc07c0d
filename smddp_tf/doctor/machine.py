"""The machine as this process sees it: cores, memory limits, shared memory, interfaces."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import socket
import tempfile
from collections.abc import Mapping

from smddp_tf.doctor import mpi_tmpdir
from smddp_tf.doctor.findings import NOTE, WARNING, Finding
from smddp_tf.launch import machine

_SHM = "/dev/shm"
# Open MPI 5 makes a (mostly empty) file of 16 MiB for each rank, if so much is free.
SMALL_SHM = 16 << 20
# NCCL has buffers there for each pair of GPUs.
SMALL_SHM_FOR_GPUS = 64 << 20


def _text(path: str) -> str:
    """A file's text; "" if this system has no such file."""
    try:
        return pathlib.Path(path).read_text().strip()
    except OSError:
        return ""


def _interfaces() -> list:
    return [
        {
            "name": name,
            "address": machine.interface_address(name),
            "mask": machine.interface_address(name, machine.GET_MASK),
            "state": _text(f"/sys/class/net/{name}/operstate"),
        }
        for _, name in socket.if_nameindex()
    ]


def _quota() -> float:
    """The CPUs that the control group grants; 0: no limit is known."""
    limit, _, period = _text("/sys/fs/cgroup/cpu.max").partition(" ")
    if limit.isdigit() and period.isdigit():
        return int(limit) / int(period)
    limit = _text("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period = _text("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    return int(limit) / int(period) if limit.isdigit() and period.isdigit() else 0.0


def _group_cores() -> int:
    """The cores that the control group of this process, or container, may use; 0: not known."""
    for path in ("cpuset.cpus.effective", "cpuset/cpuset.effective_cpus"):
        found = _text(f"/sys/fs/cgroup/{path}")
        if re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", found):
            ends = [part.partition("-") for part in found.split(",")]
            return sum(int(last or first) - int(first) + 1 for first, _, last in ends)
    return 0


def facts(environment: Mapping[str, str]) -> dict:
    """What the checks need to know; also part of the report."""
    try:
        shm = shutil.disk_usage(_SHM)
    except OSError:
        shm = None
    session_folder = mpi_tmpdir.folder(environment)
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "user": os.getuid(),
        "boot": _text("/proc/sys/kernel/random/boot_id"),
        "process_namespace": os.readlink("/proc/self/ns/pid"),
        "network_namespace": os.readlink("/proc/self/ns/net"),
        "cores": os.cpu_count(),
        "usable_cores": sorted(os.sched_getaffinity(0)),
        "sockets": machine.cores_and_sockets(os.sched_getaffinity(0))[1],
        "may_bind": machine.may_bind_memory(),
        "cpu_quota": _quota(),
        "group_cores": _group_cores(),
        "gpus": os.path.exists("/dev/nvidiactl"),
        "shm_bytes": shm.total if shm else 0,
        "shm_free_bytes": shm.free if shm else 0,
        "interfaces": _interfaces(),
        "fabric": machine.fabric(),
        "messages": environment.get("OMPI_MCA_pml", ""),
        "emulated_nodes": environment.get("SMDDP_NODES", ""),
        "session_folder": session_folder,
        "session_file_system": mpi_tmpdir.file_system(session_folder, _text("/proc/self/mounts")),
    }


def check_temporary(environment: Mapping[str, str]) -> list:
    """Findings about the folder in which mpirun keeps its files."""
    named = [environment.get(name, "") for name in ("TMPDIR", "TEMP", "TMP")]
    folder = next(filter(None, named), "/tmp")
    try:
        with tempfile.TemporaryFile(dir=folder):
            return []
    except OSError as error:
        what = f"no file can be made in {folder}, where mpirun keeps its own: {error.strerror}"
        remedy = "docker run --tmpfs /tmp, or name a folder by TMPDIR"
        return [Finding(WARNING, what, remedy)]


def check(found: dict, local_size: int) -> list:
    """Findings about facts() of a rank.

    Args:
      found: facts().
      local_size: the ranks of this node.
    """
    findings = []
    usable, cores = len(found["usable_cores"]), found["cores"]
    if usable == 1 and found["group_cores"] == 1 and cores > 1:
        what = f"the container, or control group, has one of {cores} cores"
        findings.append(Finding(WARNING, what, "docker run --cpuset-cpus names more"))
    elif usable == 1 and cores > 1:
        findings.append(
            Finding(
                WARNING,
                f"bound to one of {cores} cores, on which TensorFlow then computes",
                "launch with smddprun, or `mpirun --bind-to none` (Intel MPI: I_MPI_PIN=0)",
            )
        )
    elif local_size > usable:
        what = f"{local_size} ranks share {usable} cores"
        findings.append(Finding(NOTE, what, "each rank gets a part of their time"))
    if 0 < found["cpu_quota"] < usable:
        quota = found["cpu_quota"]
        findings.append(
            Finding(
                WARNING,
                f"a quota of {quota:g} CPUs, while TensorFlow sees {usable} cores",
                "tf.config.threading.set_intra_op_parallelism_threads("
                f"{max(1, int(quota / max(1, local_size)))})",
            )
        )
    return findings + _check_sockets(found, local_size) + _check_shm(found, local_size)


def _check_sockets(found: dict, local_size: int) -> list:
    """Findings about ranks that may run on all sockets of this machine."""
    sockets = found["sockets"]
    if sockets < 2 or local_size < 2 or local_size % sockets:
        return []
    remedy = "launch with smddprun, which binds ranks to sockets"
    if not found["may_bind"]:
        remedy += " where it may: --cap-add SYS_NICE in a container, for set_mempolicy"
    what = f"ranks may run on any of {sockets} sockets, away from the memory that they began in"
    return [Finding(NOTE, what, remedy)]


def _check_shm(found: dict, local_size: int) -> list:
    """Findings about /dev/shm, which this library does not need; MPI and NCCL use it."""
    total, free = found["shm_bytes"], found["shm_free_bytes"]
    remedy = "docker run --shm-size=1g, or a larger tmpfs"
    if total == 0:
        return [Finding(WARNING, "no /dev/shm, which MPI and NCCL use", remedy)]
    user, need = ("NCCL", SMALL_SHM_FOR_GPUS) if found["gpus"] else ("Open MPI", SMALL_SHM)
    if free >= need or (found["gpus"] and local_size < 2 and free >= SMALL_SHM):
        return []
    what = f"/dev/shm has {free >> 20} of {total >> 20} MiB free"
    return [Finding(WARNING, f"{what}, too little for {user} of {local_size} ranks", remedy)]
