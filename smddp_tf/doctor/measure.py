"""Measures between ranks, with the library's own collectives, through its C API."""

from __future__ import annotations

import array
import ctypes
import json
import math
import os
import statistics
import sys
import time

from smddp_tf._src.job import basics, native
from smddp_tf._src.job.adding_sets import add_process_set, remove_process_set
from smddp_tf._src.job.enums import Kind
from smddp_tf._src.job.process_sets import check_status
from smddp_tf._src.job.reduce_op import Sum

_FLOAT32, _UINT8 = 1, 4  # smddp_dtype
_SMALL, _LARGE = 1, 8 << 20  # floats: 4 B, 32 MiB


def _run(kind, dtype, source, target, count, name, process_set=0) -> None:
    """One collective on `count` elements; raises JobError or ValueError if it fails."""
    dims = (ctypes.c_int64 * 1)(count)
    tensor = native.Tensor(ctypes.addressof(source), ctypes.addressof(target), 1, dims)
    request = native.Request(
        kind=kind,
        dtype=dtype,
        op=Sum,
        process_set=process_set,
        prescale=1.0,
        postscale=1.0,
        name=name.encode(),
        num_tensors=1,
        tensors=ctypes.pointer(tensor),
    )
    check_status(native.core().smddp_run(ctypes.byref(request)))


def gather(value) -> list:
    """Every rank's value, which JSON can hold, by rank."""
    data, size = json.dumps(value).encode(), basics.size()
    length = (ctypes.c_uint8 * 8)(*len(data).to_bytes(8, sys.byteorder))
    lengths = (ctypes.c_uint8 * (8 * size))()
    _run(Kind.ALLGATHER, _UINT8, length, lengths, 8, "doctor: lengths")
    all_lengths = array.array("Q", bytes(lengths))
    most = max(all_lengths)
    own = ctypes.create_string_buffer(data, most)
    everything = (ctypes.c_uint8 * (most * size))()
    _run(Kind.ALLGATHER, _UINT8, own, everything, most, "doctor: values")
    text = bytes(everything)
    return [json.loads(text[r * most : r * most + all_lengths[r]]) for r in range(size)]


def _allreduce(count: int, repeat: int, name: str, process_set=0, ranks=0) -> list:
    """Seconds of each of `repeat` sums; checks the first result."""
    source = (ctypes.c_float * count)()
    ctypes.memmove(source, array.array("f", [1.0]).tobytes() * count, 4 * count)
    target = (ctypes.c_float * count)()
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        _run(Kind.ALLREDUCE, _FLOAT32, source, target, count, name, process_set)
        seconds.append(time.perf_counter() - start)
    wanted = array.array("f", [float(ranks)]).tobytes() * count
    if bytes(target) != wanted:
        raise ArithmeticError(f"{name}: a sum of {ranks} ones is not {ranks} everywhere")
    return seconds


def speed(process_set=0, ranks: int = 0, quick: bool = False) -> dict:
    """Latency and bandwidth of an allreduce among the ranks of a set, which all call it.

    Bandwidth counts the bytes that each rank has to send and receive at least, 2 (n-1)/n of the
    tensor. quick: a shorter measurement.

    Raises:
      ArithmeticError: a sum is wrong.
    """
    ranks = ranks or basics.size()
    _allreduce(_SMALL, 10, "doctor: warm", process_set, ranks)
    small = _allreduce(_SMALL, 50 if quick else 200, "doctor: latency", process_set, ranks)
    count = _LARGE // 8 if quick else _LARGE
    _allreduce(count, 2, "doctor: warm bandwidth", process_set, ranks)
    # The same number of times on all ranks, so it cannot follow from a rank's own clock.
    large = _allreduce(count, 3 if quick else 7, "doctor: bandwidth", process_set, ranks)
    moved = 2 * (ranks - 1) / ranks * 4 * count
    return {
        "latency_us": round(statistics.median(small) * 1e6, 1),
        "gigabytes_per_second": round(moved / statistics.median(large) / 1e9, 3),
    }


def speed_of_pair(pair, quick: bool) -> dict | None:
    """speed() of two ranks; all ranks of the job call it, and those outside get None."""
    if basics.size() == 2:
        return speed(quick=quick)
    process_set = add_process_set(list(pair))
    try:
        inside = process_set.included()
        return speed(process_set.process_set_id, 2, quick) if inside else None
    finally:
        remove_process_set(process_set)


def clock_offsets(rounds: int = 20) -> tuple:
    """Milliseconds by which each rank's clock is ahead of this one's, and how exact that is.

    Cristian's algorithm: a rank sends its time in an allgather, so the others' times lie between
    the moments before and after it; the shortest of several rounds counts.
    """
    shortest, offsets = math.inf, []
    for _ in range(rounds):
        before = time.time()
        times = gather(time.time())
        after = time.time()
        if after - before < shortest:
            shortest, middle = after - before, (before + after) / 2
            offsets = [one - middle for one in times]
    return [round(offset * 1e3, 3) for offset in offsets], round(shortest / 2 * 1e3, 3)


def why_no_peer_reads(ranks: list, local: list) -> str:
    """Whether this rank can read the memory of its node's ranks: "" or the reason why not.

    Args:
      ranks: every rank's (process id, address of a word, the word).
      local: the ranks of this node.
    """
    read = ctypes.CDLL(None, use_errno=True).process_vm_readv
    part = (ctypes.c_void_p, ctypes.c_ulong)
    read.argtypes, read.restype = (ctypes.c_int, *part, *part, ctypes.c_ulong), ctypes.c_ssize_t
    for peer in local:
        pid, address, wanted = ranks[peer]
        word = ctypes.c_uint64()
        here = (ctypes.c_size_t * 2)(ctypes.addressof(word), 8)
        there = (ctypes.c_size_t * 2)(address, 8)
        if read(pid, here, 1, there, 1, 0) != 8 or word.value != wanted:
            reason = os.strerror(ctypes.get_errno()) if ctypes.get_errno() else "another word"
            return f"process_vm_readv: {reason}"
    return ""
