#include "tf/runtime/op_kernel.h"

#include <sys/mman.h>

#include <cstddef>  // for offsetof
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/c_numbers.h"
#include "core/dtype.h"

namespace smddp_tf {
namespace {

// New memory costs a page fault per 4 KiB, three times as much as copying it; huge pages make that
// one fault per 2 MiB.
void AskForLargePages(void* data, size_t bytes) {
  constexpr uintptr_t kLarge = 2 << 20;
  uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kLarge - 1) / kLarge * kLarge;
  uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / kLarge * kLarge;
  // Advice only: a kernel without huge pages refuses it, which is harmless.
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

bool Report(TF_OpKernelConstruction* context, ScopedStatus* status) {
  if (!status->ok()) TF_OpKernelConstruction_Failure(context, *status);
  return status->ok();
}

bool ReadFactor(TF_OpKernelConstruction* context, const char* name, double* value) {
  std::string text;
  if (!ReadString(context, name, &text)) return false;
  smddp::CNumbers as_in_c;
  char* end = nullptr;
  *value = std::strtod(text.c_str(), &end);
  if (!text.empty() && *end == '\0') return true;
  ScopedStatus status;
  std::string problem = std::string(name) + "='" + text + "' is not a number";
  TF_SetStatus(status, kTfInvalidArgument, problem.c_str());
  return Report(context, &status);
}

}  // namespace

bool ReadString(TF_OpKernelConstruction* context, const char* name, std::string* value) {
  ScopedStatus status;
  int32_t list_size = 0, bytes = 0;
  TF_OpKernelConstruction_GetAttrSize(context, name, &list_size, &bytes, status);
  if (!Report(context, &status)) return false;
  value->assign(static_cast<size_t>(bytes), '\0');
  TF_OpKernelConstruction_GetAttrString(context, name, &(*value)[0], value->size(), status);
  return Report(context, &status);
}

bool ReadInt(TF_OpKernelConstruction* context, const char* name, int64_t* value) {
  ScopedStatus status;
  TF_OpKernelConstruction_GetAttrInt64(context, name, value, status);
  return Report(context, &status);
}

bool ReadType(TF_OpKernelConstruction* context, const char* name, int* value) {
  ScopedStatus status;
  TF_OpKernelConstruction_GetAttrType(context, name, value, status);
  return Report(context, &status);
}

bool ReadAttributes(TF_OpKernelConstruction* context, unsigned which, Attributes* attributes) {
  if ((which & kHasType) && !ReadType(context, "T", &attributes->dtype)) return false;
  if (which & kHasReduce) {
    if (!ReadInt(context, "reduce_op", &attributes->reduce_op)) return false;
    if (!ReadFactor(context, "prescale", &attributes->prescale)) return false;
    if (!ReadFactor(context, "postscale", &attributes->postscale)) return false;
  }
  if ((which & kHasRoot) && !ReadInt(context, "root_rank", &attributes->root)) return false;
  if ((which & kHasList) && !ReadInt(context, "N", &attributes->num_tensors)) return false;
  if ((which & kHasDescription) && !ReadString(context, "description", &attributes->description)) {
    return false;
  }
  return ReadInt(context, "process_set", &attributes->process_set) &&
         ReadInt(context, "matching", &attributes->matching) &&
         ReadString(context, "tensor_name", &attributes->name);
}

std::vector<int64_t> Dims(const TF_Tensor* tensor) {
  std::vector<int64_t> dims(TF_NumDims(tensor));
  for (size_t i = 0; i < dims.size(); ++i) dims[i] = TF_Dim(tensor, static_cast<int>(i));
  return dims;
}

bool ReadScalar(TF_OpKernelContext* context, int input, int64_t* value) {
  Input in(context, input);
  if (in.Failed(context)) return false;
  *value = *static_cast<const int64_t*>(TF_TensorData(in.get()));
  return true;
}

Output::Output(TF_OpKernelContext* context, int index, int dtype, const std::vector<int64_t>& dims,
               int memory) {
  const smddp::DTypeInfo* info = smddp::FindDType(dtype);
  size_t bytes = info == nullptr ? 0 : info->size;
  for (int64_t dim : dims) bytes *= static_cast<size_t>(dim);
  tensor_ = TF_AllocateOutput(context, index, dtype, dims.data(), static_cast<int>(dims.size()),
                              bytes, status_);
  if (status_.ok() && memory == SMDDP_HOST) AskForLargePages(TF_TensorData(tensor_), bytes);
}

TensorPairs::~TensorPairs() {
  for (TF_Tensor* tensor : held_) TF_DeleteTensor(tensor);
}

bool TensorPairs::Open(TF_OpKernelContext* context, int first_input, int count, int memory) {
  dims_.resize(count);
  tensors_.reserve(count);
  held_.reserve(2 * count);
  for (int i = 0; i < count; ++i) {
    if (!OpenOne(context, first_input + i, i, memory)) return false;
  }
  return true;
}

bool TensorPairs::OpenOne(TF_OpKernelContext* context, int input, int output, int memory) {
  ScopedStatus status;
  TF_Tensor* in = nullptr;
  TF_GetInput(context, input, &in, status);
  if (!status.ok()) {
    TF_OpKernelContext_Failure(context, status);
    return false;
  }
  dims_[output] = Dims(in);
  const std::vector<int64_t>& dims = dims_[output];
  // TensorFlow does not forward a buffer to which we hold a reference.
  TF_DeleteTensor(in);
  int forwarded = -1;
  TF_Tensor* out = TF_ForwardInputOrAllocateOutput(
      context, &input, 1, output, dims.data(), static_cast<int>(dims.size()), &forwarded, status);
  if (!status.ok()) {
    TF_OpKernelContext_Failure(context, status);
    return false;
  }
  held_.push_back(out);
  const void* from = TF_TensorData(out);
  if (forwarded != input) {
    if (memory == SMDDP_HOST) AskForLargePages(TF_TensorData(out), TF_TensorByteSize(out));
    TF_GetInput(context, input, &in, status);
    if (!status.ok()) {
      TF_OpKernelContext_Failure(context, status);
      return false;
    }
    held_.push_back(in);
    from = TF_TensorData(in);
  }
  tensors_.push_back({from, TF_TensorData(out), static_cast<int32_t>(dims.size()), dims.data()});
  return true;
}

smddp_request MakeRequest(int kind, const Attributes& attributes,
                          const std::vector<smddp_tensor>& tensors) {
  smddp_request request = {};
  request.kind = kind;
  request.dtype = attributes.dtype;
  request.op = static_cast<int32_t>(attributes.reduce_op);
  request.root = static_cast<int32_t>(attributes.root);
  request.process_set = static_cast<int32_t>(attributes.process_set);
  request.prescale = attributes.prescale;
  request.postscale = attributes.postscale;
  request.matching = static_cast<int32_t>(attributes.matching);
  // An eager op of many names has none in its attribute; smddp_tf/_src/graph/eager_names.py says
  // why.
  request.name = attributes.name.empty() ? smddp_next_name() : attributes.name.c_str();
  request.description = attributes.description.c_str();
  request.num_tensors = static_cast<int32_t>(tensors.size());
  request.tensors = tensors.data();
  return request;
}

int TensorFlowCode(int code) {
  switch (code) {
    case SMDDP_OK:
      return kTfOk;
    case SMDDP_USAGE:
      return kTfInvalidArgument;
    case SMDDP_MISMATCH:
    case SMDDP_NOT_INITIALIZED:
      return kTfFailedPrecondition;
    case SMDDP_TIMEOUT:
      return kTfDeadlineExceeded;
    case SMDDP_REMOTE:
      return kTfUnknown;
    default:
      return kTfInternal;
  }
}

void FailOp(TF_OpKernelContext* context, int code, const char* message) {
  ScopedStatus status;
  TF_SetStatus(status, TensorFlowCode(code), message);
  TF_OpKernelContext_Failure(context, status);
}

void RegisterOp(const OpSpec& spec) {
  ScopedStatus status;
  TF_OpDefinitionBuilder* builder = TF_NewOpDefinitionBuilder(spec.name.c_str());
  for (const char* input : spec.inputs) TF_OpDefinitionBuilderAddInput(builder, input);
  for (const char* output : spec.outputs) TF_OpDefinitionBuilderAddOutput(builder, output);
  for (const char* attr : spec.attrs) TF_OpDefinitionBuilderAddAttr(builder, attr);
  if (spec.stateful) TF_OpDefinitionBuilderSetIsStateful(builder, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, spec.shape);
  TF_RegisterOpDefinition(builder, status);
  if (!status.ok()) fprintf(stderr, "smddp_tf: op %s: %s\n", spec.name.c_str(), TF_Message(status));
}

namespace {

void CopyShapes(TF_ShapeInferenceContext* context, int64_t count, TF_Status* status) {
  TF_ShapeHandle* handle = TF_NewShapeHandle();
  for (int i = 0; i < count; ++i) {
    TF_ShapeInferenceContextGetInput(context, i, handle, status);
    if (TF_GetCode(status) == kTfOk) TF_ShapeInferenceContextSetOutput(context, i, handle, status);
    if (TF_GetCode(status) != kTfOk) break;
  }
  TF_DeleteShapeHandle(handle);
}

}  // namespace

void SameShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  CopyShapes(context, TF_ShapeInferenceContextNumInputs(context), status);
}

void SameShapesButLast(TF_ShapeInferenceContext* context, TF_Status* status) {
  CopyShapes(context, TF_ShapeInferenceContextNumInputs(context) - 1, status);
}

void UnknownShape(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

void ScalarShape(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* scalar = TF_ShapeInferenceContextScalar(context);
  TF_ShapeInferenceContextSetOutput(context, 0, scalar, status);
  TF_DeleteShapeHandle(scalar);
}

void NoOutputs(TF_ShapeInferenceContext*, TF_Status* status) { TF_SetStatus(status, kTfOk, ""); }

}  // namespace smddp_tf
