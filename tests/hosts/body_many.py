"""Every collective, on many more ranks than the machine has cores; each rank checks its results."""

import core as c
import numpy as np

job = c.Core()
rank, size = job.rank, job.size
for count in (1, 7, 1000, 100_003):
    row = np.arange(count, dtype=np.int64) % 1000
    for _ in range(3):
        total = job.allreduce(row * (rank + 1), np.empty_like(row))
        assert (total == row * (size * (size + 1) // 2)).all(), count
for count in (1, 1001):
    ranks = np.arange(size, dtype=np.int32)[:, None]
    assert (job.allgather(np.full(count, rank, np.int32)) == ranks).all(), count
    # Rank s sends 1000 s + r to rank r.
    got = job.alltoall(ranks.repeat(count, 1) + 1000 * rank)
    assert (got == 1000 * ranks + rank).all(), count
    rows = np.arange(2 * (size * count + 3), dtype=np.float32).reshape(-1, 2) % 97
    want = np.array_split(rows * (size * (size + 1) // 2), size)[rank]
    assert (job.reducescatter(rows * (rank + 1)) == want).all(), count
    for root in (0, size - 1):
        value = job.run(c.BROADCAST, np.full(count, rank, np.int32), root=root)
        assert (value == root).all(), count
job.barrier()
print(f"rank {rank} of {size} on {job.nodes} nodes is right", flush=True)
job.shutdown()
