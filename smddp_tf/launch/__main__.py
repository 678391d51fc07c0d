"""``smddprun``, or ``python -m smddp_tf.launch``: starts a script on several ranks."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import pathlib
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

from smddp_tf.launch import (
    LaunchError,
    command,
    commits,
    hosts,
    mpi,
    mpi_tmpdir,
    options,
    racks,
    sagemaker,
    supervise,
    torch_variables,
)
from smddp_tf.launch.elastic import job as elastic_job
from smddp_tf.launch.elastic import options as elastic
from smddp_tf.launch.machine import Machine, this_machine

_MOST_LINES = 64
# Set for ranks that SageMaker's toolkit starts as `mpirun ... smddprun python ...`.
_OF_TOOLKIT = ("SMDATAPARALLEL_USE_SINGLENODE", "SMDATAPARALLEL_USE_HOMOGENEOUS")


def _hosts(given: argparse.Namespace, environment: Mapping[str, str], topology: str) -> list:
    """The hosts that the options or the environment name; empty: this one."""
    if given.hosts is not None:
        return hosts.parse_hosts(given.hosts)
    if given.hostfile is not None:
        try:
            text = pathlib.Path(given.hostfile).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise LaunchError(f"--hostfile {given.hostfile} cannot be read: {error}") from error
        return hosts.parse_hostfile(text, given.hostfile)
    allocated = hosts.slurm_hosts(environment)
    return racks.ordered(allocated, topology) or hosts.sagemaker_hosts(environment, given.ranks)


def _check_nic(nic: str) -> None:
    known = [name for _, name in socket.if_nameindex()]
    for name in nic.split(","):
        if name not in known and "/" not in name:  # an address/length is mpirun's to check
            raise LaunchError(f"--nic {nic}: no interface {name!r} here, but {', '.join(known)}")


def _is_not_run_by_name(script: str, search: str | None) -> bool:
    """Whether a script is a file that may not be executed, or whose folder is not searched."""
    return not os.access(script, os.X_OK) or shutil.which(script, path=search) is None


def _program(given: argparse.Namespace, search: str | None) -> list:
    """The program's words: a bare .py file is run by this Python; --alias is applied."""
    program = list(given.program)
    if not program:
        return []
    if program[0].endswith(".py") and _is_not_run_by_name(program[0], search):
        program.insert(0, sys.executable)
    if shutil.which(program[0], path=search) is None:
        if os.path.isfile(program[0]):
            raise LaunchError(
                f"{program[0]} may not be executed (chmod +x), or is not on PATH (./{program[0]}); "
                "or name the program that runs it, as in `bash train.sh`"
            )
        raise LaunchError(f"{program[0]}: there is no such program here")
    return command.with_alias(program) if given.alias else program


def _messages(
    given: argparse.Namespace,
    elsewhere: Sequence[hosts.Host],
    environment: Mapping[str, str],
    machine: Machine,
) -> str:
    """How messages between hosts travel, as command.Job has it.

    On plain Ethernet "ob1" is what MPI takes by itself. If it is named, our library knows that, and
    has MPI let calls fail when a rank dies, instead of ending the others. What devices other
    machines have is not known.
    """
    if given.tcp:
        return "tcp"
    set_already = "pml" in [*given.more, *given.passed] or environment.get("OMPI_MCA_pml")
    here = any(machine.is_called(host.name) for host in elsewhere)
    return "ob1" if here and not machine.fabric and not set_already else ""


def make_job(
    given: argparse.Namespace,
    environment: Mapping[str, str],
    machine: Machine,
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
    if ":" in given.program:
        raise LaunchError("an argument `:` would begin another program for mpirun; leave it out")
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
        forwarded=command.forwarded(environment)
        + ([] if given.dry_run else [*command.TOLD, *torch_variables.MASTER]),
        binding=given.binding,
        messages=_messages(given, elsewhere, environment, machine),
        more=given.more,
        passed=given.passed,
        nic=nic,
        cores_per_rank=given.cores_per_rank,
        tag_output=bool(given.tag_output),
        timestamps=given.timestamps,
        verbose=given.verbose,
        output_folder=given.output_filename,
        start_timeout=given.start_timeout,
        ssh_port=given.ssh_port,
        ssh_key=given.ssh_identity_file,
        ssh_more=sagemaker.SSH_WORDS if given.sagemaker and elsewhere else (),
    )


def _say_ranks(job: command.Job, machine: Machine) -> None:
    """A line for each rank that starts; in large jobs for each host."""
    if command.places_themselves(job):
        return
    first = 0
    for host in job.hosts or [hosts.Host(machine.name, job.ranks)]:
        last = first + (host.slots or job.ranks) - 1
        if job.ranks <= _MOST_LINES:
            for rank in range(first, last + 1):
                supervise.say(f"rank {rank} starts on {host.name}")
        else:
            supervise.say(f"ranks {first} to {last} start on {host.name}")
        first = last + 1


def _print_words(words: Sequence[str]) -> None:
    """Words may be bytes of any encoding."""
    sys.stdout.buffer.write(os.fsencode(shlex.join(words) + "\n"))
    sys.stdout.buffer.flush()


def _become(given: argparse.Namespace, environment: Mapping[str, str]) -> None:
    """Under mpirun already: this rank is the program from now on."""
    if given.ranks or given.hosts or given.hostfile:
        raise LaunchError(
            "this process is a rank of a job already, so smddprun cannot launch another; leave out "
            "-np, -H and --hostfile to run the program as this rank"
        )
    program = _program(given, environment.get("PATH")) or given.passed
    if given.dry_run:
        _print_words(program)
        sys.exit(0)
    if any(environment.get(name) for name in _OF_TOOLKIT):
        # It leaves the binding to Open MPI, which gives each of two ranks one core. The control
        # group limits what may be used anyway.
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    values = {name: value for name, value in given.variables if value is not None}
    values = {**torch_variables.of_rank(environment), **values}
    os.execvpe(program[0], program, {**environment, **values})


