// What the C API keeps for each thread: the message of its last failure, and the next op's name.
#pragma once

#include <exception>
#include <string>

#include "core/status.h"

namespace smddp {

// The status's message, with what smddp_suspect() said if the failure may come from that.
std::string Explained(const Status& status);

// Keeps the message of a failure for smddp_last_error(). Returns the code, of smddp_code.
int Return(const Status& status);

// Out of memory or threads, which C must not see as an exception.
inline Status OutOf(const std::exception& error) {
  return {Code::kSystem, std::string("this rank has no memory or threads left: ") + error.what()};
}

// Return() of what a function returns that may throw; other ranks do not wait for it.
template <typename Fn>
int ReturnOf(Fn&& fn) {
  try {
    return Return(fn());
  } catch (const std::exception& error) {
    return Return(OutOf(error));
  }
}

}  // namespace smddp
