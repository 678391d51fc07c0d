// Which iteration of which loop of a TF1 session runs, for the numbers of calls
// (smddp_tf/_src/graph/calls.py): a function that TensorFlow does not inline does not know.
#include "tf/runtime/op_kernel.h"
#include "tf/runtime/register.h"

namespace smddp_tf {
namespace {

void* Create(TF_OpKernelConstruction*) { return nullptr; }
void Destroy(void*) {}

// A bijection that changes half of the bits when one changes; Steele, Lea and Flood, "Fast
// Splittable Pseudorandom Number Generators", 2014.
uint64_t Mixed(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

// 0 outside of loops. The number of a loop's frame is a hash of the names and iterations of the
// loops around it, the same on all ranks.
void Compute(void*, TF_OpKernelContext* context) {
  uint64_t loop = TF_GetFrameId(context);
  uint64_t iteration = static_cast<uint64_t>(TF_GetIterId(context));
  ScopedStatus status;
  TF_Tensor* out = TF_AllocateOutput(context, 0, SMDDP_INT64, nullptr, 0, sizeof(int64_t), status);
  if (!status.ok()) return TF_OpKernelContext_Failure(context, status);
  uint64_t number = loop == 0 ? 0 : Mixed(loop + Mixed(iteration));
  *static_cast<int64_t*>(TF_TensorData(out)) = static_cast<int64_t>(number);
  TF_DeleteTensor(out);
}

}  // namespace

void RegisterIteration() {
  // Stateful, so that it is neither folded nor moved out of the loop.
  OpSpec spec{"SmddpIteration", {}, {"number: int64"}, {}, true, ScalarShape};
  RegisterOp(spec);
  RegisterKernels(spec, [](const char* op, const char* device, int) {
    return TF_NewKernelBuilder(op, device, Create, Compute, Destroy);
  });
}

}  // namespace smddp_tf
