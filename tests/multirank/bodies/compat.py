"""What processes do in test_compat.py. Imports are part of what is tested, so they are in order."""

import importlib
import importlib.util
import os
import tempfile

from harness import rank, report, without_init


def _raises(kind, text, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except kind as caught:
        assert text in str(caught), caught
    else:
        raise SystemExit(f"accepted: {text}")


def _environment():
    os.environ["HOROVOD_STALL_CHECK_TIME_SECONDS"] = "7"
    os.environ["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] = "0"
    os.environ["HOROVOD_LOG_LEVEL"] = "TRACE"
    os.environ["SMDDP_BUCKET_BYTES"] = "123"
    os.environ["HOROVOD_FUSION_THRESHOLD"] = "456"
    importlib.import_module("smddp_tf._src.job.config")
    from smddp_tf.compat import environment

    environment.adopt_horovod_environment()
    got = {k: os.environ[k] for k in os.environ if k.startswith("SMDDP_")}
    assert got["SMDDP_STALL_WARNING_SECONDS"] == "7" and got["SMDDP_LOG_LEVEL"] == "debug", got
    assert int(got["SMDDP_TIMEOUT_SECONDS"]) == 10**7 and got["SMDDP_BUCKET_BYTES"] == "123", got


def _refused_names():
    from smddp_tf.compat import _install

    _install.install()
    without_torch = importlib.util.find_spec("torch") is None
    for name, instead in _install.REFUSED.items():
        if name.startswith("horovod.torch.") and without_torch:
            instead = "No module named 'torch'"
        _raises(ModuleNotFoundError, instead, importlib.import_module, name)
    _raises(ModuleNotFoundError, "api-parity", importlib.import_module, "horovod.nonsense")
    import horovod
    import horovod.keras
    import horovod.tensorflow as hvd
    import horovod.tensorflow.keras as k

    for module in (hvd, k, horovod.keras):  # a name of each, and a module
        name = {id(hvd): "tensorflow", id(k): "tensorflow.keras"}.get(id(module), "keras")
        elastic = importlib.import_module(f"horovod.{name}.elastic")
        assert elastic.run is module.elastic.run, name
    for module in (hvd, horovod):
        for name, instead in getattr(module, "REFUSED", {}).items():
            _raises(AttributeError, instead, getattr, module, name)
            # Python imports a name of `from ... import` as a module where there is none.
            words = f"from {module.__spec__.name.removeprefix('smddp_tf.compat.')} import {name}"
            _raises(ImportError, instead, exec, words, {})
    _raises(ValueError, "has not been initialized", hvd.rank)


def _horovod():
    import horovod.tensorflow as hvd
    import horovod.tensorflow.keras as k

    hvd.init()
    from horovod.common.exceptions import HorovodInternalError
    from horovod.common.process_sets import ProcessSet
    from horovod.common.util import (
        check_extension,
        extension_available,
        gpu_available,
        nccl_built,
        num_rank_is_power_2,
        split_list,
    )
    from horovod.tensorflow.compression import Compression, Compressor
    from horovod.tensorflow.mpi_ops import Sum, _allreduce, rank
    from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization
    from horovod.tensorflow.util import refs_to_vars, vars_to_refs

    assert hvd.SyncBatchNormalization is hvd.sync_batch_norm.SyncBatchNormalization
    assert SyncBatchNormalization and hvd.functions.broadcast_object is hvd.broadcast_object
    assert hvd.compression.Compression is hvd.Compression
    _raises(NotImplementedError, "compress(tensor)", Compressor.compress, 1.0)
    with_torch = importlib.util.find_spec("torch") is not None
    assert extension_available("tensorflow")
    assert extension_available("torch", verbose=True) == with_torch
    check_extension("horovod.tensorflow", "HOROVOD_WITH_TENSORFLOW", __file__, "mpi_lib")
    _raises(ImportError, "TensorFlow", check_extension, "horovod.mxnet")
    assert HorovodInternalError and ProcessSet and Compression and gpu_available
    import tensorflow as tf

    v = tf.Variable(1.0)
    assert refs_to_vars(vars_to_refs([v]))[0] is v
    assert hvd._executing_eagerly() and hvd.gpu_available() is False
    assert hvd.mpi_ops._basics.size() == 1
    for module in (hvd, k):  # libraries ask, so as not to wrap it again
        wrapped = module.DistributedOptimizer(tf.keras.optimizers.SGD(0.1))
        assert wrapped.__module__.startswith("horovod")
        assert type(wrapped) is tf.keras.optimizers.SGD
    model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
    model.compile(wrapped, "mse")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        assert k.load_model(path).optimizer.__module__.startswith("horovod")
    assert hvd.handle_average_backwards_compatibility(None, False) == hvd.Sum == Sum
    assert hvd.split_list([1], 1)
    assert num_rank_is_power_2(8) and not num_rank_is_power_2(6)
    assert split_list([1, 2, 3], 2) == [[1, 2], [3]] and not nccl_built(verbose=True)
    assert float(_allreduce(tf.constant(2.0))) == 2.0 and rank() == 0
    assert hvd._reducescatter(tf.constant([2.0])) == [2.0]
    assert hvd.mpi_ops._grouped_reducescatter([tf.constant([2.0])])[0] == [2.0]
    # Tensors in eager mode, as of Horovod, whose scripts go on with them.
    for got in (k.allreduce(3.0, "a"), k.broadcast(3.0, 0), k.allgather([3.0])[0]):
        assert got.numpy() == 3.0
    epoch = k.broadcast(2, 0)
    assert epoch.dtype == tf.int64 and list(range(1, epoch)) == [1]
    tf.data.Dataset.range(5).take(epoch)  # as fit(initial_epoch=) of Keras 2 does


def _only_the_import_changed():
    """Modules inside horovod.tensorflow, in a script that imports smddp_tf instead."""
    import smddp_tf as hvd

    assert hvd.mpi_ops.Sum is hvd.Sum and hvd.mpi_ops.rank is hvd.rank
    assert hvd.compression.NoneCompressor is hvd.Compression.none
    assert hvd.compression.FP16Compressor is hvd.Compression.fp16
    from smddp_tf.compression import Compression
    from smddp_tf.mpi_ops import Average, allreduce

    assert Compression is hvd.Compression
    assert Average is hvd.Average and allreduce is hvd.allreduce


def _sagemaker():
    import smddpcommon as hm
    import tensorflow as tf

    from smddp_tf._src.job import config

    hm.setBucketSize(1 << 20)
    assert config.load().bucket_bytes == 1 << 20
    import smdistributed.dataparallel.tensorflow as sdp
    import smdistributed.dataparallel.tensorflow.keras as sk
    from smdistributed.dataparallel.exceptions import SMDDPError

    one = {"param_index": 0, "num_params": 1}
    _raises(SMDDPError, "more than once", sdp.init)
    _raises(ValueError, "tensor= or as grad=", sdp.allreduce, **one)
    _raises(ValueError, "oob_allreduce", sdp.allreduce, 1.0)
    _raises(ValueError, "from 0 to 1", sdp.allreduce, 1.0, param_index=2, num_params=2)
    tape = tf.GradientTape()
    _raises(NotImplementedError, "device", sdp.DistributedGradientTape, tape, "/gpu:0")
    sgd = tf.keras.optimizers.SGD
    _raises(ValueError, "128", sdp.DistributedOptimizer, sgd(0.1), bucket_cap_mb=0.00001)
    sdp.DistributedOptimizer(sgd(0.1), name=None, device_dense="/gpu:0", bucket_cap_mb=64)
    sk.DistributedOptimizer(sgd(0.1), compression=sdp.Compression.fp16)
    assert float(sdp.overlap(tf.constant(1.0))) == 1.0
    assert sk.callbacks.BroadcastGlobalVariablesCallback(0)


@without_init
def names():
    """Everything beside the API that scripts touch, and every refusal."""
    _environment()
    _refused_names()
    _horovod()
    _only_the_import_changed()
    _sagemaker()
    print("all names")


def worker_comm():
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
