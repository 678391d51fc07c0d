"""run() itself: Horovod's arguments -> smddprun's words, and results or an exception."""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from smddp_tf.launch import LaunchError, command, hosts, machine, options
from smddp_tf.launch.function import launcher as local
from smddp_tf.launch.function import on_ray, outcome, pickling
from smddp_tf.launch.function.results import LOOPBACK, Results


class _Parser(argparse.ArgumentParser):
    """smddprun's, for a process that is not to end where it says usage."""

    def error(self, message: str) -> NoReturn:
        raise LaunchError(f"run(): {message}")


def _words(values: Mapping[str, Any], switches: Mapping[str, Any], executable: str) -> list[str]:
    words = [f"{option}={value}" for option, value in values.items() if value is not None]
    words += [option for option, value in switches.items() if value]
    return ["--tag-output", *words, executable, "-m", "smddp_tf.launch.function.rank"]


def _addresses(job: command.Job, anywhere: bool) -> list[str]:
    """Those of this machine by which the ranks may reach it."""
    if not job.hosts and not anywhere:
        return [LOOPBACK]
    here = [name for _, name in socket.if_nameindex()]
    named = [name for name in (job.nic or "").split(",") if name in here]
    found = [machine.interface_address(name) for name in named or here]
    usable = [address for address in found if address and not address.startswith("127.")]
    if anywhere:
        return [*usable, LOOPBACK]
    if not usable:
        raise LaunchError(
            f"run(): the interfaces {', '.join(named or here)} of this machine have no IPv4 "
            f"address by which ranks on {hosts.show(job.hosts)} could reach it"
        )
    return usable


def _variables(results: Results, environment: Mapping[str, str]) -> dict[str, str]:
    """For smddprun, which finds this package also where only this process's sys.path has it."""
    variables = results.variables()
    root = pathlib.Path(__file__).resolve().parents[3]
    if root.name not in ("site-packages", "dist-packages"):
        path = [os.fspath(root), environment.get("PYTHONPATH", "")]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    return variables


def _check(func: Any, args: Any, kwargs: Any) -> None:
    if not callable(func):
        raise TypeError(f"run() calls a function on each rank, and func is {func!r}")
    if not isinstance(args, (tuple, list)):
        raise TypeError(f"args is a tuple, as in run(train, args=(3,), np=2), and not {args!r}")
    if not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs is a dict, as in run(train, kwargs={{'n': 3}}), not {kwargs!r}")
    if hosts.is_rank(os.environ):
        raise LaunchError(
            "run(): this process is a rank of a job already, so it cannot start another; call "
            "run() from a Python process or a notebook that no launcher has started"
        )
    if not sys.executable:
        raise LaunchError("run(): this process does not know its Python (sys.executable)")


def _check_launcher(launcher: str | None, resources: Any, where: Any) -> None:
    if launcher not in (None, "ray"):
        raise LaunchError(f"run(): launcher is 'ray' or left out for smddprun, not {launcher!r}")
    if launcher is None and resources is not None:
        raise LaunchError("run(): resources is for launcher='ray'; leave it out")
    if not isinstance(resources, (Mapping, type(None))):
        raise TypeError(f"resources is a dict, as {{'num_cpus': 2}}, and not {resources!r}")
    if launcher == "ray" and where:
        raise LaunchError(
            "run(): with launcher='ray' Ray chooses the machine; leave out hosts, hostfile and "
            "network_interface"
        )


def _either(new: Any, old: Any, name: str) -> Any:
    """The value of an argument that has two names."""
    if new is not None and old is not None and new != old:
        raise LaunchError(f"run(): {name}={new!r}, and {old!r} by its older name; give one of them")
    return old if new is None else new


