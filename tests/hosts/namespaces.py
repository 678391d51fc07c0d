"""Hosts on one machine: Linux namespaces joined by a bridge, for tests and benchmarks.

    with Hosts(2, rate="1gbit") as hosts:
        output = hosts.mpirun([2, 1], ["python", "body.py"], timeout=60)

Each host has a network with an address of its own, a host name, processes, and /dev/shm. A switch,
one more network, has the bridge; mpirun runs there, so nothing listens or sends in the network of
whoever runs this. A host is a process that waits for the end of its input: when it ends, or its
parent does in whatever way, the kernel ends all processes of that host and removes its devices.
"""

import functools
import os
import pathlib
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time

NETWORK, FIRST_SUBNET = "10.213", 37
BRIDGE_MAC = "02:00:00:00:37:fe"
BIN = pathlib.Path(sys.executable).parent
# How a host starts: its own name and /dev/shm, what else is asked for, then it says so, and waits.
# The shell stays: it is process 1, which collects the processes that lose their parents.
HOST = 'hostname "$0" && mount -t tmpfs -o size=64m tmpfs /dev/shm && {} && echo ready && cat; exit'
# What mpirun calls instead of ssh: [OPTIONS] HOST COMMAND... Each host has a TMPDIR of its own,
# because daemons name files in it by process ids, which two hosts may both have.
AGENT = """#!/bin/sh
folder=$(dirname "$0")
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
export TMPDIR="$folder/tmp-$host"
mkdir -p "$TMPDIR"
exec nsenter -t "$(cat "$folder/$host")" -n -m -u -p -- sh -c "$*"
"""
# Byte transfer over the hosts' network alone. Ranks may share cores.
OVER_TCP = ["--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include"]


class HostsError(RuntimeError):
    """Hosts could not be made, or a program on them failed; the message has its output."""


