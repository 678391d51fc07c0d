// PeerGroup: an ordered stream of non-blocking byte exchanges among a fixed set of peers.
//
// This is all that an algorithm may know of the network between nodes. Every peer starts the same
// operations in the same order; the one rule for the caller is that a new operation may be started
// only after Test() said that the last one is done. Buffers stay the caller's and must live until
// then. Nothing here waits: deadlines belong to whoever calls Test() again and again.
#pragma once

#include <cstddef>
#include <vector>

#include "core/status.h"

namespace smddp {

class PeerGroup {
 public:
  virtual ~PeerGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // recv holds size() blocks of `bytes`, in rank order.
  virtual Status StartAllgather(const void* send, size_t bytes, void* recv) = 0;
  // Rank r's block has bytes[r] bytes and lies at recv + offsets[r].
  virtual Status StartAllgatherV(const void* send, void* recv, const std::vector<size_t>& bytes,
                                 const std::vector<size_t>& offsets) = 0;
  // send and recv hold size() blocks of `bytes`; block r goes to (comes from) rank r.
  virtual Status StartAlltoall(const void* send, size_t bytes, void* recv) = 0;
  // From rank r to rank p go bytes[r * size() + p] bytes; both buffers are laid out in rank order.
  virtual Status StartAlltoallV(const void* send, const std::vector<size_t>& bytes, void* recv) = 0;
  virtual Status StartBroadcast(void* buffer, size_t bytes, int root) = 0;

  // Sets *done when the operation that was started last has finished.
  virtual Status Test(bool* done) = 0;
};

}  // namespace smddp
