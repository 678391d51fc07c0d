"""What a rank gave up is its own again: nothing that is still under way writes there."""

import launcher
from bodies import given_up


def test_nothing_is_written_after_a_timeout(job):
    """A broadcast between nodes fails halfway; MPI then goes on, but not in the tensor."""
    body = given_up.the_root_stops(str(launcher.ROOT / "smddp_tf/lib/libsmddp.so"))
    env = {
        "SMDDP_NODES": "2",
        "SMDDP_TIMEOUT_SECONDS": "5",
        # Bytes move only while both ranks are at it, as between machines.
        "OMPI_MCA_btl": "self,tcp",
        "OMPI_MCA_btl_tcp_if_include": "lo",
    }
    result = job(body, 2, env=env)
    assert not result.timed_out, result.output[-4000:]
    assert 0 in result.results, result.output[-4000:]
    rank0 = result.results[0]
    assert rank0["code"] == 3, result.output[-3000:]
    assert 0 < rank0["came"] < 256 << 20  # or the test has shown nothing
    assert rank0["overwritten"] == 0
