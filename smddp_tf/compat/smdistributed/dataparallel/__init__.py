"""smdistributed.dataparallel: the profiler."""

import smddp_tf


def start_profiler(path, append_rank=False):
    """Starts the timeline. append_rank is ignored: each rank always writes its own file."""
    del append_rank
    smddp_tf.start_timeline(path)


def stop_profiler():
    """Stops the timeline."""
    smddp_tf.stop_timeline()
