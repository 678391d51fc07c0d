"""once_per_node(): one rank of each node works, the others wait."""

from bodies import once_per_node

TWO_NODES = {"SMDDP_NODES": "2"}


def test_results(job, tmp_path):
    """One rank of each node runs the function, and its node's ranks have the result."""
    results = job(once_per_node.results, 4, env=TWO_NODES).check(4)
    ran = sorted(int(path.name[8:]) for path in tmp_path.glob("prepared*"))
    assert len(ran) == 2
    of_node = {results[rank]["node"]: f"of {rank}!" for rank in ran}
    assert len(of_node) == 2
    assert [results[r]["got"] for r in range(4)] == [of_node[results[r]["node"]] for r in range(4)]


def test_failures(job):
    """The rank that failed has its own error, and all others one that names it."""
    results = job(once_per_node.failures, 4, env=TWO_NODES).check(4)
    said = [results[rank]["said"] for rank in range(4)]
    assert said.count("OSError: disk full") == 1
    failed = said.index("OSError: disk full")
    other = (
        "RuntimeError: once_per_node(fails_on_the_second_node) failed on another rank: "
        f"rank {failed}: OSError: disk full"
    )
    assert said.count(other) == 3
    assert {results[rank]["unpicklable"] for rank in range(4)} == {"PicklingError"}
    assert {results[rank]["after"] for rank in range(4)} == {7}
