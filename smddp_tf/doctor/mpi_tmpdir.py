"""Whether hosts share the folder in which Open MPI 5 names what it keeps by process ids alone.

Its daemon of each host has a folder prted.PID (mpirun: ompi.PID) under TMPDIR or /tmp. Where two
containers, or hosts, have that on one file system, a daemon may find another's folder under its own
process id: jobs then fail at their start, once in a while.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence

from smddp_tf.doctor.findings import WARNING, Finding

_NETWORK = re.compile(
    r"nfs\d?|cifs|smb3|9p|virtiofs|lustre|gpfs|beegfs|ceph|afs|glusterfs|orangefs|fuse\..*"
)
_REMEDY = (
    "give each host or container a /tmp of its own; or set TMPDIR, on each host, to a folder that "
    "only it has; or name such a folder to all: mpirun --prtemca prte_tmpdir_base FOLDER"
)


def folder(environment: Mapping[str, str]) -> str:
    """Where this rank's daemon has its folder; "" if that is not named by its process id alone."""
    own = pathlib.PurePath(environment.get("PMIX_SERVER_TMPDIR", ""))
    return str(own.parent) if re.fullmatch(r"(ompi|prte\w*)\.\d+", own.name) else ""


def file_system(path: str, mounts: str) -> str:
    """The type of the file system that has a path, by the text of /proc/self/mounts."""
    found = ("", "")
    for line in mounts.splitlines():
        _, at, kind, *_ = line.split()
        at = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), at)
        if pathlib.PurePath(path).is_relative_to(at) and len(at) >= len(found[0]):
            found = (at, kind)
    return found[1]


@contextlib.contextmanager
def _marker(path: str) -> Iterator[str]:
    """The name of a new file there; "" if there can be none."""
    name = f"smddp_doctor.{secrets.token_hex(8)}"
    try:
        pathlib.Path(path, name).touch(exist_ok=False)
    except OSError:
        yield ""
        return
    try:
        yield name
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(path, name))


def seen(path: str, gather: Callable) -> list:
    """The ranks whose files in their folders this rank finds in its own. Collective.

    Args:
      path: folder() of this rank.
      gather: returns every rank's value, by rank.
    """
    with _marker(path) if path else contextlib.nullcontext("") as name:
        names = gather(name)
        here = {one for one in names if path and one and os.path.exists(f"{path}/{one}")}
        found = [rank for rank, one in enumerate(names) if one in here]
        gather(found)  # until all have looked
    return found


def check(ranks: Sequence[Mapping]) -> list:
    """Findings of ranks, by their facts with "session_seen" of seen(). Pure."""
    for one in ranks:
        for rank in one["session_seen"]:
            other = ranks[rank]
            if any(one[key] != other[key] for key in ("boot", "process_namespace")):
                what = (
                    f"{one['host']} and {other['host']} share {one['session_folder']}, where Open "
                    "MPI 5 tells its daemons apart by process ids only"
                )
                return [Finding(WARNING, what, _REMEDY)]
    for one in ranks:
        where, kind = one["session_folder"], one["session_file_system"]
        if where and _NETWORK.fullmatch(kind):
            what = (
                f"{where} is on {kind}, which other hosts may have too, and Open MPI 5 tells its "
                "daemons there apart by process ids only"
            )
            return [Finding(WARNING, what, _REMEDY)]
    return []
