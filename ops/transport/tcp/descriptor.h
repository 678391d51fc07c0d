// A file descriptor of this process alone: closed with its owner, and in children that are forked.
//
// A child that kept a connection open would hide from the peers that its parent has died.
#pragma once

#include <string>

#include "core/status.h"

namespace smddp {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd);  // -1: none
  ~Descriptor() { Close(); }
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void Close();

 private:
  int fd_ = -1;
};

// `what`, and what errno says.
Status FailedCall(const std::string& what);

}  // namespace smddp
