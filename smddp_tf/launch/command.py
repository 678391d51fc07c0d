"""The command that launches a job. Pure: options and facts about the machine -> words."""

from __future__ import annotations

import dataclasses
import os
import random
import re
from collections.abc import Mapping, Sequence

from smddp_tf.launch import LaunchError
from smddp_tf.launch.hosts import Host, show
from smddp_tf.launch.machine import Machine
from smddp_tf.launch.mpi import Mpi

# Variables that ranks on other hosts need to be as the ones here. CUDA_VISIBLE_DEVICES is not among
# them: which GPUs there are is each host's own affair.
_FORWARDED = re.compile(
    r"(SMDDP|HOROVOD|TF|XLA|KERAS|NCCL|OMP|KMP|MKL|I_MPI)_\w+"
    r"|PYTHON\w+|PATH|LD_LIBRARY_PATH|VIRTUAL_ENV|CONDA_PREFIX"
)
_FORWARDED_ON_SAGEMAKER = re.compile(r"(SM|FI|AWS|SAGEMAKER|TRAINING_JOB)_\w+")

# What smddprun itself tells the ranks: how often the job was started again, for the script; hosts
# and a port to try between them, for the doctor.
FOR_DOCTOR = ("SMDDP_LAUNCH_HOSTS", "SMDDP_LAUNCH_PORT")
TOLD = (*FOR_DOCTOR, "SMDDP_RESTART")
_PORTS = range(49152, 61000)
_NIC_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@dataclasses.dataclass(frozen=True)
class Job:
    """What to launch, and how.

    Attributes:
      ranks: their number.
      program: its words; None with `passed`.
      hosts: those of other machines, with the ranks of each; empty: all ranks run on this one.
      variables: (name, value) pairs for all ranks; value None: as it is here.
      forwarded: names of variables that ranks on other hosts get as they are here.
      binding: words for mpirun that say where ranks go and which cores they get; None: ours.
      messages: how Open MPI's messages travel: "tcp", "ob1" (without another library, such as UCX
        or libfabric), or "" for its own choice.
      more: options of mpirun's own.
      passed: words for mpirun, which come last: its own options and the program.
    """

    ranks: int
    program: Sequence[str] = ()
    hosts: Sequence[Host] = ()
    variables: Sequence[tuple] = ()
    forwarded: Sequence[str] = ()
    binding: Sequence[str] | None = None
    messages: str = ""
    more: Sequence[str] = ()
    passed: Sequence[str] = ()
    nic: str | None = None
    cores_per_rank: int | None = None
    tag_output: bool = False
    timestamps: bool = False
    verbose: bool = False
    output_folder: str | None = None
    start_timeout: int | None = None
    ssh_port: int | None = None
    ssh_key: str | None = None
    ssh_more: Sequence[str] = ()


def is_local(hosts: Sequence[Host], machine: Machine) -> bool:
    """Whether all ranks run on the machine that launches them."""
    return all(machine.is_called(host.name) for host in hosts)


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
    return [*words, *(["-i", job.ssh_key] if job.ssh_key else []), *job.ssh_more]


# Options of mpirun, of either MPI, that say where ranks go.
_PLACING = re.compile(r"--?(bind-to|map-by|rankfile|rf|cpu-set|cpu-list)(=.*)?")


def _on_each_socket(job: Job, machine: Machine) -> int:
    """The ranks that each socket of this machine gets, if that takes no core from them; else 0.

    Ranks of a socket then share its cores and memory, and know that they do.
    """
    if job.hosts or machine.sockets < 2 or job.ranks > machine.cores:
        return 0
    even, rest = divmod(job.ranks, machine.sockets)
    return 0 if rest else even


def places_themselves(job: Job) -> bool:
    """Whether options that go to mpirun as they are say where ranks go."""
    given = any(_PLACING.fullmatch(word) for word in [*job.more, *job.passed])
    return given or job.binding is not None


