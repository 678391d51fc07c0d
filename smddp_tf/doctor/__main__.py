"""``python -m smddp_tf.doctor``: whether a job can run here, and how its ranks reach each other.

Alone it looks at what is installed and starts a small job. Under mpirun it examines that job. The
exit code is 0 if a job can run, 1 if it would fail.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from smddp_tf._src.job import basics
from smddp_tf.doctor import machine, ports, ranks, software, text
from smddp_tf.doctor.findings import ERROR, WARNING, Finding, failing, merged
from smddp_tf.errors import JobError, LibraryError
from smddp_tf.launch import command, hosts
from smddp_tf.launch.machine import this_machine

_CUT = 1500  # characters of a failed job's output to show
_GRACE_SECONDS = 5  # for a launcher to end its ranks
_INTERRUPTED = 128 + signal.SIGINT


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m smddp_tf.doctor", description=__doc__)
    add = parser.add_argument
    add("--json", action="store_true", help="print one JSON object")
    add("--quick", action="store_true", help="no import of the framework, shorter measurements")
    add("--np", type=int, default=2, metavar="N", help="ranks of the small job; 0: none")
    add("--timeout", type=int, default=120, metavar="SECONDS", help="limit for connecting ranks")
    options = parser.parse_args()
    if options.np < 0 or options.timeout < 1:
        parser.error("--np takes a number >= 0, and --timeout one >= 1")
    return options


def _software(quick: bool) -> tuple:
    """(versions, findings) of what is installed for this Python."""
    versions = software.versions()
    findings = software.check_versions(versions)
    if not quick and not failing(findings):
        findings += software.try_framework(software.framework(versions))
    return versions, findings


def _end(launcher: subprocess.Popen) -> None:
    """Ends a launcher that runs; if it were killed at once, it could not end its ranks."""
    launcher.terminate()
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            launcher.wait(_GRACE_SECONDS)
    finally:
        launcher.kill()


def _run(line: Sequence[str], environment: Mapping[str, str], limit: float) -> tuple:
    """(exit code, stdout, stderr) of a launcher's command, whose ranks end with it.

    Raises:
      subprocess.TimeoutExpired: it did not end within `limit` seconds.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(line, env=dict(environment), stdout=pipe, stderr=pipe) as launcher:
        try:
            out, err = launcher.communicate(timeout=limit)
        finally:
            _end(launcher)
    return launcher.returncode, out.decode(errors="replace"), err.decode(errors="replace")


def _small_job(options, launcher, environment: Mapping[str, str]) -> tuple:
    """(report, findings) of the doctor under mpirun, on this machine."""
    words = [sys.executable, "-m", "smddp_tf.doctor", "--json", "--quick"]
    words += ["--timeout", str(options.timeout)]
    job = command.Job(ranks=options.np, program=words)
    line = command.mpirun(job, launcher, this_machine(environment))
    failed = f"a job of {options.np} ranks failed"
    remedy = f"run it yourself: {' '.join(line)}"
    limit = options.timeout + 60
    try:
        code, out, err = _run(line, environment, limit)
    except subprocess.TimeoutExpired as late:
        said = ((late.stderr or b"") + (late.output or b"")).decode(errors="replace").strip()[:_CUT]
        what = f"{failed}: it did not end within {limit} s" + (f":\n{said}" if said else "")
        return None, [Finding(ERROR, what, remedy)]
    for said in out.splitlines():
        if said.startswith('{"ok":'):
            report = json.loads(said)
            found = [Finding(**one) for one in report["findings"]]
            if report["job"] is None:  # its ranks were not connected
                found = [_of_job(one, failed, remedy) for one in found]
            return report["job"], found
    output = (err + out).strip()[:_CUT] or "no output"
    return None, [Finding(ERROR, f"{failed} with exit code {code}:\n{output}", remedy)]


def _of_job(finding: Finding, failed: str, remedy: str) -> Finding:
    """An error of the small job, as one of this machine."""
    if finding.level != ERROR:
        return finding
    return replace(finding, what=f"{failed}: {finding.what}", remedy=f"{finding.remedy}; {remedy}")


