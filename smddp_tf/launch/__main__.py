"""``smddprun``, or ``python -m smddp_tf.launch``: starts a script on several ranks."""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence

from smddp_tf.launch import command, hosts, mpi, options, racks, supervise
from smddp_tf.launch.errors import LaunchError

# Set for ranks that SageMaker's toolkit starts as `mpirun ... smddprun python ...`.
_OF_TOOLKIT = ("SMDATAPARALLEL_USE_SINGLENODE", "SMDATAPARALLEL_USE_HOMOGENEOUS")


def _cores() -> int:
    """The cores that this process may use; threads of one core count once, as for mpirun."""
    usable, cores = os.sched_getaffinity(0), set()
    for number in usable:
        path = f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list"
        try:
            cores.add(pathlib.Path(path).read_text())
        except OSError:
            return len(usable)
    return len(cores)


def this_machine() -> command.Machine:
    """What mpirun's command depends on here."""
    return command.Machine(os.geteuid() == 0, _cores(), socket.gethostname())


def _hosts(given: argparse.Namespace, environment: Mapping[str, str], topology: str) -> list:
    """The hosts that the options or the environment name; empty: this one."""
    if given.hosts:
        return hosts.parse_hosts(given.hosts)
    if given.hostfile:
        try:
            text = pathlib.Path(given.hostfile).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise LaunchError(f"--hostfile {given.hostfile} cannot be read: {error}") from error
        return hosts.parse_hostfile(text, given.hostfile)
    allocated = hosts.slurm_hosts(environment)
    return racks.ordered(allocated, topology) or hosts.sagemaker_hosts(environment)


def _check_nic(nic: str) -> None:
    known = [name for _, name in socket.if_nameindex()]
    for name in nic.split(","):
        if name not in known and "/" not in name:  # an address/length is mpirun's to check
            raise LaunchError(f"--nic {nic}: no interface {name!r} here, but {', '.join(known)}")


def _program(given: argparse.Namespace, search: str | None) -> list:
    """The program's words: a bare .py file is run by this Python; --alias is applied."""
    program = list(given.program)
    if not program:
        return []
    if program[0].endswith(".py") and not os.access(program[0], os.X_OK):
        program.insert(0, sys.executable)
    if shutil.which(program[0], path=search) is None:
        raise LaunchError(f"{program[0]}: there is no such program here")
    return command.with_alias(program) if given.alias else program


def make_job(
    given: argparse.Namespace,
    environment: Mapping[str, str],
    machine: command.Machine,
    topology: str = "",
) -> command.Job:
    """What to launch.

    Args:
      given: the command line's options.
      environment: names hosts, if the options do not.
      machine: where this runs.
      topology: Slurm's switches, as racks.ask() returns them.

    Raises:
      LaunchError: hosts, ranks or the program are not as they have to be.
    """
    found = _hosts(given, environment, topology)
    if not found and given.ranks is None:
        raise LaunchError("how many ranks? As in `smddprun -np 4 python train.py`")
    assigned = hosts.assign(found, given.ranks) if found else []
    ranks = sum(host.slots for host in assigned) if assigned else given.ranks
    nic = given.nic
    elsewhere = [] if command.is_local(assigned, machine) else assigned
    if nic is None and elsewhere and environment.get("SM_HOSTS"):
        nic = environment.get("SM_NETWORK_INTERFACE_NAME")
    elif nic:
        _check_nic(nic)
    return command.Job(
        ranks=ranks,
        program=_program(given, environment.get("PATH")),
        hosts=elsewhere,
        variables=given.variables,
        # A command that is only printed is for a shell that does not have what smddprun sets.
        forwarded=command.forwarded(environment) + ([] if given.dry_run else list(command.TOLD)),
        passed=given.passed,
        nic=nic,
        cores_per_rank=given.cores_per_rank,
        tag_output=given.tag_output,
        verbose=given.verbose,
        output_folder=given.output_filename,
        start_timeout=given.start_timeout,
        ssh_port=given.ssh_port,
        ssh_key=given.ssh_identity_file,
    )


def _explain(job: command.Job, machine: command.Machine, words: Sequence[str]) -> None:
    """--verbose: where ranks run, and the command."""
    first = 0
    for host in job.hosts or [hosts.Host(machine.name, job.ranks)]:
        last = first + host.slots - 1
        where = f"rank {first}" if first == last else f"ranks {first} to {last}"
        supervise.say(f"{where} on {host.name}")
        first = last + 1
    supervise.say(shlex.join(words))


def _become(given: argparse.Namespace, environment: Mapping[str, str]) -> None:
    """Under mpirun already: this rank is the program from now on."""
    if given.ranks or given.hosts or given.hostfile:
        raise LaunchError(
            "this process is a rank of a job already, so smddprun cannot launch another; leave out "
            "-np, -H and --hostfile to run the program as this rank"
        )
    program = _program(given, environment.get("PATH")) or given.passed
    if any(environment.get(name) for name in _OF_TOOLKIT):
        # It leaves the binding to Open MPI, which gives each of two ranks one core. The control
        # group limits what may be used anyway.
        os.sched_setaffinity(0, range(os.cpu_count()))
    values = {name: value for name, value in given.variables if value is not None}
    os.execvpe(program[0], program, {**environment, **values})


def _run(given: argparse.Namespace, environment: Mapping[str, str]) -> int:
    if given.check_build:
        os.execv(sys.executable, [sys.executable, "-m", "smddp_tf", "--version"])
    if hosts.is_rank(environment):
        _become(given, environment)
    machine = this_machine()
    launcher = mpi.ask(mpi.find(given.mpirun, environment.get("PATH")))
    keeps_order = launcher.keeps_order and not given.srun
    job = make_job(given, environment, machine, racks.ask(environment) if keeps_order else "")
    if mpi.moved(launcher):
        job = dataclasses.replace(job, forwarded=[*job.forwarded, "OPAL_PREFIX"])
    if given.srun:
        if shutil.which("srun", path=environment.get("PATH")) is None:
            raise LaunchError("--srun: no srun on PATH; leave it out to use mpirun")
        words = command.srun(job, launcher)
    else:
        words = command.mpirun(job, launcher, machine)
    if given.dry_run:
        print(shlex.join(words))
        return 0
    if given.verbose:
        _explain(job, machine, words)
        if given.without_effect:
            supervise.say("some options of horovodrun have no effect here")
    if job.output_folder:
        os.makedirs(job.output_folder, exist_ok=True)
    told = {**environment, **command.told(job)}
    if given.srun and not environment.get("SMDDP_MPI_LIBRARY") and mpi.library(launcher):
        told["SMDDP_MPI_LIBRARY"] = mpi.library(launcher)
    return supervise.run_with_restarts(words, told, given.max_restarts, job.tag_output)


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; 2 for a job that cannot be launched."""
    given = options.parse(sys.argv[1:] if words is None else words)
    try:
        return _run(given, os.environ)
    except LaunchError as error:
        supervise.say(str(error))
        return 2
    except OSError as error:
        supervise.say(f"the job cannot be started: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
