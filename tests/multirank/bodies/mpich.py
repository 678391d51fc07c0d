"""What ranks do in test_mpich.py and test_intel_mpi.py."""

import numpy as np
import tensorflow as tf
from harness import rank, report, size

import smddp_tf as hvd


def collectives():
    total = size * (size + 1) / 2
    for n in (0, 1, 1000, 1000003):
        x = hvd.allreduce(tf.ones([n]) * (rank + 1), op=hvd.Sum)
        assert np.array_equal(x, np.full([n], total)), x
    assert np.array_equal(hvd.broadcast(tf.fill([3], rank), 1), [1, 1, 1])
    made_by = hvd.stats()["mpi"]
    assert "MPICH" in made_by or "Intel(R) MPI" in made_by, made_by
    if size > 2:
        ends = hvd.add_process_set([0, size - 1])
        if ends.included():
            assert float(hvd.allreduce(rank + 1.0, op=hvd.Sum, process_set=ends)) == size + 1
        assert hvd.remove_process_set(ends)
    report(size=size)
