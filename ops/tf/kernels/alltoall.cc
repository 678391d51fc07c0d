#include <algorithm>  // for copy_n

#include "capi/smddp.h"
#include "tf/kernels/ragged_call.h"
#include "tf/runtime/register.h"

namespace smddp_tf {
namespace {

class AlltoallCall : public RaggedCall {
  void Start() override {
    Input splits(context_, 1);
    if (splits.Failed(context_)) return Finish();
    PostRagged(SMDDP_ALLTOALL, static_cast<const int32_t*>(TF_TensorData(splits.get())),
               static_cast<int>(TF_TensorElementCount(splits.get())));
  }

  bool AllocateOthers(const int64_t* rows, int ranks) override {
    ScopedStatus status;
    int64_t n = ranks;
    TF_Tensor* received =
        TF_AllocateOutput(context_, 1, SMDDP_INT32, &n, 1, static_cast<size_t>(n) * 4, status);
    if (!status.ok()) {
      TF_OpKernelContext_Failure(context_, status);
      return false;
    }
    std::copy_n(rows, ranks, static_cast<int32_t*>(TF_TensorData(received)));
    TF_DeleteTensor(received);
    return true;
  }
};

}  // namespace

void RegisterAlltoall() {
  RegisterCollective<AlltoallCall, CreateAttributes<kHasType>, DestroyAttributes>(
      "Alltoall", {{"tensor: T", "splits: int32"},
                   {"output: T", "received_splits: int32"},
                   {kTypeAttr},
                   UnknownShape});
}

}  // namespace smddp_tf
