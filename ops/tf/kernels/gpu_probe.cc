// An op that fails, and says why, unless compressors can run on the GPU that has its input, in
// TensorFlow's stream: smddp_tf/_graph/gpu_compressors.py runs it once for each GPU.
#include "tf/runtime/gpu_stream.h"
#include "tf/runtime/op_kernel.h"
#include "tf/runtime/register.h"

namespace smddp_tf {
namespace {

void* CreateProbe(TF_OpKernelConstruction*) { return nullptr; }
void DestroyProbe(void*) {}

template <int kMemory>
void Probe(void*, TF_OpKernelContext* context) {
  if (kMemory != SMDDP_CUDA) return FailOp(context, SMDDP_USAGE, "TensorFlow runs ops on the CPU");
  Input in(context, 0);
  if (in.Failed(context)) return;
  if (GpuStreamOf(context) == SMDDP_EVERY_STREAM) {
    return FailOp(context, SMDDP_SYSTEM, "TensorFlow's stream cannot be found");
  }
  int code = smddp_gpu_compressors(TF_TensorData(in.get()));
  if (code != SMDDP_OK) FailOp(context, code, smddp_last_error());
}

}  // namespace

void RegisterGpuProbe() {
  OpSpec spec{"SmddpGpuProbe", {"x: T"}, {}, {kTypeAttr}, true, NoOutputs};
  RegisterOp(spec);
  RegisterKernels(spec, [](const char* op, const char* device, int memory) {
    auto compute = memory == SMDDP_CUDA ? Probe<SMDDP_CUDA> : Probe<SMDDP_HOST>;
    return TF_NewKernelBuilder(op, device, CreateProbe, compute, DestroyProbe);
  });
}

}  // namespace smddp_tf
