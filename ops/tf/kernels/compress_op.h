// The ops of compressors: functions of their inputs, without peers. All tensors of one are on the
// same device.
#pragma once

#include <string>
#include <vector>

#include "tf/runtime/gpu_stream.h"
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

// memory, of smddp_memory: where the tensors are.
using ComputeFunction = void (*)(const CompressAttributes& self, TF_OpKernelContext* context,
                                 int memory);

template <ComputeFunction kCompute, int kMemory>
void ComputeCompress(void* self, TF_OpKernelContext* context) {
  kCompute(*static_cast<const CompressAttributes*>(self), context, kMemory);
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
  RegisterCompressorKernels(spec, [](const char* op, const char* device, int memory) {
    auto compute = memory == SMDDP_CUDA ? ComputeCompress<kCompute, SMDDP_CUDA>
                                        : ComputeCompress<kCompute, SMDDP_HOST>;
    return TF_NewKernelBuilder(op, device, CreateCompress<kWhich>, compute, DestroyCompress);
  });
}

}  // namespace smddp_tf
