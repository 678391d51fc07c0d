"""Starts and stops the timeline; smddp_tf.timeline reads what it wrote."""

from __future__ import annotations

import os

from smddp_tf._job import basics, native


def start_timeline(file_path: str | os.PathLike, mark_cycles: bool = False) -> None:
    """Starts to write a Chrome trace of this rank's collectives, which Perfetto opens.

    ``python -m smddp_tf.timeline`` joins the files of all ranks and says who waited for whom.

    Args:
      file_path: trace.json becomes trace.rank3.json on rank 3.
      mark_cycles: accepted for old scripts; there are no cycles.

    Raises:
      ValueError: before init(), one is being written already, or the file cannot be written.
    """
    del mark_cycles
    basics.size()
    if native.core().smddp_timeline_start(os.fsencode(file_path)) != 0:
        raise ValueError(native.last_error())


def stop_timeline() -> None:
    """Ends the trace that start_timeline() or SMDDP_TIMELINE began; harmless if there is none."""
    basics.size()
    native.core().smddp_timeline_stop()
