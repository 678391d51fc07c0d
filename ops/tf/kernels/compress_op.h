// The ops of compressors: functions of their inputs, without peers, on the CPU. On a GPU
// smddp_tf/_src/graph/ops/fused.py uses TensorFlow's own.
#pragma once

#include <string>
#include <vector>

#include "tf/runtime/op_kernel.h"
#include "tf/runtime/register.h"

namespace smddp_tf {

struct CompressAttributes {
  int dtype = SMDDP_FLOAT32;  // of the gradient
  int64_t count = 0;          // of its elements
  int64_t divisor = 1;        // of the sum
  int64_t k = 0;              // elements to select
};
// Which of them an op has besides the dtype.
enum CompressAttributeSet : unsigned { kTypeOnly = 0, kHasCountAndDivisor = 1, kHasK = 2 };

inline constexpr const char* kGradientType = "dtype: {half, bfloat16, float, double}";

template <unsigned kWhich>
void* CreateCompress(TF_OpKernelConstruction* context) {
  auto self = std::make_unique<CompressAttributes>();
  bool read = ReadType(context, "dtype", &self->dtype) &&
              (!(kWhich & kHasCountAndDivisor) || (ReadInt(context, "count", &self->count) &&
                                                   ReadInt(context, "divisor", &self->divisor))) &&
              (!(kWhich & kHasK) || ReadInt(context, "k", &self->k));
  return read ? self.release() : nullptr;
}
inline void DestroyCompress(void* self) { delete static_cast<CompressAttributes*>(self); }

using ComputeFunction = void (*)(const CompressAttributes& self, TF_OpKernelContext* context);

template <ComputeFunction kCompute>
void ComputeCompress(void* self, TF_OpKernelContext* context) {
  kCompute(*static_cast<const CompressAttributes*>(self), context);
}

// Reports the failure of a function of the C API to TensorFlow.
inline void ReportCode(TF_OpKernelContext* context, int code) {
  if (code != SMDDP_OK) FailOp(context, code, smddp_last_error());
}

template <unsigned kWhich, ComputeFunction kCompute>
void RegisterCompressOp(const char* name, const std::vector<const char*>& inputs,
                        const std::vector<const char*>& outputs,
                        const std::vector<const char*>& attrs) {
  OpSpec spec{name, inputs, outputs, attrs, false, UnknownShape};
  RegisterOp(spec);
  RegisterCpuKernel(spec, [](const char* op, const char* device, int) {
    return TF_NewKernelBuilder(op, device, CreateCompress<kWhich>, ComputeCompress<kCompute>,
                               DestroyCompress);
  });
}

}  // namespace smddp_tf
