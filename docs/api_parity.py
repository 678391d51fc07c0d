"""Writes docs/api-parity.md: ``python docs/api_parity.py >docs/api-parity.md``.

The names and arguments of both APIs are listed here; whether they are there, and with which
arguments, is asked of the code. A test compares the page with what this prints.
"""

import ast
import importlib
import inspect
import pathlib

from smddp_tf.compat import _install

PACKAGE = pathlib.Path(__file__).parents[1] / "smddp_tf"
QUERIES = (
    "init shutdown is_initialized size local_size cross_size rank local_rank cross_rank "
    "is_homogeneous mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built "
    "ddl_built ccl_built cuda_built rocm_built Average Sum Compression ProcessSet "
    "global_process_set add_process_set remove_process_set start_timeline stop_timeline"
)
WRAPPED = (
    "device_dense device_sparse compression sparse_as_dense op gradient_predivide_factor "
    "num_groups groups process_set scale_local_gradients"
)
OPTIMIZED = f"optimizer name backward_passes_per_step average_aggregated_gradients {WRAPPED}"
REDUCED = "device_dense device_sparse compression op prescale_factor postscale_factor process_set"
MOVED = "name ignore_name_scope process_set"

# module -> {name: its arguments}
API = {
    "horovod.tensorflow": {
        **dict.fromkeys(QUERIES.split(), ""),
        "init": "comm process_sets",
        "start_timeline": "file_path mark_cycles",
        "Adasum": "",
        "Min": "",
        "Max": "",
        "Product": "",
        "rank_op": "name",
        "local_rank_op": "name",
        "size_op": "process_set_id name",
        "local_size_op": "name",
        "process_set_included_op": "process_set_id name",
        "allreduce": f"tensor average name ignore_name_scope {REDUCED}",
        "grouped_allreduce": f"tensors average name ignore_name_scope {REDUCED}",
        "allgather": f"tensor {MOVED}",
        "grouped_allgather": f"tensors {MOVED}",
        "broadcast": f"tensor root_rank {MOVED}",
        "broadcast_": "variables root_rank name process_set",
        "reducescatter": "tensor device_dense compression op name process_set ignore_name_scope "
        "prescale_factor postscale_factor",
        "grouped_reducescatter": "tensors device_dense compression op process_set prescale_factor "
        "postscale_factor",
        "alltoall": f"tensor splits {MOVED}",
        "join": "",
        "broadcast_variables": "variables root_rank process_set inplace",
        "broadcast_global_variables": "root_rank",
        "BroadcastGlobalVariablesHook": "root_rank device",
        "broadcast_object": "obj root_rank session name process_set",
        "broadcast_object_fn": "root_rank session name process_set",
        "allgather_object": "obj session name process_set",
        "DistributedGradientTape": f"gradtape {WRAPPED}",
        "PartialDistributedGradientTape": f"gradtape local_layers {WRAPPED}",
        "DistributedOptimizer": f"use_locking {OPTIMIZED}",
        "SyncBatchNormalization": "fused",
        "LocalGradientAggregationHelper": "",
        "elastic": "",
        "data": "",
        "run": "",
    },
    "horovod.tensorflow.elastic": {
        "run": "func",
        "State": "",
        "ObjectState": "",
        "TensorFlowState": "variables session",
        "TensorFlowKerasState": "model optimizer backend",
    },
    "horovod": {"run": "func args kwargs num_proc np"},
    "horovod.tensorflow.keras": {
        **dict.fromkeys(QUERIES.split(), ""),
        "DistributedOptimizer": OPTIMIZED,
        "broadcast_global_variables": "root_rank",
        "allreduce": "value name average prescale_factor postscale_factor op compression",
        "allgather": "value name",
        "broadcast": "value root_rank name",
        "reducescatter": "value name op",
        "load_model": "filepath custom_optimizers custom_objects compression legacy_opts",
        "PartialDistributedOptimizer": "optimizer local_layers scale_local_gradients",
        "elastic": "",
    },
    "horovod.tensorflow.keras.callbacks": {
        "BroadcastGlobalVariablesCallback": "root_rank device local_variables",
        "MetricAverageCallback": "device",
        "LearningRateScheduleCallback": "initial_lr multiplier start_epoch end_epoch staircase "
        "momentum_correction steps_per_epoch",
        "LearningRateWarmupCallback": "initial_lr warmup_epochs momentum_correction "
        "steps_per_epoch verbose",
        "BestModelCheckpoint": "monitor verbose save_weights_only mode save_freq",
    },
    "horovod.tensorflow.keras.elastic": {
        "run": "func",
        "KerasState": "model optimizer",
        "TensorFlowKerasState": "model optimizer backend",
        "CommitStateCallback": "state batches_per_commit",
        "UpdateBatchStateCallback": "state",
        "UpdateEpochStateCallback": "state",
    },
    "horovod.keras": {
        "DistributedOptimizer": OPTIMIZED,
        "Adasum": "",
        "load_model": "filepath",
        "elastic": "",
    },
    "horovod.common.exceptions": {"HorovodInternalError": "", "HostsUpdatedInterrupt": ""},
    "smdistributed.dataparallel.tensorflow": {
        "init": "",
        "size": "",
        "local_size": "",
        "rank": "",
        "local_rank": "",
        "allreduce": "tensor param_index num_params compression op grad",
        "oob_allreduce": "tensor compression op",
        "broadcast": "tensor root_rank",
        "broadcast_variables": "variables root_rank",
        "broadcast_global_variables": "root_rank",
        "overlap": "tensor",
        "shutdown": "",
        "DistributedGradientTape": "gradtape device_dense device_sparse compression "
        "sparse_as_dense op",
        "DistributedOptimizer": "optimizer name use_locking device_dense device_sparse compression "
        "sparse_as_dense op bucket_cap_mb",
        "BroadcastGlobalVariablesHook": "root_rank",
        "Compression": "",
        "ReduceOp": "",
        "get_worker_comm": "",
    },
    "smdistributed.dataparallel.tensorflow.keras": {
        "init": "",
        "size": "",
        "rank": "",
        "local_rank": "",
        "DistributedOptimizer": "optimizer compression",
        "callbacks": "",
    },
    "smdistributed.dataparallel": {
        "start_profiler": "path append_rank",
        "stop_profiler": "",
        "exceptions": "",
    },
}