def _run(*words) -> str:
    result = subprocess.run(
        [str(word) for word in words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=20,
        check=False,
    )
    if result.returncode != 0:
        raise HostsError(f"{' '.join(map(str, words))}: {result.stdout.strip()}")
    return result.stdout


class _Holder:
    """A process that keeps namespaces; its first child is process 1 of them."""

    def __init__(self, flags, script, name):
        command = ["unshare", *flags, "-p", "-f", "--mount-proc", "--kill-child", "sh", "-c"]
        self._process = subprocess.Popen(
            [*command, script, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        heard, _, _ = select.select([self._process.stdout], [], [], 20)
        said = self._process.stdout.readline().strip() if heard else "no answer in 20 s"
        if said != "ready":
            self.end()
            raise HostsError(f"unshare: {said}")
        own = self._process.pid
        children = pathlib.Path(f"/proc/{own}/task/{own}/children").read_text().split()
        self.pid = int(children[0])

    def end(self) -> None:
        """Ends every process in these namespaces."""
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._process.stdout.close()


class Hosts:
    """So many hosts, until the end of a `with` block.

    Args:
      count: how many.
      rate: of each host's link in each direction, as tc writes it; None: as fast as the kernel.
      prefix: they are named host1, host2, ...
      prepare: a shell command that each runs when it starts.
      apart: each is in a subnet of its own; "routed": with the switch as the router between them.
    """

    def __init__(self, count, rate=None, prefix="host", prepare="true", apart=""):
        self.count, self._rate, self._prepare = count, rate, prepare
        self.names = [f"{prefix}{i + 1}" for i in range(count)]
        self._apart = apart
        nets = [f"{NETWORK}.{FIRST_SUBNET + (i if apart else 0)}" for i in range(count)]
        self.addresses = [f"{net}.{i + 1}" for i, net in enumerate(nets)]
        self._routers = [f"{net}.254" for net in nets]
        self._holders = []

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="hosts")
        try:
            self._make()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_):
        self._end()

    def _make(self) -> None:
        agent = pathlib.Path(self._folder.name, "agent")
        agent.write_text(AGENT)
        agent.chmod(0o755)
        self._switch = self._hold("switch")
        self._holders.append(self._switch)
        # With an address of its own: it would take a port's, and another one when that host ends.
        self._ip(self._switch, "link", "add", "br0", "address", BRIDGE_MAC, "type", "bridge")
        for router in sorted(set(self._routers)):
            self._ip(self._switch, "addr", "add", f"{router}/24", "dev", "br0")
        self._ip(self._switch, "link", "set", "br0", "up")
        if self._apart == "routed":
            forward = "echo 1 >/proc/sys/net/ipv4/ip_forward"
            _run("nsenter", "-t", self._switch.pid, "-n", "-m", "-p", "sh", "-c", forward)
        for i in range(self.count):
            self._make_host(i)

    def _make_host(self, i) -> None:
        host = self._hold(self.names[i])
        self._holders[i + 1 : i + 2] = [host]
        pathlib.Path(self._folder.name, self.addresses[i]).write_text(str(host.pid))
        port = f"port{i + 1}"
        ends = [port, "type", "veth", "peer", "name", "eth0", "netns", host.pid]
        self._ip(self._switch, "link", "add", *ends)
        self._ip(self._switch, "link", "set", port, "master", "br0", "up")
        self._ip(host, "addr", "add", f"{self.addresses[i]}/24", "dev", "eth0")
        self._ip(host, "link", "set", "eth0", "up")
        if self._apart == "routed":
            self._ip(host, "route", "add", "default", "via", self._routers[i])
        if self._rate is not None:
            self._limit(self._switch, port)
            self._limit(host, "eth0")

    def _hold(self, name) -> _Holder:
        holder = _Holder(["-n", "-m", "-u"], HOST.format(self._prepare), name)
        self._ip(holder, "link", "set", "lo", "up")
        return holder

    def _ip(self, holder, *words) -> str:
        return _run("nsenter", "-t", holder.pid, "-n", "ip", *words)

    def _limit(self, holder, device) -> None:
        bucket = ["tbf", "rate", self._rate, "burst", "256kb", "latency", "50ms"]
        _run(
            "nsenter", "-t", holder.pid, "-n", "tc", "qdisc", "add", "dev", device, "root", *bucket
        )

    def _end(self) -> None:
        for holder in reversed(self._holders):
            holder.end()
        self._holders.clear()
        self._folder.cleanup()

    def pids(self) -> list:
        """Of each host's process 1."""
        return [holder.pid for holder in self._holders[1:]]

    def start(self, host, words, **options) -> subprocess.Popen:
        """Starts a program on that host; it ends with the host at the latest."""
        pid = str(self.pids()[host])
        return subprocess.Popen(["nsenter", "-t", pid, "-n", "-m", "-u", "-p", *words], **options)

    def left_behind(self) -> list:
        """What programs left running on the hosts, or in their /dev/shm."""
        left = []
        for pid, name in zip(self.pids(), self.names, strict=True):
            root = pathlib.Path(f"/proc/{pid}/root")
            left += [f"{name}: {path}" for path in (root / "dev/shm").iterdir()]
            for process in (root / "proc").glob("[0-9]*"):
                try:
                    command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                except (FileNotFoundError, ProcessLookupError):
                    continue  # it has ended meanwhile
                # One that has ended has no command any more. The host is process 1 and its `cat`.
                if command not in ("", "cat ") and process.name != "1":
                    left.append(f"{name}: process {process.name}, {command}")
        return left

    def sent(self) -> list:
        """The bytes that each host has sent so far, with headers of packets."""
        counts = []
        for holder in self._holders[1:]:
            lines = pathlib.Path(f"/proc/{holder.pid}/net/dev").read_text().splitlines()
            fields = next(line for line in lines if line.strip().startswith("eth0:")).split()
            counts.append(int(fields[9]))
        return counts

    def mpirun(self, ranks, program, *, timeout, env=None, mpirun=None, options=()) -> str:
        """Runs a program, ranks[i] times on host i, to its end, and returns its output.

        Raises HostsError if it fails, or does not end within `timeout` seconds.
        """
        mpirun = str(mpirun or BIN / "mpirun")
        command = ["nsenter", "-t", str(self._switch.pid), "-n", mpirun, "-np", str(sum(ranks))]
        command += ["-H", self._places(ranks), *self._agent(), *OVER_TCP, "eth0"]
        command += ["--bind-to", "none", *options, *map(str, program)]
        return self._launch(command, mpirun, program, timeout, env)

    def cut(self, host) -> None:
        """Cuts that host's cable, at the switch."""
        self._ip(self._switch, "link", "set", f"port{host + 1}", "down")

    def mend(self, host) -> None:
        """Joins the ends of that cable again."""
        self._ip(self._switch, "link", "set", f"port{host + 1}", "up")

    def lose(self, host) -> None:
        """Ends all processes of that host at once, as when a machine loses its power."""
        os.kill(self.pids()[host], signal.SIGKILL)

    def replace(self, host) -> None:
        """Another host of that name and address, in place of one that was lost."""
        self._holders[host + 1].end()
        port, deadline = f"port{host + 1}", time.monotonic() + 20
        while f" {port}@" in self._ip(self._switch, "link") and time.monotonic() < deadline:
            time.sleep(0.05)  # the kernel removes it some time after the last process
        self._make_host(host)

    def smddprun(self, ranks, program, *, timeout, env=None, options=()) -> str:
        """As mpirun(), on the first host and by smddprun, which chooses mpirun's options.

        With ranks=None, `options` say where ranks run.
        """
        places = [] if ranks is None else ["-H", self._places(ranks)]
        command = self.smddprun_command([*options, *places], program)
        return self._launch(command, BIN / "mpirun", program, timeout, env)

    def smddprun_command(self, options, program) -> list:
        """The words that start smddprun on the first host."""
        command = ["nsenter", "-t", self.pids()[0], "-n", "-u", sys.executable, "-m"]
        command += ["smddp_tf.launch", "--mpirun", BIN / "mpirun", *options]
        command += ["--nic", "eth0", "--mpi-args=" + shlex.join(self._agent()), *program]
        return [str(word) for word in command]

    def smddprun_with_hydra(self, ranks, program, *, timeout, mpirun) -> str:
        """As smddprun(), with an mpirun of Intel MPI."""
        agent = self._agent()[-1]
        command = ["nsenter", "-t", self.pids()[0], "-n", "-u", sys.executable, "-m"]
        command += ["smddp_tf.launch", "--mpirun", mpirun, "-H", self._places(ranks)]
        command += ["--nic", "eth0", f"--mpi-args=-launcher ssh -launcher-exec {agent}", *program]
        lib = os.fspath(mpirun.parent.parent / "lib")
        env = {"LD_LIBRARY_PATH": lib, "FI_PROVIDER_PATH": lib}  # as its vars.sh sets them
        return self._launch([str(word) for word in command], mpirun, program, timeout, env)

    def script(self, ranks, script, *, timeout, env=None) -> str:
        """On the first host, as its user: `python script HOSTS WORDS`, as -H and --mpi-args."""
        command = ["nsenter", "-t", str(self.pids()[0]), "-n", "-u", sys.executable, str(script)]
        command += [self._places(ranks), shlex.join(self._agent())]
        return self._launch(command, BIN / "mpirun", [script], timeout, env)

    def _places(self, ranks) -> str:
        return ",".join(f"{a}:{n}" for a, n in zip(self.addresses, ranks, strict=True) if n)

    def _agent(self) -> list:
        return ["--mca", "plm_rsh_agent", os.path.join(self._folder.name, "agent")]

    def _launch(self, command, mpirun, program, timeout, env) -> str:
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_"))}
        keep["PATH"] = f"{pathlib.Path(mpirun).parent}{os.pathsep}{keep.get('PATH', '')}"
        keep.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**keep, "TMPDIR": self._folder.name, **(env or {})},
            start_new_session=True,
        )
        output, late = self._wait(process, timeout)
        if late or process.returncode != 0:
            reason = f"did not end within {timeout} s" if late else f"exit {process.returncode}"
            raise HostsError(f"{' '.join(map(str, program))}: {reason}\n{output[-8000:]}")
        return output

    def _wait(self, process, timeout) -> tuple:
        try:
            return process.communicate(timeout=timeout)[0], False
        except subprocess.TimeoutExpired:
            for number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, number)
                    return process.communicate(timeout=10)[0], True
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    time.sleep(0)
            return "", True


@functools.cache
def why_not() -> str:
    """Why this process cannot make hosts; "" if it can. Tries it, with a limited link."""
    try:
        with Hosts(1, rate="1gbit"):
            return ""
    except (HostsError, OSError, subprocess.TimeoutExpired) as problem:
        return f"no hosts of namespaces: {problem}"
