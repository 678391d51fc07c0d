// What the C API keeps for each thread: the message of its last failure, and the next op's name.
#pragma once

#include <string>

#include "core/guarded.h"
#include "core/status.h"

namespace smddp {

// The status's message, with what smddp_suspect() said if the failure may come from that.
std::string Explained(const Status& status);

// Keeps the message of a failure for smddp_last_error(). Returns the code, of smddp_code.
int Return(const Status& status);

// Return() of what a function returns that may throw; other ranks do not wait for it.
template <typename Fn>
int ReturnOf(Fn&& fn) {
  return Guarded([&] { return Return(fn()); }, Return);
}

}  // namespace smddp
