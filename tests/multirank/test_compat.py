"""Scripts written for Horovod and for SageMaker's library, run without an edit."""

import re

import launcher
import pytest

SCRIPTS = launcher.ROOT / "tests" / "scripts"


def run(python, words, ranks=2, env=None, cwd=None):
    """Runs `python -m smddp_tf.compat WORDS`; returns the output."""
    start = [*launcher.mpirun(ranks), *launcher.warm_python(python, env)]
    command = [*start, "-m", "smddp_tf.compat", *words]
    code, output, timed_out = launcher.run_command(command, timeout=120, env=env, cwd=cwd)
    assert (code, timed_out) == (0, False), output[-4000:]
    return output


def test_horovod_loop(python):
    """Arguments reach the script; weights are equal; also as a module, and on 3 ranks."""
    output = run(python, [SCRIPTS / "horovod_loop.py", "--steps", "-m"])
    assert output.count("equal True arguments ['--steps', '-m']") == 2, output[-3000:]
    output = run(python, ["-m", "horovod_loop", "x"], ranks=3, cwd=SCRIPTS)
    assert output.count("equal True arguments ['x']") == 3, output[-3000:]


def test_horovod_keras(python, tmp_path):
    """fit() with callbacks; the weights are equal and rank 0 has written."""
    env = {"OUTPUT": str(tmp_path), "HOROVOD_FUSION_THRESHOLD": "0"}
    output = run(python, [SCRIPTS / "horovod_keras.py"], env=env)
    assert output.count("equal True") == 2, output[-3000:]
    assert "learning rate warm-up is done" in output
    assert (tmp_path / "checkpoint-4.keras").exists()


def test_smddp_loop(python):
    """Its strict init, gradients by index, broadcasts in the first step."""
    output = run(python, [SCRIPTS / "smddp_loop.py"])
    assert len(re.findall(r"equal True init\(\) called more than once", output)) == 2, output[
        -3000:
    ]


NAMES = """
import os, sys
os.environ["HOROVOD_STALL_CHECK_TIME_SECONDS"] = "7"
os.environ["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] = "0"
os.environ["HOROVOD_LOG_LEVEL"] = "TRACE"
os.environ["SMDDP_BUCKET_BYTES"] = "123"
os.environ["HOROVOD_FUSION_THRESHOLD"] = "456"
from smddp_tf._job import config
from smddp_tf.compat import environment
environment.adopt_horovod_environment()
got = {k: os.environ[k] for k in os.environ if k.startswith("SMDDP_")}
assert got["SMDDP_STALL_WARNING_SECONDS"] == "7" and got["SMDDP_LOG_LEVEL"] == "debug", got
assert int(got["SMDDP_TIMEOUT_SECONDS"]) == 10**7 and got["SMDDP_BUCKET_BYTES"] == "123", got
from smddp_tf.compat import _install
_install.install()
import importlib
for name, instead in _install.REFUSED.items():
    try:
        importlib.import_module(name)
        raise SystemExit(f"imported {name}")
    except ModuleNotFoundError as error:
        assert instead in str(error), error
try:
    import horovod.nonsense
    raise SystemExit("imported nonsense")
except ModuleNotFoundError as error:
    assert "api-parity" in str(error)
import horovod, horovod.tensorflow as hvd, horovod.keras, horovod.tensorflow.keras as k
for module in (hvd, k, horovod):
    for name, instead in getattr(module, "REFUSED", {"run": "mpirun"}).items():
        try:
            getattr(module, name)
            raise SystemExit(f"has {name}")
        except AttributeError as error:
            assert instead in str(error), error
try:
    hvd.rank()
    raise SystemExit("a rank before init()")
except ValueError as error:
    assert "has not been initialized" in str(error)
hvd.init()
from horovod.tensorflow.mpi_ops import _allreduce, rank, Sum
from horovod.common.process_sets import ProcessSet
from horovod.common.exceptions import HorovodInternalError
from horovod.common.util import num_rank_is_power_2, split_list, gpu_available, nccl_built
from horovod.tensorflow.util import refs_to_vars, vars_to_refs
from horovod.tensorflow.compression import Compression
import tensorflow as tf
v = tf.Variable(1.0)
assert refs_to_vars(vars_to_refs([v]))[0] is v
assert hvd._executing_eagerly() and hvd.gpu_available() is False and hvd.mpi_ops._basics.size() == 1
assert hvd.handle_average_backwards_compatibility(None, False) == hvd.Sum and hvd.split_list([1], 1)
assert num_rank_is_power_2(8) and not num_rank_is_power_2(6)
assert split_list([1, 2, 3], 2) == [[1, 2], [3]] and not nccl_built(verbose=True)
assert float(_allreduce(tf.constant(2.0))) == 2.0 and rank() == 0
assert k.allreduce(3.0) == 3.0 and k.broadcast(4.0, 0) == 4.0
import smddpcommon as hm
hm.setBucketSize(1 << 20)
assert config.load().bucket_bytes == 1 << 20
import smdistributed.dataparallel.tensorflow as sdp
import smdistributed.dataparallel.tensorflow.keras as sk
from smdistributed.dataparallel.exceptions import SMDDPError
def refused(error, text, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except error as caught:
        assert text in str(caught), caught
    else:
        raise SystemExit("accepted")
refused(SMDDPError, "more than once", sdp.init)
refused(ValueError, "tensor= or as grad=", sdp.allreduce, param_index=0, num_params=1)
refused(ValueError, "oob_allreduce", sdp.allreduce, 1.0)
refused(ValueError, "from 0 to 1", sdp.allreduce, 1.0, param_index=2, num_params=2)
refused(NotImplementedError, "device", sdp.DistributedGradientTape, tf.GradientTape(), "/gpu:0")
sgd = tf.keras.optimizers.SGD
refused(ValueError, "128", sdp.DistributedOptimizer, sgd(0.1), bucket_cap_mb=0.00001)
sdp.DistributedOptimizer(sgd(0.1), name=None, device_dense="/gpu:0", bucket_cap_mb=64)
sk.DistributedOptimizer(sgd(0.1), compression=sdp.Compression.fp16)
assert float(sdp.overlap(tf.constant(1.0))) == 1.0
assert sk.callbacks.BroadcastGlobalVariablesCallback(0)
print("all names")
"""


