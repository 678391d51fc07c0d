"""What a rank does on slow links: collectives that each take longer than SMDDP_TIMEOUT_SECONDS."""

import json
import sys
import time

import core as c
import numpy as np

COUNT = 2 << 20  # floats


def main():
    core = c.Core()
    everybody = range(core.size)
    seconds = {}

    def timed(name, call, want):
        core.barrier()
        begin = time.monotonic()
        got = call()
        seconds[name] = time.monotonic() - begin
        if not np.array_equal(got, want):
            raise AssertionError(f"{name} is wrong")

    def filled(rank):
        return np.full(COUNT, rank + 1, np.float32)

    total = sum(r + 1 for r in everybody)
    whole = np.stack([filled(r) for r in everybody])
    rows = np.ones((core.size * 64, COUNT // core.size // 64), np.float32)
    timed("allreduce", lambda: core.allreduce(filled(core.rank)), np.full(COUNT, total, np.float32))
    timed("allgather", lambda: core.allgather(filled(core.rank)), whole)
    root = core.size - 1
    timed("broadcast", lambda: core.run(c.BROADCAST, filled(core.rank), root=root), filled(root))
    timed("reducescatter", lambda: core.reducescatter(rows), rows[:64] * core.size)
    print(json.dumps(seconds), flush=True)
    core.shutdown()


if __name__ == "__main__":
    sys.exit(main())
