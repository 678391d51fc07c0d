// What the two ways in which XLA calls a collective have in common.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "capi/smddp.h"

namespace smddp_tf {

inline constexpr const char* kXlaTarget = "smddp_collective";

// Runs the request on the tensors; shapes are static, so all ranks have as much for each rank.
// Returns one of capi/smddp.h's codes.
int RunXlaRequest(smddp_request request, const std::vector<smddp_tensor>& tensors);

// Both return "" or why that cannot be done. `tensorflow` is dlopen's handle of
// libtensorflow_cc.so.2.
std::string RegisterTypedXlaCall(void* tensorflow);   // xla_ffi.cc: TensorFlow 2.18 and later
std::string RegisterLegacyXlaCall(void* tensorflow);  // xla_legacy.cc: before

}  // namespace smddp_tf
