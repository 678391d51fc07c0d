"""init() and shutdown() in turn cost no memory, addresses, threads or descriptors."""

from bodies import cycles

# A cycle that kept what it had would take 8 KiB and 2.2 MiB of addresses (33 KiB and 4.4 MiB with
# two ranks): 1,600 KiB and 440 MiB in 200. Without that, allocators were seen to take under 100 KiB
# and no addresses. A new arena of malloc reserves 64 or 128 MiB.
MOST_MEMORY_KIB = 800
MOST_ADDRESSES_KIB = 256 << 10


def check(grown):
    assert grown["memory"] < MOST_MEMORY_KIB, grown
    assert grown["addresses"] < MOST_ADDRESSES_KIB, grown
    assert (grown["threads"], grown["files"]) == (0, 0), grown


def test_of_one_rank(job):
    """Of a job of size 1, as in a notebook or a test suite."""
    check(job(cycles.alone, 1, timeout=60).check(1)[0])


def test_of_ranks_that_mpi4py_joined(job):
    """MPI goes on, so the ranks can meet again."""
    results = job(cycles.with_mpi4py, 2, timeout=60).check(2)
    for grown in results.values():
        assert grown["ranks"] == 2
        check(grown)


def test_while_a_thread_is_inside(job):
    """What it looks at stays until it has left."""
    result = job(cycles.with_a_thread_inside, 1, timeout=60).check(1)[0]
    assert result["ended"] and result["ranks"] == [1], result
