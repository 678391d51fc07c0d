"""The command that launches a job. Pure: what is asked for, and what there is -> words."""

from __future__ import annotations

import dataclasses
import os
import random
import re
from collections.abc import Mapping, Sequence

from smddp_tf.launch.errors import LaunchError
from smddp_tf.launch.hosts import LOCAL, Host, show
from smddp_tf.launch.mpi import Mpi

# Variables that ranks on other hosts need to be as the ones here. CUDA_VISIBLE_DEVICES is not among
# them: which GPUs there are is each host's own affair.
_FORWARDED = re.compile(
    r"(SMDDP|HOROVOD|TF|XLA|KERAS|NCCL|OMP|KMP|MKL)_\w+"
    r"|PYTHON\w+|PATH|LD_LIBRARY_PATH|VIRTUAL_ENV|CONDA_PREFIX"
)
_FORWARDED_ON_SAGEMAKER = re.compile(r"(SM|FI|AWS|SAGEMAKER|TRAINING_JOB)_\w+")

# What smddprun itself tells the ranks: how often the job was started again, for the script; hosts
# and a port to try between them, for the doctor.
TOLD = ("SMDDP_LAUNCH_HOSTS", "SMDDP_LAUNCH_PORT", "SMDDP_RESTART")
_PORTS = range(49152, 61000)


@dataclasses.dataclass(frozen=True)
class Machine:
    """What the launching machine is: whether we are root, its cores (not threads), its name."""

    root: bool
    cores: int
    name: str


@dataclasses.dataclass(frozen=True)
class Job:
    """What to launch, and how.

    Attributes:
      ranks: their number.
      program: its words; None with `passed`.
      hosts: those of other machines, with the ranks of each; empty: all ranks run on this one.
      variables: (name, value) pairs for all ranks; value None: as it is here.
      forwarded: names of variables that ranks on other hosts get as they are here.
      passed: words for mpirun, which come last: its own options and the program.
    """

    ranks: int
    program: Sequence[str] = ()
    hosts: Sequence[Host] = ()
    variables: Sequence[tuple] = ()
    forwarded: Sequence[str] = ()
    passed: Sequence[str] = ()
    nic: str | None = None
    cores_per_rank: int | None = None
    tag_output: bool = False
    verbose: bool = False
    output_folder: str | None = None
    start_timeout: int | None = None
    ssh_port: int | None = None
    ssh_key: str | None = None


def is_local(hosts: Sequence[Host], machine: Machine) -> bool:
    """Whether all ranks run on the machine that launches them."""
    here = {*LOCAL, machine.name, machine.name.partition(".")[0]}
    return all(host.name in here for host in hosts)


def forwarded(environment: Mapping[str, str]) -> list:
    """The names of the variables that go to ranks on other hosts."""
    found = {name for name in environment if _FORWARDED.fullmatch(name)}
    if environment.get("SM_HOSTS"):
        found |= {name for name in environment if _FORWARDED_ON_SAGEMAKER.fullmatch(name)}
    return sorted(found)


def told(job: Job) -> dict:
    """Variables for ranks on several hosts, by which the doctor tries ports between them."""
    if not job.hosts:
        return {}
    port = random.choice(_PORTS)
    return {"SMDDP_LAUNCH_HOSTS": show(job.hosts), "SMDDP_LAUNCH_PORT": str(port)}


def with_alias(program: Sequence[str]) -> list:
    """The program with smddp_tf.compat between Python and the script or module.

    Raises:
      LaunchError: it is not Python with a script or a module.
    """
    if not re.match(r"python[\d.]*$", os.path.basename(program[0])):
        raise LaunchError(
            f"--alias is for `python train.py` or `python -m module`, not for {program[0]!r}"
        )
    at = 1
    while at < len(program) and program[at].startswith("-") and program[at] != "-m":
        if program[at] in ("-c", "-"):
            raise LaunchError("--alias takes a script or a module, not `python -c`")
        at += 2 if program[at] in ("-W", "-X") else 1
    if at >= len(program):
        raise LaunchError("--alias: Python is given no script")
    return [*program[:at], "-m", "smddp_tf.compat", *program[at:]]


def _ssh_words(job: Job) -> list:
    words = ["-p", str(job.ssh_port)] if job.ssh_port else []
    return words + (["-i", job.ssh_key] if job.ssh_key else [])


