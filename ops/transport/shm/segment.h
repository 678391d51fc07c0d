// Segment: anonymous shared memory, a memfd of one rank that its peers open through /proc.
//
// Nothing is created in /dev/shm, so nothing can be left behind there, its size is no limit, and no
// other user can open the segment. Peers must share a kernel and a process namespace. A rank that
// cannot open the segment, or does not find the creator's cookie in it, does not share memory,
// whatever the host names say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/ranges.h"
#include "core/status.h"

namespace smddp {

class Segment {
 public:
  Segment() = default;
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(Segment&& other) noexcept;

  // Zeroed. No part may be used before some rank has committed it.
  Status Create(size_t bytes);
  Status Attach(int creator_pid, int creator_fd, size_t bytes);
  // Memory of this process alone. Zeroed, and all of it may be used.
  Status CreatePrivate(size_t bytes);
  // Gives the pages of CreatePrivate() back. The memory stays, and is zero again.
  void Forget();
  // Reserves memory for a part of the segment, so that a lack of it is an error here instead of a
  // SIGBUS later; from the memory that is next to the calling rank's core.
  Status Commit(Range part);
  // Call it once all peers have attached.
  void CloseDescriptor();

  void* memory() const { return memory_; }
  int fd() const { return fd_; }

  // A random number that is never 0, and that no other process can guess.
  static uint64_t NewCookie();
  // Ranks with equal keys may share memory (same kernel, same process namespace).
  static std::string NodeKey();

 private:
  Status Map(size_t bytes, int flags);
  void* memory_ = nullptr;
  size_t bytes_ = 0;
  int fd_ = -1;
};

}  // namespace smddp