def _open_mpi_places(job: Job, new: bool, machine: Machine) -> list:
    if job.binding is not None:
        return list(job.binding)
    if places_themselves(job):
        return []
    if job.cores_per_rank:
        return ["--map-by", f"slot:PE={job.cores_per_rank}", "--bind-to", "core"]
    ranks = _on_each_socket(job, machine)
    if ranks:
        socket = "package" if new else "socket"
        # Where a container does not let it, ranks run unbound.
        return ["--map-by", f"ppr:{ranks}:{socket}", "--bind-to", f"{socket}:if-supported"]
    crowded = not job.hosts and job.ranks > machine.cores
    return ["--map-by", "slot:OVERSUBSCRIBE" if crowded else "slot", "--bind-to", "none"]


def _open_mpi_output(job: Job, new: bool) -> list:
    if not new:
        words = ["--tag-output"] if job.tag_output else []
        words += ["--timestamp-output"] if job.timestamps else []
        return words + (["--output-filename", job.output_folder] if job.output_folder else [])
    output = ["tag"] if job.tag_output else []
    output += ["timestamp"] if job.timestamps else []
    # dir= loses lines in 5.0.11: a rank's second stream cannot make the folder again.
    output += [f"file={job.output_folder}/rank"] if job.output_folder else []
    return ["--output", ",".join(output)] if output else []


def _message_layers(job: Job, new: bool) -> dict:
    """Parameters of Open MPI for how messages travel."""
    # Version 4 cannot let calls fail, so there is nothing for it to know.
    named = job.messages == "tcp" or (job.messages == "ob1" and new)
    layers = {"pml": "ob1"} if named else {}
    if job.messages == "tcp":
        layers["btl"] = "self,sm,tcp" if new else "self,vader,tcp"
    return layers


def _open_mpi_messages(job: Job, new: bool) -> list:
    words = []
    for name, value in _message_layers(job, new).items():
        words += ["--mca", name, value]
    if not new:
        # Where reading a peer's memory is forbidden, as in many containers, version 4 fails instead
        # of copying. Ranks of a host do not talk through MPI anyway.
        words += ["--mca", "btl_vader_single_copy_mechanism", "none"]
    return words


def _open_mpi(job: Job, mpi: Mpi, machine: Machine) -> list:
    """Options of mpirun of Open MPI 4 and 5; the latter's runtime has parameters of its own."""
    new = mpi.major >= 5
    words = ["--allow-run-as-root"] if machine.root else []
    words += _open_mpi_places(job, new, machine)
    words += ["-H", show(job.hosts)] if job.hosts else []
    words += _open_mpi_messages(job, new)

    def runtime(parameter: str, old: str, value: str) -> list:
        return ["--prtemca", parameter, value] if new else ["--mca", old, value]

    if job.nic:
        words += ["--mca", "btl_tcp_if_include", job.nic]
        words += runtime("prte_if_include", "oob_tcp_if_include", job.nic)
    if _ssh_words(job):
        words += runtime("plm_ssh_args", "plm_rsh_args", " ".join(_ssh_words(job)))
    if job.start_timeout and new:
        raise LaunchError(
            f"--start-timeout needs Open MPI 4, and this is {mpi}, whose launcher crashes with its "
            "own limit (seen with 5.0.11); leave it out"
        )
    if job.start_timeout:
        words += ["--mca", "orte_startup_timeout", str(job.start_timeout)]
    words += _open_mpi_output(job, new)
    if job.verbose:
        words += ["--display", "map"] if new else ["--display-map"]
    for name, value in job.variables:
        words += ["-x", name if value is None else f"{name}={value}"]
    given = {name for name, _ in job.variables}
    for name in job.forwarded if job.hosts else ():
        words += [] if name in given else ["-x", name]
    return [mpi.path, "-np", str(job.ranks), *words]


def _mpich_places(job: Job, machine: Machine) -> list:
    if job.binding is not None:
        return list(job.binding)
    if places_themselves(job):
        return []
    if job.cores_per_rank:
        return ["-bind-to", f"core:{job.cores_per_rank}"]
    # Its ranks take turns on the sockets.
    return ["-bind-to", "socket" if _on_each_socket(job, machine) else "none"]


def _given(job: Job) -> list:
    """The names of the variables that the ranks get, exported ones and those of -x."""
    return [*job.forwarded, *(name for name, _ in job.variables)]


