// Shared by both kinds of XLA custom call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "capi/smddp.h"

namespace smddp_tf {

inline constexpr const char* kXlaTarget = "smddp_collective";
// XLA's names of the platforms that have the custom call.
inline constexpr const char* kXlaHost = "Host";
inline constexpr const char* kXlaCuda = "CUDA";

// Runs the request on the tensors. Shapes are static, so the parts of an allgather or alltoall are
// equal. The last operand and the last result of a custom call are the token that orders the calls,
// an int64: in a TF1 session the number of the call of the function, else 0. The tokens are in the
// same memory as the tensors. `size`, if not 0, and `rank` are those that the program was compiled
// for. Returns one of capi/smddp.h's codes.
int RunXlaRequest(smddp_request request, const std::vector<smddp_tensor>& tensors, int rank,
                  int size, const void* token, void* next_token);

// Both return "", or the reason why registration failed. `tensorflow` is the dlopen handle of
// libtensorflow_cc.so.2.
std::string RegisterTypedXlaCall(void* tensorflow);   // xla_ffi.cc: TensorFlow 2.18 and later
std::string RegisterLegacyXlaCall(void* tensorflow);  // xla_legacy.cc: earlier versions

}  // namespace smddp_tf
