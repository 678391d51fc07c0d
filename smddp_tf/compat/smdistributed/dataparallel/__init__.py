"""smdistributed.dataparallel: the profiler."""

import smddp_tf


def start_profiler(path, append_rank=False):
    """Starts the timeline; each rank writes a file of its own, whatever append_rank is."""
    del append_rank
    smddp_tf.start_timeline(path)


def stop_profiler():
    """Stops the timeline."""
    smddp_tf.stop_timeline()
