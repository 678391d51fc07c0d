#include "capi/last_error.h"

#include <string>

#include "capi/smddp.h"

namespace {
thread_local std::string last_error;
}  // namespace

int smddp::Return(const Status& status) {
  if (!status.ok()) last_error = status.message();
  return static_cast<int>(status.code());
}

const char* smddp_last_error(void) { return last_error.c_str(); }
