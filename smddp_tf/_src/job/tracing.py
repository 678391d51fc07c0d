"""Starts and stops the timeline; smddp_tf.timeline analyzes the files."""

from __future__ import annotations

import os

from smddp_tf._src.job import basics, native
from smddp_tf._src.job.enums import Code


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Starts writing a Chrome trace of this rank's collectives; Perfetto can open it.

    ``python -m smddp_tf.timeline`` merges the ranks' files and shows who waited for whom.

    Args:
      file_path: path of the trace; the launcher's rank is inserted: trace.json becomes
        trace.rank3.json.
      mark_cycles: ignored, accepted for compatibility; there are no cycles.

    Raises:
      ValueError: init() was not called, a trace is already being written, or the file cannot be
        written.

    Examples:
      >>> hvd.start_timeline("trace.json")  # this rank writes trace.rank0.json
      >>> _ = hvd.allreduce(1.0)
      >>> hvd.stop_timeline()
    """
    del mark_cycles
    basics.size()
    if native.core().smddp_timeline_start(os.fsencode(file_path)) != Code.OK:
        raise ValueError(native.last_error())


def stop_timeline() -> None:
    """Stops the trace started by start_timeline() or SMDDP_TIMELINE; no effect without one.

    Examples:
      >>> hvd.stop_timeline()  # no trace is being written
    """
    basics.size()
    native.core().smddp_timeline_stop()
