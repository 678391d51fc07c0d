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
  OpSpec spec{"SmddpJoin", {},          {"last: int32"}, {kNameAttr, kSetAttr, kMatchingAttr},
              true,        UnknownShape};
  RegisterOp(spec);
  RegisterKernels(spec, [](const char* op, const char* device, int) {
    return TF_NewKernelBuilder(op, device, CreateAttributes<0>, ComputeJoin, DestroyAttributes);
  });
}

}  // namespace smddp_tf