def _intel_hosts(hosts: Sequence[Host]) -> list:
    """It takes no slots beside the names, but one number for all, and names more than once."""
    if not hosts:
        return []
    slots = [host.slots or 1 for host in hosts]
    if len(set(slots)) == 1:
        return ["-hosts", ",".join(host.name for host in hosts), "-ppn", str(slots[0])]
    names = [host.name for host, number in zip(hosts, slots, strict=True) for _ in range(number)]
    return ["-hosts", ",".join(names), "-ppn", "1"]


def _intel_places(job: Job, mpi: Mpi, machine: Machine) -> list:
    """Variables, as Intel's Hydra has no option; it gives each rank its part of the cores."""
    if job.cores_per_rank:
        raise LaunchError(
            f"--cores-per-rank needs Open MPI or MPICH, and this is {mpi}, which counts logical "
            "cores: set I_MPI_PIN_DOMAIN to their number, or name another launcher with --mpirun"
        )
    there = _intel_hosts(job.hosts)
    if job.binding is not None:
        return [*job.binding, *there]
    if any(word.startswith("I_MPI_PIN") for word in [*_given(job), *job.more, *job.passed]):
        return there
    if _on_each_socket(job, machine):
        return ["-genv", "I_MPI_PIN_DOMAIN", "socket"]
    return ["-genv", "I_MPI_PIN", "0", *there]


def _hydra(job: Job, mpi: Mpi, machine: Machine) -> list:
    """Options of Hydra, which hands on all variables by itself and knows no limit for starting."""
    refused = {"--start-timeout": job.start_timeout, "--output-filename": job.output_folder}
    refused["--ssh-port or --ssh-identity-file"] = job.ssh_port or job.ssh_key
    refused |= {"--tcp": job.messages == "tcp", "--prefix-output-with-timestamp": job.timestamps}
    for option, value in refused.items():
        if value:
            raise LaunchError(
                f"{option} needs Open MPI, and this is {mpi}; leave it out, or name another "
                "launcher with --mpirun"
            )
    if mpi.kind == "intel":
        words = _intel_places(job, mpi, machine)
    else:
        words = _mpich_places(job, machine)
        words += ["-hosts", show(job.hosts)] if job.hosts else []
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
    words = (_open_mpi if mpi.kind == "openmpi" else _hydra)(job, mpi, machine)
    if job.nic:
        words += _nic_variables(job, mpi)
    return [*words, *job.more, *(job.passed or job.program)]


def _nic_variables(job: Job, mpi: Mpi) -> list:
    """NCCL and gloo have a variable for the interface each, unless the user sets it."""
    given = {name for name, _ in job.variables}
    names = [name for name in _NIC_VARIABLES if name not in given]
    if mpi.kind != "openmpi":
        return [word for name in names for word in ("-genv", name, job.nic)]
    return [word for name in names for word in ("-x", f"{name}={job.nic}")]


def srun(job: Job, mpi: Mpi) -> list:
    """The words of srun's command line, inside an allocation. It hands on all variables.

    Raises:
      LaunchError: srun cannot do what is asked for.
    """
    ssh = (job.ssh_port, job.ssh_key)
    output = (job.output_folder, job.timestamps)
    if any((job.nic, job.start_timeout, *ssh, *output, job.binding, job.more)):
        raise LaunchError(
            "--srun takes none of --nic, --start-timeout, --output-filename, --ssh-port, "
            "--ssh-identity-file, --mpi-args, --binding-args and --prefix-output-with-timestamp; "
            "leave them out, or leave out --srun"
        )
    # env, because a value with a comma cannot be written in srun's --export.
    setting = [f"{name}={value}" for name, value in job.variables if value is not None]
    if mpi.kind == "openmpi":
        layers = _message_layers(job, mpi.major >= 5)
        setting += [f"OMPI_MCA_{name}={value}" for name, value in layers.items()]
    elif job.messages == "tcp":
        raise LaunchError(f"--tcp needs Open MPI, and this is {mpi}; leave it out")
    if mpi.kind == "intel" and "I_MPI_PMI_LIBRARY" not in _given(job):
        raise LaunchError(
            f"srun starts ranks of {mpi} with Slurm's PMI only: set I_MPI_PMI_LIBRARY to its "
            "libpmi2.so, or leave out --srun"
        )
    words = ["srun", "--mpi=" + ("pmix" if mpi.kind == "openmpi" else "pmi2")]
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