@pytest.mark.parametrize("name", ["keras3", "keras2"])
def test_names_and_refusals(name, tmp_path):
    """Everything beside the API that scripts touch, and every refusal, in one process."""
    from conftest import KerasJob

    keras_job = KerasJob(name, tmp_path)
    reason = keras_job.why_not("tensorflow")
    if reason:
        pytest.skip(f"{name} is not here: {reason}")
    script = tmp_path / "names.py"
    script.write_text(NAMES)
    code, output, _ = launcher.run_command([keras_job.python, script], timeout=100)
    assert code == 0 and "all names" in output, output[-3000:]


def test_a_missing_script():
    """A sentence, not a traceback."""
    command = [launcher.BIN / "python", "-m", "smddp_tf.compat", "nowhere.py"]
    code, output, _ = launcher.run_command(command, timeout=60)
    assert code == 2 and "nowhere.py does not exist" in output


def test_the_parity_page_is_true():
    """docs/api-parity.md is what the code says now, and nothing of either API is missing."""
    command = [launcher.BIN / "python", "-m", "smddp_tf.compat.parity"]
    code, output, _ = launcher.run_command(command, timeout=60)
    page = output[output.index("# What there is") :]
    assert code == 0
    assert page == (launcher.ROOT / "docs" / "api-parity.md").read_text(), "write it again"
    assert "| missing |" not in page


def test_worker_comm(job, python):
    """SageMaker's communicator of all ranks is mpi4py's; without mpi4py it says what to do."""
    body = """
    import importlib.util
    from smddp_tf.compat import _install
    _install.install()
    import smdistributed.dataparallel.tensorflow as sdp
    from smdistributed.dataparallel.exceptions import SMDDPError
    there = importlib.util.find_spec("mpi4py") is not None
    try:
        comm = sdp.get_worker_comm()
        assert there and comm.allgather(rank) == [0, 1]
    except SMDDPError as error:
        assert not there and "mpi4py is not installed" in str(error), error
    report(there=there)
    """
    job(body, 2, python=python).check(2)
