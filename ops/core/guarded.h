// The one guard where an exception must not go on: at the functions of the C API, at C callbacks
// and at the bodies of threads. All exceptions of this library say that memory or threads have run
// out; what else fails is a Status.
#pragma once

#include <exception>
#include <string>
#include <utility>  // for forward

#include "core/status.h"

namespace smddp {

inline Status OutOf(const std::exception& error) {
  return {Code::kSystem, std::string("this rank has no memory or threads left: ") + error.what()};
}

// Returns fn(), or failed(status) if that throws. If `failed` throws too, not even a message fits
// into memory any more.
template <typename Fn, typename Failed>
auto Guarded(Fn&& fn, Failed&& failed) -> decltype(fn()) {
  try {
    return std::forward<Fn>(fn)();
  } catch (const std::exception& error) {
    return std::forward<Failed>(failed)(OutOf(error));
  }
}

}  // namespace smddp