def _open_mpi(job: Job, mpi: Mpi, machine: Machine) -> list:
    """Options of mpirun of Open MPI 4 and 5; the latter's runtime has parameters of its own."""
    new = mpi.major >= 5
    words = ["--allow-run-as-root"] if machine.root else []
    mapping = "slot"
    if job.cores_per_rank:
        mapping += f":PE={job.cores_per_rank}"
    elif not job.hosts and job.ranks > machine.cores:
        mapping += ":OVERSUBSCRIBE"
    words += ["--map-by", mapping, "--bind-to", "core" if job.cores_per_rank else "none"]
    if job.hosts:
        words += ["-H", show(job.hosts)]
    if not new:
        # Where reading a peer's memory is forbidden, as in many containers, version 4 fails instead
        # of copying. Ranks of a host do not talk through MPI anyway.
        words += ["--mca", "btl_vader_single_copy_mechanism", "none"]

    def runtime(parameter: str, old: str, value: str) -> list:
        return ["--prtemca", parameter, value] if new else ["--mca", old, value]

    if job.nic:
        words += ["--mca", "btl_tcp_if_include", job.nic]
        words += runtime("prte_if_include", "oob_tcp_if_include", job.nic)
    if job.ssh_port or job.ssh_key:
        words += runtime("plm_ssh_args", "plm_rsh_args", " ".join(_ssh_words(job)))
    if job.start_timeout and new:
        raise LaunchError(
            f"--start-timeout needs Open MPI 4, and this is {mpi}, whose launcher crashes with its "
            "own limit (seen with 5.0.11); leave it out"
        )
    if job.start_timeout:
        words += ["--mca", "orte_startup_timeout", str(job.start_timeout)]
    if new:
        output = ["tag"] if job.tag_output else []
        # dir= loses lines in 5.0.11: a rank's second stream cannot make the folder again.
        output += [f"file={job.output_folder}/rank"] if job.output_folder else []
        words += ["--output", ",".join(output)] if output else []
    else:
        words += ["--tag-output"] if job.tag_output else []
        words += ["--output-filename", job.output_folder] if job.output_folder else []
    if job.verbose:
        words += ["--display", "map"] if new else ["--display-map"]
    for name, value in job.variables:
        words += ["-x", name if value is None else f"{name}={value}"]
    given = {name for name, _ in job.variables}
    for name in job.forwarded if job.hosts else ():
        words += [] if name in given else ["-x", name]
    return [mpi.path, "-np", str(job.ranks), *words]


def _mpich(job: Job, mpi: Mpi) -> list:
    """Options of Hydra, which hands on all variables by itself and knows no limit for starting."""
    refused = {"--start-timeout": job.start_timeout, "--output-filename": job.output_folder}
    refused["--ssh-port or --ssh-identity-file"] = job.ssh_port or job.ssh_key
    for option, value in refused.items():
        if value:
            raise LaunchError(
                f"{option} needs Open MPI, and this is {mpi}; leave it out, or name another "
                "launcher with --mpirun"
            )
    binding = f"core:{job.cores_per_rank}" if job.cores_per_rank else "none"
    words = ["-bind-to", binding]
    if job.hosts:
        words += ["-hosts", show(job.hosts)]
    if job.nic:
        words += ["-iface", job.nic]
    words += ["-prepend-rank"] if job.tag_output else []
    words += ["-print-all-exitcodes"] if job.verbose else []
    for name, value in job.variables:
        words += [] if value is None else ["-genv", name, value]
    return [mpi.path, "-np", str(job.ranks), *words]


def mpirun(job: Job, mpi: Mpi, machine: Machine) -> list:
    """The words of mpirun's command line.

    Raises:
      LaunchError: this MPI cannot do what is asked for.
    """
    words = _mpich(job, mpi) if mpi.kind == "mpich" else _open_mpi(job, mpi, machine)
    if job.nic:
        words += _nic_variables(job, mpi)
    return [*words, *(job.passed or job.program)]


def _nic_variables(job: Job, mpi: Mpi) -> list:
    """NCCL has a variable for the interface, unless the user sets it."""
    if any(name == "NCCL_SOCKET_IFNAME" for name, _ in job.variables):
        return []
    if mpi.kind == "mpich":
        return ["-genv", "NCCL_SOCKET_IFNAME", job.nic]
    return ["-x", f"NCCL_SOCKET_IFNAME={job.nic}"]


def srun(job: Job, mpi: Mpi) -> list:
    """The words of srun's command line, inside an allocation. It hands on all variables.

    Raises:
      LaunchError: srun cannot do what is asked for.
    """
    if job.nic or job.start_timeout or job.ssh_port or job.ssh_key or job.output_folder:
        raise LaunchError(
            "--srun takes none of --nic, --start-timeout, --output-filename, --ssh-port and "
            "--ssh-identity-file; leave them out, or leave out --srun"
        )
    # env, because a value with a comma cannot be written in srun's --export.
    setting = [f"{name}={value}" for name, value in job.variables if value is not None]
    words = ["srun", "--mpi=" + {"openmpi": "pmix", "mpich": "pmi2"}[mpi.kind]]
    words += [f"--ntasks={job.ranks}", "--distribution=block", "--kill-on-bad-exit=1"]
    if job.cores_per_rank:
        words += [f"--cpus-per-task={job.cores_per_rank}", "--cpu-bind=cores"]
    else:
        words += ["--cpu-bind=none"]
    if job.hosts:
        words += [f"--nodelist={','.join(host.name for host in job.hosts)}"]
    words += ["--label"] if job.tag_output else []
    words += ["--verbose"] if job.verbose else []
    return [*(["env", *setting] if setting else []), *words, *job.program]