# Names of PyTorch's modules. What has them imports PyTorch, so the sources are asked.
TORCH = (
    f"{QUERIES} Adasum Min Max Product allreduce allreduce_ allreduce_async allreduce_async_ "
    "grouped_allreduce grouped_allreduce_ grouped_allreduce_async grouped_allreduce_async_ "
    "sparse_allreduce_async allgather allgather_async grouped_allgather grouped_allgather_async "
    "broadcast broadcast_ broadcast_async broadcast_async_ alltoall alltoall_async reducescatter "
    "reducescatter_async grouped_reducescatter grouped_reducescatter_async join poll "
    "synchronize barrier allgather_object broadcast_object broadcast_parameters "
    "broadcast_optimizer_state DistributedOptimizer SyncBatchNorm HorovodInternalError elastic run"
)
TORCH_DIFFERENCES = {
    "grouped_allreduce": "",
    "Adasum": "any number of ranks, and process sets",
    "allgather_async": "refuses a tensor that requires a gradient",
    "broadcast_async": "refuses a tensor that requires a gradient",
    "sparse_allreduce_async": "synchronize() takes its handle too; the result is coalesced",
    "HorovodInternalError": "is torch.distributed.DistBackendError",
    "SyncBatchNorm": "on the CPU too",
    "DistributedOptimizer": "returns the same object; step(closure) reduces, also LBFGS's",
}
TORCH_ELASTIC = "run State ObjectState TorchState ElasticSampler"
TORCH_ELASTIC_DIFFERENCES = {
    "run": "",
    "TorchState": "keeps whatever has a state_dict(), schedulers too; the same objects as outside",
    "ElasticSampler": "record_batch() records the batch of all ranks",
}

