// Status: the result of every function that can fail across a layer boundary.
//
// Recoverable failures (bad arguments, a peer that died, a timeout) are Status values; a broken
// invariant of our own code is an assert. Layers add context as a Status travels upward.
#pragma once

#include <string>
#include <utility>  // for move

namespace smddp {

// The values are part of the C API (capi/smddp.h).
enum class Code : int {
  kOk = 0,
  kUsage = 1,     // the caller's arguments are wrong; nothing was sent
  kMismatch = 2,  // the ranks' requests differ; the job can continue
  kTimeout = 3,   // a limit on waiting passed; the communicator is broken
  kRemote = 4,    // a peer died or left; the communicator is broken
  kSystem = 5,    // an operating system or MPI call failed
  kNotInitialized = 6,
  // Internal, from a collective to its channel: run it again when its turn has come.
  kOutOfTurn = 7,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same failure, with context prepended.
  Status Within(const std::string& context) const {
    return ok() ? *this : Status(code_, context + ": " + message_);
  }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

}  // namespace smddp
