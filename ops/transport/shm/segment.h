// Shared memory without a name: a memfd of one rank, opened by its peers through /proc.
//
// Nothing is ever created in /dev/shm, so nothing can be left there, its size does not limit us,
// and no other user can open the segment. Peers must share a kernel and a process namespace;
// whoever cannot open the segment, or does not find the creator's cookie in it, does not share
// memory, whatever host names say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/status.h"

namespace smddp {

class Segment {
 public:
  Segment() = default;
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(Segment&& other) noexcept;

  // Zeroed, and backed by memory at once: a lack of it is an error here, not a SIGBUS later.
  Status Create(size_t bytes);
  Status Attach(int creator_pid, int creator_fd, size_t bytes);
  // Peers have attached; the descriptor is needed no more.
  void CloseDescriptor();

  void* memory() const { return memory_; }
  int fd() const { return fd_; }

  // A number that nobody else can know or has drawn before; never 0.
  static uint64_t NewCookie();
  // Ranks with equal keys may share memory (same kernel, same process namespace).
  static std::string NodeKey();

 private:
  Status Map(size_t bytes);
  void* memory_ = nullptr;
  size_t bytes_ = 0;
  int fd_ = -1;
};

}  // namespace smddp