def _launch_elastic(
    given: argparse.Namespace,
    environment: Mapping[str, str],
    job: command.Job,
    launcher: mpi.Mpi,
    machine: Machine,
    made: Mapping[str, str],
) -> supervise.Outcome:
    """Calls an mpirun for each rank; made: as commits.new_folder() returned it."""
    limits = elastic.limits(given, job)
    discovery = elastic.discovery(given, environment)
    more = ["OPAL_PREFIX"] if mpi.moved(launcher) else []
    unset = {*command.FOR_DOCTOR, *torch_variables.MASTER} - environment.keys()
    job = dataclasses.replace(
        job, forwarded=[*(name for name in job.forwarded if name not in unset), *more]
    )
    words, there = (
        command.mpirun(elastic.of_a_slot(job, elsewhere), launcher, machine)
        for elsewhere in (False, True)
    )
    hosts = elastic.listed_hosts(job, machine)
    if given.dry_run:
        _print_words(there if job.hosts else words)
        return supervise.Outcome(0)
    if given.verbose:
        supervise.say(shlex.join(words))
    own = launcher.kind == "openmpi" and launcher.major >= 5

    def once(words: Sequence[str], environment: Mapping, tagged: bool) -> supervise.Outcome:
        commands = elastic_job.Commands(words, there, own, machine.is_called, job.nic)
        return elastic_job.run(commands, environment, tagged, limits, hosts, discovery)

    restarts = given.max_restarts
    outcome = supervise.run_with_restarts(words, environment, restarts, job.tag_output, once)
    commits.finish(made, outcome)
    return outcome


def _launch(given: argparse.Namespace, environment: Mapping[str, str]) -> supervise.Outcome:
    machine = this_machine(environment)
    launcher = mpi.ask(mpi.find(given.mpirun, environment.get("PATH")))
    keeps_order = launcher.keeps_order and not given.srun
    made = (
        {}
        if given.dry_run
        else commits.new_folder(environment, given.variables, given.max_restarts)
    )
    environment = {**environment, **made}
    job = make_job(given, environment, machine, racks.ask(environment) if keeps_order else "")
    if given.tag_output is None and job.ranks > 1 and not os.isatty(1):
        job = dataclasses.replace(job, tag_output=True)
    if elastic.is_elastic(given):
        return _launch_elastic(given, environment, job, launcher, machine, made)
    if mpi.moved(launcher):
        job = dataclasses.replace(job, forwarded=[*job.forwarded, "OPAL_PREFIX"])
    if given.srun:
        if shutil.which("srun", path=environment.get("PATH")) is None:
            raise LaunchError("--srun: no srun on PATH; leave it out to use mpirun")
        words = command.srun(job, launcher)
    else:
        words = command.mpirun(job, launcher, machine)
    if given.dry_run:
        _print_words(words)
        return supervise.Outcome(0)
    _say_ranks(job, machine)
    if given.verbose:
        supervise.say(shlex.join(words))
        if given.without_effect:
            supervise.say("some options of horovodrun have no effect here")
    if job.output_folder:
        os.makedirs(job.output_folder, exist_ok=True)
    told = {**environment, **command.told(job)}
    told |= torch_variables.of_job(job.hosts, job.variables, environment)
    if given.srun and not environment.get("SMDDP_MPI_LIBRARY") and mpi.library(launcher):
        told["SMDDP_MPI_LIBRARY"] = mpi.library(launcher)
    # Daemons on other hosts would look for the folder there.
    own = launcher.kind == "openmpi" and launcher.major >= 5 and not (job.hosts or given.srun)
    folder: contextlib.AbstractContextManager[Mapping] = contextlib.nullcontext(told)
    if own:
        folder = mpi_tmpdir.own_folder(told, words)
    with folder as variables:
        outcome = supervise.run_with_restarts(words, variables, given.max_restarts, job.tag_output)
    commits.finish(made, outcome)
    return outcome


def _as_container(given: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """--sagemaker: the first host launches, the others let it in until the job has ended."""
    given_values = sagemaker.hyperparameters(environment)
    told = sagemaker.variables(environment)
    if told:  # nobody else hands the hyperparameters to the script
        (given.program or given.passed).extend(sagemaker.arguments(given_values))
    given.ranks = given.ranks or sagemaker.ranks(given_values)
    environment = {**environment, **told}
    names, current = sagemaker.host_names(environment)
    with sagemaker.sshd(environment.get("PATH")) if len(names) > 1 else contextlib.nullcontext():
        if current != names[0]:
            return sagemaker.wait_for_end()
        with sagemaker.others_ready(names[1:]):
            outcome = _launch(given, environment)
    if outcome.code != 0:
        sagemaker.write_failure(outcome.cause or f"the job failed: exit code {outcome.code}")
    return outcome.code


def _run(given: argparse.Namespace, environment: Mapping[str, str]) -> int:
    if given.check_build:
        os.execv(sys.executable, [sys.executable, "-m", "smddp_tf", "--version"])
    if hosts.is_rank(environment):
        _become(given, environment)
    if not given.sagemaker or given.dry_run:
        return _launch(given, environment).code
    try:
        return _as_container(given, environment)
    except (LaunchError, OSError) as error:
        sagemaker.write_failure(str(error))
        raise


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
    except KeyboardInterrupt:  # one more, while what the job left is ended
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