# SageMaker's module for PyTorch is PyTorch's, but for what its file defines.
SMDDP_TORCH = (
    "ReduceOp all_gather all_reduce all_to_all_single barrier broadcast get_local_rank get_rank "
    "get_world_size group init_process_group is_available is_initialized"
)
SMDDP_TORCH_DIFFERENCES = {
    "ReduceOp": "PRODUCT too",
    "get_local_rank": "before init_process_group() too",
    "get_rank": "before init_process_group() too",
    "get_world_size": "before init_process_group() too",
    "init_process_group": "the backend is smddp, whichever is given",
}

# What is different where a name works; the same in every module that has it, unless the module's
# own name is in front.
DIFFERENCES = {
    "BroadcastGlobalVariablesCallback": "broadcasts before the first gradient, not after the first "
    "batch",
    "BestModelCheckpoint": "takes filepath as well",
    "DistributedOptimizer": "returns the same object, so its class and files are Keras's own",
    "BroadcastGlobalVariablesHook": "",
    "Adasum": "",
    "join": "Average still divides by all ranks",
    "allreduce": "bfloat16 and complex numbers too; 16-bit floats are summed in float32",
    "grouped_allreduce": "tf.IndexedSlices may be among the tensors",
    "reducescatter": "uint8, int8 and bfloat16 too",
    "start_timeline": "a file for each rank",
    "start_profiler": "a Chrome trace for each rank",
    "nccl_built": "whether NCCL can be opened in this process",
    "cuda_built": "False: CUDA is opened when a job runs, not built in",
    "run": "arguments of elastic jobs, and use_gloo, are refused",
    "shutdown": "under mpirun, init() can follow it if mpi4py began MPI, which begins once",
    "horovod.tensorflow.elastic.run": "",
    "horovod.tensorflow.keras.elastic.run": "",
    "State": "takes no functions that broadcast or tell the rank",
    "ObjectState": "takes objects only, no functions that broadcast or tell the rank",
    "TensorFlowState": "session= is refused, and variables= has to be given",
    "TensorFlowKerasState": "not in TF1 sessions; restore() also goes back inside objects",
    "KerasState": "not in TF1 sessions; restore() also goes back inside objects",
    "CommitStateCallback": "what it commits is up to date, wherever it is in the list",
    "UpdateBatchStateCallback": "counts the batches that are done in the epoch",
    "HorovodInternalError": "never raised: a failed collective raises an exception of tf.errors",
    "overlap": "the identity: reductions overlap without it",
    "oob_allreduce": "returns the tensor, as samples use it; other ops than AVERAGE too",
}


def _module(name: str):
    return importlib.import_module(f"smddp_tf.compat.{name}")


