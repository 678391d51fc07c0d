"""Every kind of collective on tensors of this rank's GPU, against numpy.

    mpirun -np 2 python tests/gpu/correct.py

Elements are small integers, so all sums are exact in every dtype, in whatever order they are made.
Ends with an error at the first wrong result. The last line is JSON: what was run, and where. With
--kill the last rank kills itself while the others reduce, and they say how long they waited.
"""

import argparse
import json
import os
import signal
import time

import cuda_driver as cuda
import ml_dtypes
import numpy as np
from gpu_collectives import DTYPES, Collective, Kind, own_rows

SUM, AVERAGE, MIN, MAX, PRODUCT = 1, 0, 3, 4, 5  # smddp_op
# Around a warp's tile of 4 KiB, a word of 16 bytes and a line of the cache; and one of megabytes.
COUNTS = [1, 3, 31, 127, 1023, 4097, 100_003]
LARGE = 5_000_011


def dtype_of(name: str):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def values(rank: int, count: int, dtype) -> np.ndarray:
    """Element i of a rank's tensor; in float64 they say what to expect."""
    numbers = (np.arange(count) + rank) % 3 + 1
    return (numbers % 2 if dtype.name == "bool" else numbers).astype(dtype)


class Checks:
    """The collectives of one rank."""

    def __init__(self, gpu, rank: int, size: int):
        self.gpu, self.rank, self.size, self.run = gpu, rank, size, 0

    def _tensor(self, count, dtype, shift=0):
        return self.gpu.array(values(self.rank, count, dtype), shift * dtype.itemsize)

    def _all(self, count, dtype, wide=True):
        every = [values(r, count, dtype) for r in range(self.size)]
        return np.stack([one.astype(np.float64) if wide else one for one in every])

    def _collective(self, kind, pairs, name, **fields) -> list:
        Collective(self.gpu, kind, pairs, name, **fields).run()
        self.run += 1
        return [target.read() for _, target in pairs]

    def _expect(self, found, wanted, what) -> None:
        wrong = np.flatnonzero(found != np.asarray(wanted).astype(found.dtype))
        if len(wrong):
            i = wrong[0]
            raise AssertionError(
                f"rank {self.rank}, {what}: {len(wrong)} of {found.size} elements are wrong, "
                f"the first one at {i}: {found[i]} instead of {np.asarray(wanted)[i]}"
            )

    def allreduce(self, dtype, counts, op, prescale=1.0, postscale=1.0, in_place=False) -> None:
        """Of tensors at several alignments."""
        pairs = []
        for i, count in enumerate(counts):
            source = self._tensor(count, dtype, shift=i % 5)
            target = source if in_place else self._tensor(count, dtype, shift=(i + 1) % 3)
            pairs.append((source, target))
        what = f"allreduce of {dtype.name} {counts}, op {op}, scaled by {prescale} and {postscale}"
        scale = {"prescale": prescale, "postscale": postscale}
        results = self._collective(Kind.ALLREDUCE, pairs, "allreduce", op=op, **scale)
        for count, result in zip(counts, results, strict=True):
            every = self._all(count, dtype) * prescale
            reduced = {SUM: every.sum, AVERAGE: every.mean, MIN: every.min, MAX: every.max}
            wanted = reduced.get(op, every.prod)(axis=0) * postscale
            integers = op == AVERAGE and np.issubdtype(dtype, np.integer)
            self._expect(result, np.trunc(wanted) if integers else wanted, what)
        self._free(pairs)

    def broadcast(self, dtype, counts) -> None:
        root = self.size - 1
        pairs = [(one, one) for one in (self._tensor(count, dtype, 1) for count in counts)]
        results = self._collective(Kind.BROADCAST, pairs, "broadcast", root=root)
        for count, result in zip(counts, results, strict=True):
            self._expect(result, values(root, count, dtype), f"broadcast of {dtype.name} {count}")
        self._free(pairs)

    def allgather(self, dtype, count) -> None:
        """Of tensors of different lengths; the second rank's is empty."""
        lengths = [0 if r == 1 else count + 3 * r for r in range(self.size)]
        target = self.gpu.array(np.zeros(sum(lengths), dtype))
        pairs = [(self._tensor(lengths[self.rank], dtype), target)]
        parts = [length * dtype.itemsize for length in lengths]
        (result,) = self._collective(Kind.ALLGATHER, pairs, "allgather", part_bytes=parts)
        wanted = np.concatenate([values(r, n, dtype) for r, n in enumerate(lengths)])
        self._expect(result, wanted, f"allgather of {dtype.name} {lengths}")
        self._free(pairs)

    def alltoall(self, dtype, count) -> None:
        """Of parts of different lengths, some of which are empty."""
        ranks = range(self.size)
        sent = [[0 if (r + p) % 3 == 0 else count + r + 2 * p for p in ranks] for r in ranks]
        received = [sent[r][self.rank] for r in ranks]
        source = self._tensor(sum(sent[self.rank]), dtype)
        target = self.gpu.array(np.zeros(sum(received), dtype))
        parts = [n * dtype.itemsize for row in sent for n in row]
        pairs = [(source, target)]
        (result,) = self._collective(Kind.ALLTOALL, pairs, "alltoall", part_bytes=parts)
        wanted = []
        for r in ranks:
            begin = sum(sent[r][: self.rank])
            wanted.append(values(r, sum(sent[r]), dtype)[begin : begin + received[r]])
        self._expect(result, np.concatenate(wanted), f"alltoall of {dtype.name} {count}")
        self._free(pairs)

    def reducescatter(self, dtype, rows, width) -> None:
        """Of tensors of so many rows each."""
        own = [own_rows(n, self.rank) for n in rows]
        pairs = []
        for n, part in zip(rows, own, strict=True):
            target = self.gpu.array(np.zeros((part.stop - part.start) * width, dtype))
            pairs.append((self._tensor(n * width, dtype), target))
        dims = [(n, width) for n in rows]
        results = self._collective(Kind.REDUCESCATTER, pairs, "reducescatter", dims=dims)
        for n, part, result in zip(rows, own, results, strict=True):
            wanted = self._all(n * width, dtype).sum(axis=0).reshape(n, width)[part].ravel()
            self._expect(result, wanted, f"reducescatter of {dtype.name} {rows} x {width}")
        self._free(pairs)

    @staticmethod
    def _free(pairs) -> None:
        for one in {id(one): one for pair in pairs for one in pair}.values():
            one.free()


