"""What packing and a bucket cost on this rank's GPU.

    python tests/gpu/speed.py                  # packing, against a copy of the same bytes
    mpirun -np 2 python tests/gpu/speed.py     # a bucket too, against NCCL alone

The kernels are those of build/pack.image, or of the image that --image names. Figures are medians;
bandwidths count bytes that are read and bytes that are written.
"""

import argparse
import ctypes
import json
import math
import os
import pathlib
import statistics
import struct
import sys
import threading
import time

import cuda_driver as cuda
import numpy as np
from gpu_collectives import DONE, Collective, Kind
from nccl_alone import Nccl

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import sets  # noqa: E402

# ops/kernels/cuda/pack.h
ALIGN, TILE, LANES, THREADS = 128, 4096, 32, 256
WIRE_BYTES = 64 << 20
KERNELS = {"bytes": (4, 1, 1), "bfloat16": (2, 2, 4)}  # bytes: of an element, in and on the wire


class PackArgs(ctypes.Structure):
    """PackArgs of ops/kernels/cuda/pack.h."""

    _fields_ = (
        ("entries", ctypes.c_void_p),
        ("num_entries", ctypes.c_uint64),
        ("wire", ctypes.c_void_p),
        ("begin", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("factor", ctypes.c_double),
    )


def code_for(image: bytes, capability: int) -> bytes:
    """Of a bundle (ops/kernels/cuda/bundle.h) the best code; any other image is one itself."""
    if image[:8] != b"SMDDPGPU":
        return image
    (count,) = struct.unpack_from("<Q", image, 8)
    entries = [struct.unpack_from("<IIQQ", image, 16 + 24 * i) for i in range(count)]
    fitting = [
        (is_ptx, -of, begin, size)
        for of, is_ptx, begin, size in entries
        if of <= capability and (is_ptx or of // 10 == capability // 10)
    ]
    _, _, begin, size = min(fitting)
    return image[begin : begin + size]


class Packing:
    """A list of tensors, the wire, and the kernels between them."""

    def __init__(self, gpu, module, kernel: str, counts):
        self._gpu, (element, unit, wire_unit) = gpu, KERNELS[kernel]
        self._functions = [module.function(f"smddp_{way}_{kernel}") for way in ("pack", "unpack")]
        self.tensors = [gpu.array(np.zeros(count * element, np.uint8)) for count in counts]
        rows, end = [], 0
        for tensor in self.tensors:
            count = tensor.nbytes // unit
            rows.append((tensor.address, tensor.address, end, count))
            end += math.ceil(count * wire_unit / ALIGN) * ALIGN // wire_unit
        self._table = gpu.array(np.array(rows, np.uint64))
        self._wire = gpu.array(np.zeros(min(WIRE_BYTES, end * wire_unit), np.uint8))
        at_once = WIRE_BYTES // wire_unit
        self._pieces = [(at, min(at + at_once, end)) for at in range(0, end, at_once)]
        self._rows, self._wire_unit = len(rows), wire_unit
        self.moved = sum(tensor.nbytes for tensor in self.tensors) + end * wire_unit

    def enqueue(self, unpack: bool) -> None:
        """All of it, piece by piece, as a reduction does."""
        for begin, end in self._pieces:
            args = PackArgs(self._table.address, self._rows, self._wire.address, begin, end, 1.0)
            tiles = math.ceil((end - begin) * self._wire_unit / TILE)
            blocks = math.ceil(tiles / (THREADS // LANES))
            cuda.launch(self._gpu, self._functions[unpack], blocks, THREADS, args)

    def free(self) -> None:
        for array in (*self.tensors, self._table, self._wire):
            array.free()


def _median(gpu, enqueue, repeats) -> float:
    enqueue()
    return statistics.median(gpu.milliseconds(enqueue) for _ in range(repeats))


def copy_bandwidth(gpu, size: int, repeats: int) -> float:
    """GB/s of a copy within the GPU."""
    source, target = (gpu.array(np.zeros(size, np.uint8)) for _ in range(2))

    def enqueue():
        to, source_at = ctypes.c_void_p(target.address), ctypes.c_void_p(source.address)
        cuda.call("cuMemcpyDtoDAsync_v2", to, source_at, ctypes.c_size_t(size), gpu.stream)

    milliseconds = _median(gpu, enqueue, repeats)
    source.free()
    target.free()
    return 2 * size / milliseconds / 1e6


def packing(gpu, image: bytes, names, repeats: int, largest: int) -> list:
    """Bandwidths of both kernels for each list."""
    module = cuda.Module(code_for(image, gpu.capability()))
    rows = []
    for name in names:
        counts = [min(math.prod(shape), largest) for shape in sets.SETS[name]()]
        copy = copy_bandwidth(gpu, 4 * sum(counts), repeats)
        for kernel in KERNELS:
            one = Packing(gpu, module, kernel, counts)
            row = {"list": name, "kernel": kernel, "copy_gbs": round(copy, 1)}
            for way, unpack in (("pack", False), ("unpack", True)):
                milliseconds = _median(gpu, lambda way=unpack, one=one: one.enqueue(way), repeats)
                gbs = one.moved / milliseconds / 1e6
                row |= {f"{way}_gbs": round(gbs, 1), f"{way}_of_copy": round(gbs / copy, 3)}
            one.free()
            rows.append(row)
    return rows


class Buckets:
    """Sums of a bucket of tensors of one length, `repeats` of them one after the other."""

    def __init__(self, gpu, tensors: int, count: int, repeats: int):
        self.elements = tensors * count
        arrays = [gpu.array(np.zeros(count, np.float32)) for _ in range(tensors)]
        self._arrays = arrays
        pairs = [(one, one) for one in arrays]
        names = [f"bucket {i} of {tensors} x {count}" for i in range(repeats)]
        self._all = [Collective(gpu, Kind.ALLREDUCE, pairs, name) for name in names]
        self._left, self._over, self._failure = 0, threading.Event(), None
        self._done = DONE(self._ended)

    def _ended(self, _, code, message) -> None:
        self._failure = self._failure or (code and message)
        self._left -= 1
        if self._left == 0:
            self._over.set()

    def run(self) -> tuple:
        """Microseconds of the host to post one, and of each until all have ended."""
        self._left = len(self._all)
        self._over.clear()
        posting, start = [], time.perf_counter()
        for one in self._all:
            before = time.perf_counter()
            one.post(self._done)
            posting.append(time.perf_counter() - before)
        if not self._over.wait(60) or self._failure:
            raise RuntimeError(f"the buckets have not ended: {self._failure}")
        each = (time.perf_counter() - start) / len(self._all)
        return statistics.median(posting) * 1e6, each * 1e6

    def free(self) -> None:
        for one in self._arrays:
            one.free()


def buckets(gpu, nccl, repeats: int, shapes) -> list:
    """Microseconds of a bucket, of which NCCL alone needs some for as many bytes."""
    rows = []
    for tensors, count in shapes:
        one = Buckets(gpu, tensors, count, repeats)
        flat = gpu.array(np.zeros(one.elements, np.float32))
        posts, each, alone = [], [], []
        for _ in range(5):
            post, bucket = one.run()
            posts.append(post)
            each.append(bucket)
            start = time.perf_counter()
            for _ in range(repeats):
                nccl.allreduce(flat, one.elements)
            gpu.wait()
            alone.append((time.perf_counter() - start) / repeats * 1e6)
        medians = [round(statistics.median(some), 1) for some in (posts, each, alone)]
        row = dict(zip(("post_us", "bucket_us", "nccl_us"), medians, strict=True))
        more = [ours - theirs for ours, theirs in zip(each[1:], alone[1:], strict=True)]
        row["over_nccl_us"] = round(statistics.median(more), 1)
        rows.append({"tensors": tensors, "floats_each": count} | row)
        one.free()
        flat.free()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--image", default=ROOT / "build/pack.image", type=pathlib.Path)
    parser.add_argument("--lists", nargs="*", default=["resnet50", "bert"])
    parser.add_argument("--largest", type=int, default=1 << 40, help="elements of a tensor at most")
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args()
    cuda.driver()  # before the library opens its own
    from smddp_tf._src.job import basics, job
    from smddp_tf.doctor.measure import gather

    cuda.choose_host()
    job.init()
    gpu = cuda.Gpu(basics.local_rank() % cuda.count())
    report = {"gpu": gpu.name(), "sm": gpu.capability(), "ranks": basics.size()}
    report["gpus"] = cuda.count()
    if basics.rank() == 0:
        image = args.image.read_bytes()
        report["packing"] = packing(gpu, image, args.lists, args.repeats, args.largest)
    gather("the first rank has packed")
    nccl = Nccl(gpu, basics.rank(), basics.size(), gather)
    shapes = [(16, 1 << 10), (160, 1 << 11), (16, 1 << 18)]  # 64 KiB, 1.25 MiB and 16 MiB
    report["buckets"] = buckets(gpu, nccl, args.repeats, shapes)
    report["nccl_collectives"] = basics.stats()["nccl_collectives"]
    nccl.close()
    job.shutdown()
    if os.environ.get("OMPI_COMM_WORLD_RANK", "0") == "0":
        print(json.dumps(report, indent=1), flush=True)
    gpu.close()


if __name__ == "__main__":
    main()
