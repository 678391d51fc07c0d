// The ops of explicit collectives; smddp_tf/_graph/order.py keeps them in program order.
#include "tf/kernels/ragged_call.h"
#include "tf/runtime/register.h"

namespace smddp_tf {
namespace {

template <int kKind>
class SameShapesCall : public AsyncCall {
  void Start() override {
    if (!pairs_.Open(context_, 0, static_cast<int>(attributes().num_tensors))) return Finish();
    Post(MakeRequest(kKind, attributes(), pairs_.tensors()), [this] { Finish(); });
  }

  TensorPairs pairs_;
};

class BarrierCall : public AsyncCall {
  void Start() override {
    Post(MakeRequest(SMDDP_BARRIER, attributes(), {}), [this] { Finish(); });
  }
};

class AllgatherCall : public RaggedCall {
  void Start() override { PostRagged(SMDDP_ALLGATHER, nullptr, 0); }
};

void ComputeJoin(void*, TF_OpKernelContext* context) {
  ScopedStatus status;
  TF_Tensor* out = TF_AllocateOutput(context, 0, SMDDP_INT32, nullptr, 0, sizeof(int32_t), status);
  if (!status.ok()) return TF_OpKernelContext_Failure(context, status);
  int code = smddp_join(static_cast<int*>(TF_TensorData(out)));
  if (code != SMDDP_OK) FailOp(context, code, smddp_last_error());
  TF_DeleteTensor(out);
}

}  // namespace

void RegisterCollectiveOps() {
  constexpr unsigned kAllreduceAttrs = kHasType | kHasReduce | kHasList | kHasDescription;
  RegisterAsync<SameShapesCall<SMDDP_ALLREDUCE>, CreateAttributes<kAllreduceAttrs>,
                DestroyAttributes>(
      {"SmddpAllreduce",
       {"tensors: N * T"},
       {"outputs: N * T"},
       {kTypeAttr, "N: int >= 1", "reduce_op: int", "prescale: float = 1.0",
        "postscale: float = 1.0", "description: string = ''", kNameAttr, kSetAttr, kMatchingAttr},
       true,
       SameShapes});
  RegisterAsync<SameShapesCall<SMDDP_BROADCAST>, CreateAttributes<kHasType | kHasRoot | kHasList>,
                DestroyAttributes>(
      {"SmddpBroadcast",
       {"tensors: N * T"},
       {"outputs: N * T"},
       {kTypeAttr, "N: int >= 1", "root_rank: int", kNameAttr, kSetAttr, kMatchingAttr},
       true,
       SameShapes});
  RegisterAsync<AllgatherCall, CreateAttributes<kHasType>, DestroyAttributes>(
      {"SmddpAllgather",
       {"tensor: T"},
       {"output: T"},
       {kTypeAttr, kNameAttr, kSetAttr, kMatchingAttr},
       true,
       UnknownShape});
  RegisterOp(
      {"SmddpJoin", {}, {"last: int32"}, {kNameAttr, kSetAttr, kMatchingAttr}, true, UnknownShape});
  RegisterKernel("SmddpJoin", TF_NewKernelBuilder("SmddpJoin", "CPU", CreateAttributes<0>,
                                                  ComputeJoin, DestroyAttributes));
  RegisterAsync<BarrierCall, CreateAttributes<0>, DestroyAttributes>(
      {"SmddpBarrier", {}, {}, {kNameAttr, kSetAttr, kMatchingAttr}, true, NoOutputs});
}

}  // namespace smddp_tf