def _alone(options, environment: Mapping[str, str]) -> dict:
    """The report of a process that no launcher started."""
    versions, findings = _software(options.quick)
    launcher, problems = software.find_mpi(environment.get("PATH"))
    findings += problems + machine.check_temporary(environment)
    job = None
    if launcher is not None and options.np:
        job, found = _small_job(options, launcher, environment)
        findings += found
    else:
        findings += machine.check(machine.facts(environment), 1)
    return {"versions": versions, "mpi": str(launcher or ""), "job": job, "findings": findings}


def _rank(environment: Mapping[str, str]) -> int:
    """This process's rank, before init(); -1 if it is not known."""
    for name in hosts.OF_RANKS:
        if environment.get(name, "").isdigit():
            return int(environment[name])
    return -1


def _leave(options, rank: int, versions: dict, findings: list) -> NoReturn:
    """Prints this rank's findings and ends at once; a thread may be inside MPI for ever."""
    if options.json and rank == 0:
        _show(options, {"versions": versions, "mpi": "", "job": None, "findings": findings})
    else:
        for finding in merged([(0, findings)]):
            print("\n".join(text.finding_lines(finding)), file=sys.stderr)
    sys.stderr.flush()
    if options.json and rank > 0:
        time.sleep(1)  # the launcher ends rank 0, which has the report, when another one ends
    os._exit(1)


def _as_rank(options, environment: Mapping[str, str]) -> dict:
    """The report of a job, the same on all ranks. Ends the process if there is no job."""
    own = machine.facts(environment)
    # One rank of a node imports the framework, before any waits for it.
    first = environment.get("OMPI_COMM_WORLD_LOCAL_RANK") or environment.get("MPI_LOCALRANKID")
    versions, findings = _software(options.quick or first not in (None, "0"))
    rank = _rank(environment)
    blocked = ports.examine(environment, rank)
    problems = ranks.connect(options.timeout)
    if not problems:  # MPI has got through by another network, or in the other direction
        blocked = [replace(one, level=WARNING) if one.level == ERROR else one for one in blocked]
    findings += blocked
    if problems:
        _leave(options, rank, versions, [*findings, *problems])
    try:
        job = ranks.examine(own, findings, options.quick)
    except (JobError, ArithmeticError) as error:
        remedy = "docs/troubleshooting.md has the message; SMDDP_LOG_LEVEL=debug says more"
        failed = Finding(ERROR, f"a collective failed: {error}", remedy)
        _leave(options, rank, versions, [*findings, failed])
    found = [Finding(**one) for one in job.pop("findings")] + _alone_by_request(job, environment)
    return {"versions": versions, "mpi": basics.stats()["mpi"], "job": job, "findings": found}


def _alone_by_request(job: dict, environment: Mapping[str, str]) -> list:
    """A finding if the launcher's ranks are no job, because the environment says so."""
    launched = max(int(environment.get(name) or 1) for name in hosts.SIZES)
    if not environment.get("SMDDP_SINGLE_PROCESS") or launched == 1 or job["size"] > 1:
        return []
    what = f"each of the {launched} processes is a job of its own: SMDDP_SINGLE_PROCESS is set"
    return [Finding(ERROR, what, "unset SMDDP_SINGLE_PROCESS, perhaps in a shell's profile")]


def _show(options, report: dict) -> bool:
    """Prints a report, and returns whether a job would fail."""
    findings = merged([(0, report["findings"])])
    fails = failing(findings)
    report = {"ok": not fails, **report, "findings": [vars(finding) for finding in findings]}
    print(json.dumps(report) if options.json else "\n".join(text.lines(report)), flush=True)
    return fails


def main() -> int:
    """Runs the command line; returns the exit code."""
    options = _arguments()
    environment = os.environ
    launched = hosts.is_rank(environment)
    if launched and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        # Python would see it only after the call, in which a rank may wait for others.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        report = (_as_rank if launched else _alone)(options, environment)
    except LibraryError as error:
        found = [Finding(ERROR, str(error))]
        report = {"versions": software.versions(), "mpi": "", "job": None, "findings": found}
    except KeyboardInterrupt:
        return _INTERRUPTED
    if launched and _rank(environment) > 0:
        return int(failing(report["findings"]))
    return int(_show(options, report))


if __name__ == "__main__":
    sys.exit(main())
