// Collectives inside XLA programs (jit_compile=True), on the host.
//
// XLA runs no TensorFlow kernels but calls a custom-call target, of which it has two kinds. Neither
// needs an XLA header, so one binary serves all versions; smddp_tf/_graph/xla.py emits the call.
#include "tf/xla/xla_call.h"

#include <dlfcn.h>

#include "tf/runtime/register.h"

namespace smddp_tf {
namespace {

std::vector<int64_t> EvenParts(const smddp_request& request) {
  int size = smddp_process_set_ranks(request.process_set, nullptr, 0);
  size_t ranks = static_cast<size_t>(size < 1 ? 1 : size);
  int64_t bytes = static_cast<int64_t>(SizeOf(request.dtype));
  const smddp_tensor& tensor = request.tensors[0];
  for (int i = 0; i < tensor.ndim; ++i) bytes *= tensor.dims[i];
  return request.kind == SMDDP_ALLGATHER
             ? std::vector<int64_t>(ranks, bytes)
             : std::vector<int64_t>(ranks * ranks, bytes / static_cast<int64_t>(ranks));
}

}  // namespace

int RunXlaRequest(smddp_request request, const std::vector<smddp_tensor>& tensors) {
  request.num_tensors = static_cast<int32_t>(tensors.size());
  request.tensors = tensors.data();
  std::vector<int64_t> parts;
  if (request.kind == SMDDP_ALLGATHER || request.kind == SMDDP_ALLTOALL) {
    parts = EvenParts(request);
    request.part_bytes = parts.data();
  }
  return smddp_run(&request);
}

}  // namespace smddp_tf

// Registers the custom call with XLA. Returns "", or the reason why that failed, which stays valid
// until this thread's next call.
extern "C" SMDDP_EXPORT const char* smddp_xla_register(int typed) {
  static thread_local std::string problem;
  constexpr const char* kLibrary = "libtensorflow_cc.so.2";
  void* tensorflow = dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD);
  if (tensorflow == nullptr) {
    problem = std::string(kLibrary) + " is not loaded";
  } else {
    problem = typed ? smddp_tf::RegisterTypedXlaCall(tensorflow)
                    : smddp_tf::RegisterLegacyXlaCall(tensorflow);
  }
  return problem.c_str();
}