def _arguments(value) -> set:
    try:
        return set(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return set()


def status_of(module, name: str, arguments: str) -> tuple:
    """(works, partly or refused; a remark) of a name of a module."""
    try:
        value = getattr(module, name)
    except AttributeError as error:
        text = str(error)
        if "is not provided: " in text:
            return "refused", text.split("is not provided: ")[1]
        return "missing", ""
    accepted = _arguments(value)
    missing = [one for one in arguments.split() if one not in accepted]
    if missing and "kwargs" not in accepted and "args" not in accepted:
        return "partly", "does not take " + ", ".join(missing)
    own = f"{module.__name__.removeprefix('smddp_tf.compat.')}.{name}"
    return "works", DIFFERENCES.get(own, DIFFERENCES.get(name, ""))


def _assigned(path: str, name: str):
    """What a file of the package assigns to a name, without its import."""
    constants = {}
    for node in ast.parse((PACKAGE / path).read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            constants[node.targets[0].id] = node.value
    value = constants[name]
    if not isinstance(value, ast.Dict):
        return ast.literal_eval(value)
    values = (constants[one.id] if isinstance(one, ast.Name) else one for one in value.values)
    return dict(zip(map(ast.literal_eval, value.keys), map(ast.literal_eval, values), strict=True))


def _imported(path: str) -> set:
    """The names that a file imports."""
    tree = ast.parse((PACKAGE / path).read_text())
    found = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {alias.asname or alias.name for node in found for alias in node.names}


def torch_rows() -> list:
    """The rows of horovod.torch."""
    own = "compat/horovod/torch/__init__.py"
    there = {*_assigned("torch/__init__.py", "__all__"), *_imported(own)}
    rows = []
    for name in sorted(TORCH.split(), key=str.lower):
        status = "works" if name in there else "missing"
        remark = TORCH_DIFFERENCES.get(name, DIFFERENCES.get(name, ""))
        rows.append(f"| `{name}` | {status} | {remark} |")
    return rows


def smddp_torch_rows() -> list:
    """The rows of smdistributed.dataparallel.torch.distributed."""
    path = PACKAGE / "compat/smdistributed/dataparallel/torch/distributed.py"
    defined = {getattr(node, "name", "") for node in ast.parse(path.read_text()).body}
    rows = []
    for name in sorted(SMDDP_TORCH.split(), key=str.lower):
        own = SMDDP_TORCH_DIFFERENCES.get(name, "" if name in defined else None)
        status = "works" if own is None or name in defined else "missing"
        rows.append(f"| `{name}` | {status} | {'from PyTorch' if own is None else own} |")
    return rows


def torch_elastic_rows() -> list:
    """The rows of horovod.torch.elastic."""
    there = _assigned("torch/elastic/__init__.py", "__all__")
    rows = []
    for name in sorted(TORCH_ELASTIC.split(), key=str.lower):
        remark = TORCH_ELASTIC_DIFFERENCES.get(name, DIFFERENCES.get(name, ""))
        rows.append(f"| `{name}` | {'works' if name in there else 'missing'} | {remark} |")
    return rows


def page() -> str:
    """The page."""
    lines = [
        "# Every name of Horovod's and SageMaker's APIs",
        "",
        "Written by `python docs/api_parity.py` from the code. Names of Horovod 0.28.1's",
        "`horovod.tensorflow` are those of `smddp_tf`, of `horovod.tensorflow.keras` those of",
        "`smddp_tf.keras`; `python -m smddp_tf.compat train.py` runs scripts with either import as",
        "they are. A name that is refused raises AttributeError or ModuleNotFoundError with the",
        "sentence in the last column. Scripts for SageMaker's library that call `opt.variables()`",
        "need `opt.variables` under Keras 3, where it is a list.",
    ]
    for module_name, names in API.items():
        module = _module(module_name)
        lines += ["", f"## {module_name}", "", "| name | status | difference |", "|---|---|---|"]
        for name in sorted(names, key=str.lower):
            status, remark = status_of(module, name, names[name])
            lines.append(f"| `{name}` | {status} | {remark} |")
    torch_1 = "## smdistributed.dataparallel.torch.distributed"
    lines += ["", torch_1, "", "| name | status | difference |", "|---|---|---|"]
    lines += smddp_torch_rows()
    lines += ["", "## horovod.torch", "", "| name | status | difference |", "|---|---|---|"]
    lines += torch_rows()
    lines += ["", "## horovod.torch.elastic", "", "| name | status | difference |", "|---|---|---|"]
    lines += torch_elastic_rows()
    lines += ["", "## Modules that are not provided", "", "| module | instead |", "|---|---|"]
    lines += [f"| `{name}` | {instead} |" for name, instead in _install.REFUSED.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
