// Rank and size queries, evaluated when the graph runs: a graph built before init(), or loaded from
// a file, returns the values of the job that runs it.
#include "tf/runtime/op_kernel.h"
#include "tf/runtime/register.h"

namespace smddp_tf {
namespace {

// smddp_tf/_src/graph/queries.py uses the same order.
enum Query : int64_t { kRank, kSize, kLocalRank, kLocalSize, kIncluded };

struct Kernel {
  int64_t query = 0;
  int64_t process_set = 0;
};

void* Create(TF_OpKernelConstruction* context) {
  auto* kernel = new Kernel();
  if (ReadInt(context, "query", &kernel->query) &&
      ReadInt(context, "process_set", &kernel->process_set)) {
    return kernel;
  }
  delete kernel;
  return nullptr;
}

void Destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

// Returns -1 if the set does not exist or the job is not initialized.
int Answer(const Kernel& kernel) {
  int set = static_cast<int>(kernel.process_set);
  switch (kernel.query) {
    case kRank:
      return smddp_rank();
    case kSize:
      return smddp_process_set_ranks(set, nullptr, 0);
    case kLocalRank:
      return smddp_local_rank();
    case kLocalSize:
      return smddp_local_size();
    default:
      break;
  }
  int size = smddp_process_set_ranks(set, nullptr, 0);
  if (size < 0) return -1;
  std::vector<int32_t> ranks(static_cast<size_t>(size));
  smddp_process_set_ranks(set, ranks.data(), size);
  for (int32_t rank : ranks) {
    if (rank == smddp_rank()) return 1;
  }
  return 0;
}

void Compute(void* kernel, TF_OpKernelContext* context) {
  const Kernel& self = *static_cast<Kernel*>(kernel);
  int answer = Answer(self);
  if (answer < 0 && !smddp_is_initialized()) {
    return FailOp(context, SMDDP_NOT_INITIALIZED,
                  "smddp_tf has not been initialized; call smddp_tf.init() first");
  }
  if (answer < 0) {
    std::string text = "there is no process set " + std::to_string(self.process_set);
    return FailOp(context, SMDDP_USAGE, text.c_str());
  }
  ScopedStatus status;
  TF_Tensor* out = TF_AllocateOutput(context, 0, SMDDP_INT32, nullptr, 0, sizeof(int32_t), status);
  if (!status.ok()) return TF_OpKernelContext_Failure(context, status);
  *static_cast<int32_t*>(TF_TensorData(out)) = answer;
  TF_DeleteTensor(out);
}

}  // namespace

void RegisterQueryOps() {
  // Stateful, to prevent constant folding.
  OpSpec spec{"SmddpQuery", {},          {"answer: int32"}, {"query: int", "process_set: int = 0"},
              true,         UnknownShape};
  RegisterOp(spec);
  RegisterKernels(spec, [](const char* op, const char* device, int) {
    return TF_NewKernelBuilder(op, device, Create, Compute, Destroy);
  });
}

}  // namespace smddp_tf
