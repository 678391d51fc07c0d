// Shared by the kernels: attributes, inputs, outputs, and how errors are reported to TensorFlow.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "capi/smddp.h"
#include "tf/runtime/tf_c_api.h"

namespace smddp_tf {

// A TF_Status that is deleted at the end of its scope.
class ScopedStatus {
 public:
  ScopedStatus() : status_(TF_NewStatus()) {}
  ~ScopedStatus() { TF_DeleteStatus(status_); }
  ScopedStatus(const ScopedStatus&) = delete;
  ScopedStatus& operator=(const ScopedStatus&) = delete;
  operator TF_Status*() { return status_; }
  bool ok() const { return TF_GetCode(status_) == kTfOk; }

 private:
  TF_Status* status_;
};

// The attributes that collectives have in common; absent ones keep their defaults.
struct Attributes {
  int dtype = SMDDP_INT64;
  int64_t reduce_op = SMDDP_SUM;
  int64_t root = 0;
  double prescale = 1;
  double postscale = 1;
  int64_t process_set = 0;
  int64_t matching = SMDDP_IN_ORDER;
  int64_t num_tensors = 1;
  std::string name;
  std::string description;
};

enum AttributeSet : unsigned {
  kHasType = 1,
  kHasReduce = 2,
  kHasRoot = 4,
  kHasList = 8,          // a list of tensors
  kHasDescription = 16,  // for error messages
};

// How the attributes are declared.
inline constexpr const char* kNameAttr = "tensor_name: string = 'collective'";
inline constexpr const char* kSetAttr = "process_set: int = 0";
inline constexpr const char* kMatchingAttr = "matching: int = 0";
inline constexpr const char* kDescriptionAttr = "description: string = ''";
// Numbers as texts, since an attribute of type float would round them to 32 bits.
inline constexpr const char* kPrescaleAttr = "prescale: string = '1.0'";
inline constexpr const char* kPostscaleAttr = "postscale: string = '1.0'";

// Return false after a failure, which they have reported to TensorFlow.
bool ReadAttributes(TF_OpKernelConstruction* context, unsigned which, Attributes* attributes);
bool ReadString(TF_OpKernelConstruction* context, const char* name, std::string* value);
bool ReadInt(TF_OpKernelConstruction* context, const char* name, int64_t* value);
bool ReadType(TF_OpKernelConstruction* context, const char* name, int* value);

// For kernels whose only state is their attributes.
template <unsigned kWhich>
void* CreateAttributes(TF_OpKernelConstruction* context) {
  auto attributes = std::make_unique<Attributes>();
  return ReadAttributes(context, kWhich, attributes.get()) ? attributes.release() : nullptr;
}
inline void DestroyAttributes(void* kernel) { delete static_cast<Attributes*>(kernel); }

// Owns a tensor that TensorFlow was asked for, or why there is none.
class OwnedTensor {
 public:
  OwnedTensor() = default;
  ~OwnedTensor() {
    if (tensor_ != nullptr) TF_DeleteTensor(tensor_);
  }
  OwnedTensor(const OwnedTensor&) = delete;
  OwnedTensor& operator=(const OwnedTensor&) = delete;
  TF_Tensor* get() const { return tensor_; }
  void* data() const { return TF_TensorData(tensor_); }
  // Reports a failure to TensorFlow.
  bool Failed(TF_OpKernelContext* context) {
    if (!status_.ok()) TF_OpKernelContext_Failure(context, status_);
    return !status_.ok();
  }

 protected:
  TF_Tensor* tensor_ = nullptr;
  ScopedStatus status_;
};

// An input of the op.
struct Input : OwnedTensor {
  Input(TF_OpKernelContext* context, int index) { TF_GetInput(context, index, &tensor_, status_); }
};

// An output of the op, newly allocated.
struct Output : OwnedTensor {
  // memory: of smddp_memory; what the kernel was registered with.
  Output(TF_OpKernelContext* context, int index, int dtype, const std::vector<int64_t>& dims,
         int memory = SMDDP_HOST);
};

// Reads an input of one int64. Returns false after a failure, which it has reported to TensorFlow.
bool ReadScalar(TF_OpKernelContext* context, int input, int64_t* value);

// Inputs [first_input, first_input + count), paired with outputs of the same shapes at [0, count).
// An input's buffer is forwarded to its output where TensorFlow allows it; otherwise the output is
// newly allocated.
class TensorPairs {
 public:
  ~TensorPairs();
  // Returns false after a failure, which it has reported to TensorFlow.
  // memory: of smddp_memory.
  bool Open(TF_OpKernelContext* context, int first_input, int count, int memory);
  const std::vector<smddp_tensor>& tensors() const { return tensors_; }

 private:
  bool OpenOne(TF_OpKernelContext* context, int input, int output, int memory);

  std::vector<TF_Tensor*> held_;
  std::vector<std::vector<int64_t>> dims_;
  std::vector<smddp_tensor> tensors_;
};

smddp_request MakeRequest(int kind, const Attributes& attributes,
                          const std::vector<smddp_tensor>& tensors);

// What the name of a collective has at its end in one of several calls of its function.
inline std::string NameOfCall(int64_t number) { return " (call " + std::to_string(number) + ")"; }

// TensorFlow's error code for one of capi/smddp.h's codes.
int TensorFlowCode(int code);
void FailOp(TF_OpKernelContext* context, int code, const char* message);

std::vector<int64_t> Dims(const TF_Tensor* tensor);

using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);
struct OpSpec {
  std::string name;
  std::vector<const char*> inputs, outputs, attrs;
  bool stateful;
  ShapeFunction shape;
};
// Makes a kernel of an op for a device ("CPU" or "GPU"). `memory`, of smddp_memory, is where the
// tensors of type T are; all others are in host memory.
using MakeKernel = TF_KernelBuilder* (*)(const char* op, const char* device, int memory);

// Failures are written to stderr, because ops are registered while the library is loaded.
void RegisterOp(const OpSpec& spec);
// Registers the op's kernel for the CPU, and keeps those for GPUs until
// smddp_register_gpu_kernels().
void RegisterKernels(const OpSpec& spec, MakeKernel make);
// Registers the op's kernel for the CPU alone.
void RegisterCpuKernel(const OpSpec& spec, MakeKernel make);

// Shape functions.
void SameShapes(TF_ShapeInferenceContext* context, TF_Status* status);  // output i like input i
void SameShapesButLast(TF_ShapeInferenceContext* context, TF_Status* status);  // a further input
void UnknownShape(TF_ShapeInferenceContext* context, TF_Status* status);
void ScalarShape(TF_ShapeInferenceContext* context, TF_Status* status);  // one output
void NoOutputs(TF_ShapeInferenceContext* context, TF_Status* status);

inline constexpr const char* kTypeAttr =
    "T: {half, bfloat16, float, double, uint8, int8, int32, int64, bool, int16, uint16}";

}  // namespace smddp_tf
