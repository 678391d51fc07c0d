// Kernels for the device that TensorFlow calls "GPU".
//
// As with TensorFlow's own, int32 and everything that is not data (the numbers of runs and calls,
// the splits of an alltoall) is in host memory there. Without these kernels TensorFlow copies
// tensors to the CPU and back by itself.
#include <cstdio>
#include <string>
#include <utility>  // for move
#include <vector>

#include "tf/runtime/op_kernel.h"

namespace smddp_tf {
namespace {

// The types of kTypeAttr.
constexpr int kTypes[] = {SMDDP_FLOAT16, SMDDP_BFLOAT16, SMDDP_FLOAT32, SMDDP_FLOAT64,
                          SMDDP_UINT8,   SMDDP_INT8,     SMDDP_INT32,   SMDDP_INT64,
                          SMDDP_BOOL,    SMDDP_INT16,    SMDDP_UINT16};

// Of "tensors: N * T": "tensors", and whether it is of type T.
struct Argument {
  explicit Argument(const std::string& declaration)
      : name(declaration.substr(0, declaration.find(':'))),
        typed(declaration.size() > 2 && declaration.substr(declaration.size() - 2) == " T") {}
  std::string name;
  bool typed;
};

struct Deferred {
  std::string op;
  std::vector<Argument> arguments;
  MakeKernel make;
};

// Never destroyed, as it may be used while the process exits.
std::vector<Deferred>& DeferredKernels() {
  static auto* kernels = new std::vector<Deferred>();
  return *kernels;
}

void Register(const std::string& op, TF_KernelBuilder* builder) {
  ScopedStatus status;
  TF_RegisterKernelBuilder(op.c_str(), builder, status);
  if (!status.ok()) fprintf(stderr, "smddp_tf: kernel of %s: %s\n", op.c_str(), TF_Message(status));
}

// type 0: the op has no type T.
void RegisterOnGpu(const Deferred& kernel, int type) {
  bool on_device = type != 0 && type != SMDDP_INT32;
  TF_KernelBuilder* builder =
      kernel.make(kernel.op.c_str(), "GPU", on_device ? SMDDP_CUDA : SMDDP_HOST);
  ScopedStatus status;
  if (type != 0) TF_KernelBuilder_TypeConstraint(builder, "T", type, status);
  for (const Argument& argument : kernel.arguments) {
    if (argument.typed && on_device) continue;
    TF_KernelBuilder_HostMemory(builder, argument.name.c_str());
  }
  Register(kernel.op, builder);
}

}  // namespace

void RegisterCpuKernel(const OpSpec& spec, MakeKernel make) {
  Register(spec.name, make(spec.name.c_str(), "CPU", SMDDP_HOST));
}

void RegisterKernels(const OpSpec& spec, MakeKernel make) {
  RegisterCpuKernel(spec, make);
  Deferred deferred{spec.name, {}, make};
  for (const char* input : spec.inputs) deferred.arguments.emplace_back(input);
  for (const char* output : spec.outputs) deferred.arguments.emplace_back(output);
  DeferredKernels().push_back(std::move(deferred));
}

}  // namespace smddp_tf

// Call it once, before TensorFlow places the first op.
extern "C" SMDDP_EXPORT void smddp_register_gpu_kernels() {
  using namespace smddp_tf;
  for (const Deferred& kernel : DeferredKernels()) {
    bool typed = false;
    for (const Argument& argument : kernel.arguments) typed = typed || argument.typed;
    if (!typed) {
      RegisterOnGpu(kernel, 0);
      continue;
    }
    for (int type : kTypes) RegisterOnGpu(kernel, type);
  }
}
