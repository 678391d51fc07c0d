#include "capi/last_error.h"

#include <mutex>
#include <string>

#include "capi/smddp.h"

using smddp::ReturnOf;
using smddp::Status;

namespace {

thread_local std::string last_error;
thread_local std::string next_name;

std::mutex suspicion_mutex;
std::string* const suspicion = new std::string;  // never destroyed: threads may outlive statics

}  // namespace

std::string smddp::Explained(const Status& status) {
  bool ranks_differ = status.code() == Code::kMismatch || status.code() == Code::kTimeout ||
                      status.code() == Code::kRemote;
  std::lock_guard<std::mutex> lock(suspicion_mutex);
  if (!ranks_differ || suspicion->empty()) return status.message();
  return status.message() + "\n" + *suspicion;
}

int smddp::Return(const Status& status) {
  if (!status.ok()) last_error = Explained(status);
  return static_cast<int>(status.code());
}

const char* smddp_last_error(void) { return last_error.c_str(); }

void smddp_name_next(const char* name) {
  next_name.clear();
  ReturnOf([&]() -> Status {
    next_name = name;
    return {};
  });
}

const char* smddp_next_name(void) { return next_name.c_str(); }

void smddp_suspect(const char* text) {
  ReturnOf([&]() -> Status {
    std::lock_guard<std::mutex> lock(suspicion_mutex);
    *suspicion = text;
    return {};
  });
}