def run(checks: Checks, large: int) -> None:
    for name in DTYPES:
        dtype = dtype_of(name)
        small = dtype.itemsize == 1
        checks.broadcast(dtype, COUNTS)
        checks.allgather(dtype, 1001)
        checks.alltoall(dtype, 333)
        if name in ("bool", "int16", "uint16"):  # which are not reduced
            continue
        for op in (SUM, AVERAGE, MIN, MAX, PRODUCT):
            if op == AVERAGE and checks.size & (checks.size - 1) and not small:
                continue  # a division by three rounds
            for count in COUNTS:
                checks.allreduce(dtype, [count], op, in_place=count % 2 == 1)
            checks.allreduce(dtype, COUNTS, op)
        checks.allreduce(dtype, [large, 77], SUM)
        checks.reducescatter(dtype, [checks.size * 40], 5)
        checks.reducescatter(dtype, [7, 1, 501], 3)
        if not np.issubdtype(dtype, np.integer):
            checks.allreduce(dtype, COUNTS, SUM, 0.5, 4.0)
            checks.allreduce(dtype, [1001], SUM, 0.5, 4.0)


def outlive(checks: Checks, large: int) -> None:
    """Sums until a rank dies, which is an error on the others in seconds."""
    from smddp_tf.errors import JobError

    dtype, last = np.dtype("float32"), checks.rank == checks.size - 1
    try:
        for step in range(1000):
            if last and step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            start = time.monotonic()
            checks.allreduce(dtype, [large, 77], SUM)
    except JobError as error:
        seconds = time.monotonic() - start
        print(json.dumps({"waited_seconds": round(seconds, 2), "error": str(error)}), flush=True)
        raise
    raise AssertionError("nobody said that a rank has died")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", type=int, default=LARGE, help="elements of the largest tensor")
    parser.add_argument("--out", help="a folder: each rank leaves there what it prints")
    parser.add_argument("--kill", action="store_true", help="the last rank dies")
    args = parser.parse_args()
    cuda.driver()  # before the library opens its own
    from smddp_tf._src.job import basics, job, native

    cuda.choose_host()
    job.init()
    gpu = cuda.Gpu(basics.local_rank() % cuda.count())
    checks = Checks(gpu, basics.rank(), basics.size())
    if args.kill:
        outlive(checks, args.large)
    run(checks, args.large)
    stats = basics.stats()
    report = {name: stats[name] for name in stats if name.startswith("nccl")}
    report |= {"collectives": checks.run, "kernels": native.kernels(), "sm": gpu.capability()}
    if args.out:
        with open(os.path.join(args.out, f"rank{basics.rank()}.json"), "w") as file:
            json.dump(report, file)
    print(json.dumps(report), flush=True)
    job.shutdown()
    gpu.close()


if __name__ == "__main__":
    main()
