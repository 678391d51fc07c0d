// A Bootstrap by functions of the caller's, who connects the ranks by other means than MPI.
#pragma once

#include <cstdint>
#include <memory>

#include "transport/bootstrap/bootstrap.h"

namespace smddp {

// Mirrors smddp_bootstrap (capi/smddp.h), which says what the functions do.
struct BootstrapCallbacks {
  int rank = 0, size = 1;
  void* context = nullptr;
  int (*start)(void* context, const void* send, int64_t bytes) = nullptr;
  int (*test)(void* context, void* recv, int64_t bytes) = nullptr;
  void (*fail)(void* context, const char* why) = nullptr;
  const char* (*why)(void* context) = nullptr;
  const char* host = nullptr;
  void (*sign)(void* context, const void* data, int64_t bytes, void* signature) = nullptr;
};

// Between nodes, ranks are connected by TCP.
std::shared_ptr<Bootstrap> MakeCallbackBootstrap(const BootstrapCallbacks& callbacks);

}  // namespace smddp
