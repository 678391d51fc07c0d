"""What a rank gave up is its own again: nothing that is still under way writes there."""

import launcher

STOPPED_ROOT = """
import ctypes, signal, threading
from mpi4py import MPI
lib = ctypes.CDLL({library!r})
data = np.zeros(256 << 20, np.uint8) if rank == 0 else np.ones(256 << 20, np.uint8)
pids = hvd.allgather_object(os.getpid())

def stop_the_root():
    "In the middle of the transfer."
    while data[0] == 0:
        time.sleep(0.001)
    os.kill(pids[1], signal.SIGSTOP)

if rank == 0:
    threading.Thread(target=stop_the_root, daemon=True).start()
code = lib.smddp_broadcast(
    ctypes.c_void_p(data.ctypes.data), ctypes.c_int64(data.nbytes), 1, b"weights"
)
if rank == 0:
    came = int(np.count_nonzero(data))
    data[:] = 7
    os.kill(pids[1], signal.SIGCONT)
    # Whoever calls MPI moves what it has under way.
    until = time.time() + 3
    while time.time() < until:
        MPI.COMM_WORLD.Iprobe()
    report(code=code, came=came, overwritten=int(np.count_nonzero(data != 7)))
until = time.time() + 60
while not (OUT / "rank0.json").exists() and time.time() < until:
    time.sleep(0.1)
os._exit(0)
"""


def test_nothing_is_written_after_a_timeout(job):
    """A broadcast between nodes fails halfway; MPI then goes on, but not in the tensor."""
    body = STOPPED_ROOT.format(library=str(launcher.ROOT / "smddp_tf/lib/libsmddp.so"))
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