def _refuse_elastic(given: Mapping[str, Any]) -> None:
    """There is a result for each rank; ranks that come and go have no number that stays."""
    for name, value in given.items():
        if value is not None:
            raise LaunchError(
                f"run(): {name}={value!r} is for elastic jobs, and run() starts a fixed number of "
                "ranks; give num_proc alone, or start a script by `smddprun --min-np`"
            )


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    launcher: str | None = None,
    resources: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Calls a function on several ranks, which smddprun starts, and returns their results.

    For a Python process or a notebook; not for a rank. The ranks are new processes: the function
    imports what it needs and calls ``init()``. Their lines are printed as they come, after their
    rank. Ctrl-C ends them. A rank that calls ``sys.exit(0)`` has returned None.

    Args:
      func: the function. With cloudpickle installed it may be of ``__main__`` or a notebook, else
        ranks import it by its name.
      args: its positional arguments.
      kwargs: its keyword arguments.
      num_proc: how many ranks; by default as many as hosts or hostfile have slots, else 2.
      min_num_proc: refused, as are max_num_proc, slots, reset_limit and cooldown_range: smddprun
        starts elastic jobs, from a script.
      max_num_proc: refused.
      slots: refused.
      reset_limit: refused.
      cooldown_range: refused.
      hosts: where, as smddprun's -H: "a:2,b:2"; by default in the Slurm allocation or here.
      hostfile: a file with lines as ``a slots=2``.
      start_timeout: as --start-timeout, in seconds.
      ssh_port: as --ssh-port.
      ssh_identity_file: as --ssh-identity-file.
      disable_cache: as --disable-cache, without effect.
      output_filename: as --output-filename, a folder.
      verbose: as --verbose, if it is not 0.
      use_gloo: as --gloo, which is refused.
      use_mpi: as --mpi, without effect.
      mpi_args: as --mpi-args, for mpirun.
      network_interface: the network between hosts, such as "eth0".
      executable: the Python of the ranks; by default this one.
      np: num_proc by its older name.
      min_np: min_num_proc by its older name.
      max_np: max_num_proc by its older name.
      launcher: "ray" runs the job where Ray grants what all ranks need, on one machine.
      resources: that, as options of ray.remote; by default {"num_cpus": num_proc}.

    Returns:
      What the function returned, in the order of ranks.

    Raises:
      RankFailedError: a rank failed, was killed or returned what cannot be pickled. The message
        has its traceback, and its exception is the cause.
      pickle.PicklingError: the function or an argument cannot be pickled.
      smddp_tf.launch.LaunchError: a ValueError; the ranks cannot be started as asked.
      TypeError: func is no function, args no tuple or kwargs no dict.

    Examples:
      >>> def work(scale):
      ...     hvd.init()
      ...     return scale * hvd.rank()
      >>> hvd.run(work, args=(10,), np=2)
      [0, 10]
    """
    kwargs = {} if kwargs is None else kwargs
    _check(func, args, kwargs)
    _check_launcher(launcher, resources, hosts or hostfile or network_interface)
    ranks = _either(num_proc, np, "num_proc")
    if ranks is None and hosts is None and hostfile is None:
        ranks = 2
    elastic = {"min_num_proc": _either(min_num_proc, min_np, "min_num_proc")}
    elastic["max_num_proc"] = _either(max_num_proc, max_np, "max_num_proc")
    elastic |= {"slots": slots, "reset_limit": reset_limit, "cooldown_range": cooldown_range}
    _refuse_elastic(elastic)
    values = {
        "--num-proc": ranks,
        "--hosts": hosts,
        "--hostfile": hostfile,
        "--start-timeout": start_timeout,
        "--ssh-port": ssh_port,
        "--ssh-identity-file": ssh_identity_file,
        "--output-filename": output_filename,
        "--mpi-args": mpi_args,
        "--network-interface": network_interface,
    }
    switches = {"--disable-cache": disable_cache, "--verbose": verbose}
    switches |= {"--gloo": use_gloo, "--mpi": use_mpi}
    call, sources = pickling.dumps_call(func, args, kwargs)
    path = [os.path.abspath(folder) for folder in sys.path] if executable is None else []
    about = (platform.python_version_tuple()[:2], path, sources)
    words = _words(values, switches, executable or sys.executable)
    return _run(words, about, call, launcher == "ray", resources)


def _run(
    words: Sequence[str], about: tuple[Any, ...], call: bytes, by_ray: bool, resources: Any
) -> list[Any]:
    """Runs smddprun with these words, and returns the ranks' results."""
    from smddp_tf.launch import __main__ as smddprun  # only where it is called: it has a parser

    here = machine.this_machine(os.environ)
    job = smddprun.make_job(options.parse(words, _Parser), os.environ, here)
    results = Results(_addresses(job, by_ray), about, call)
    variables = _variables(results, os.environ)
    try:
        if by_ray:
            wanted = resources or {"num_cpus": job.ranks}
            code, last = on_ray.launch(words, variables, wanted)
        else:
            code, last = local.launch(words, {**os.environ, **variables})
    finally:
        results.close()
    outcome.raise_failure(results, job.ranks, code, last)
    return [outcome.value(rank, results.values.pop(rank)) for rank in range(job.ranks)]
