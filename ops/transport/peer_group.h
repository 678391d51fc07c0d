// PeerGroup: an ordered stream of non-blocking byte exchanges among a fixed set of peers.
//
// This is all that an algorithm may know of the network between nodes. Every peer starts the same
// operations in the same order. Up to kDepth may be under way; Test() tells of the oldest. Nothing
// here waits: deadlines belong to whoever calls Test() again and again.
//
// Operations read and write the group's own memory, never a tensor: one that was given up, after a
// timeout say, may write for as long as the process lives, and a tensor is its owner's again by
// then. So the group keeps its memory for as long as an operation may use it, even beyond its own
// end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/status.h"

namespace smddp {

class PeerGroup {
 public:
  static constexpr size_t kDepth = 4;

  virtual ~PeerGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // At least so many bytes for operations, aligned to 64. Called while none is under way; what they
  // held before may be lost.
  char* Memory(size_t bytes);

  // All buffers lie in Memory(). recv holds size() blocks of `bytes`, in rank order.
  virtual Status StartAllgather(const void* send, size_t bytes, void* recv) = 0;
  // Rank r's block has bytes[r] bytes and lies at recv + offsets[r]; `send` may be the own block.
  virtual Status StartAllgatherV(const void* send, void* recv, const std::vector<size_t>& bytes,
                                 const std::vector<size_t>& offsets) = 0;
  // send and recv hold size() blocks of `bytes`; block r goes to (comes from) rank r.
  virtual Status StartAlltoall(const void* send, size_t bytes, void* recv) = 0;
  // To rank p go send_bytes[p] bytes, from it come recv_bytes[p]; both buffers are laid out in rank
  // order.
  virtual Status StartAlltoallV(const void* send, const std::vector<size_t>& send_bytes, void* recv,
                                const std::vector<size_t>& recv_bytes) = 0;
  virtual Status StartBroadcast(void* buffer, size_t bytes, int root) = 0;

  // Sets *done when the oldest operation has finished, which then is under way no more.
  virtual Status Test(bool* done) = 0;

 protected:
  const std::shared_ptr<char[]>& memory() const { return memory_; }

 private:
  std::shared_ptr<char[]> memory_;
  size_t memory_bytes_ = 0;
};

inline char* PeerGroup::Memory(size_t bytes) {
  constexpr size_t kAlign = 64;
  if (bytes > memory_bytes_) {
    memory_.reset(new char[bytes + kAlign]());
    memory_bytes_ = bytes;
  }
  uintptr_t address = reinterpret_cast<uintptr_t>(memory_.get());
  return memory_.get() + (kAlign - address % kAlign) % kAlign;
}

}  // namespace smddp
