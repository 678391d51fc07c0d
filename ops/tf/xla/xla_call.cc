// Collectives inside XLA programs (jit_compile=True), on the host and on GPUs.
//
// XLA runs no TensorFlow kernels but calls a custom-call target, of which it has two kinds. Neither
// needs an XLA header, so one binary serves all versions; smddp_tf/_src/graph/xla.py emits the
// call.
#include "tf/xla/xla_call.h"

#include <dlfcn.h>

#include <cstring>
#include <string>

#include "tf/runtime/op_kernel.h"

namespace smddp_tf {

int RunXlaRequest(smddp_request request, const std::vector<smddp_tensor>& tensors, int rank,
                  int size, const void* token, void* next_token) {
  if (size != 0) {
    int code = smddp_check_place(request.process_set, rank, size);
    if (code != SMDDP_OK) return code;
  }
  bool on_host = request.memory == SMDDP_HOST;
  int64_t call = 0;
  if (on_host) {
    std::memcpy(&call, token, sizeof call);
    std::memcpy(next_token, &call, sizeof call);
  } else if (request.matching == SMDDP_BY_NAME) {  // it is 0 elsewhere
    int code = smddp_copy_to_host(&call, token, sizeof call, request.stream);
    if (code != SMDDP_OK) return code;
  }
  std::string name = request.name;
  if (call != 0) name += NameOfCall(call);
  request.name = name.c_str();
  request.num_tensors = static_cast<int32_t>(tensors.size());
  request.tensors = tensors.data();
  int code = smddp_run(&request);
  if (code != SMDDP_OK || on_host) return code;
  return smddp_copy_from_host(next_token, &call, sizeof call);
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
