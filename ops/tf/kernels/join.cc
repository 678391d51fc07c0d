#include "capi/smddp.h"
#include "tf/runtime/op_kernel.h"
#include "tf/runtime/register.h"

namespace smddp_tf {
namespace {

void ComputeJoin(void*, TF_OpKernelContext* context) {
  ScopedStatus status;
  TF_Tensor* out = TF_AllocateOutput(context, 0, SMDDP_INT32, nullptr, 0, sizeof(int32_t), status);
  if (!status.ok()) return TF_OpKernelContext_Failure(context, status);
  int code = smddp_join(static_cast<int*>(TF_TensorData(out)));
  if (code != SMDDP_OK) FailOp(context, code, smddp_last_error());
  TF_DeleteTensor(out);
}

}  // namespace

void RegisterJoin() {
  RegisterOp(
      {"SmddpJoin", {}, {"last: int32"}, {kNameAttr, kSetAttr, kMatchingAttr}, true, UnknownShape});
  RegisterKernel("SmddpJoin", TF_NewKernelBuilder("SmddpJoin", "CPU", CreateAttributes<0>,
                                                  ComputeJoin, DestroyAttributes));
}

}  // namespace smddp_tf
