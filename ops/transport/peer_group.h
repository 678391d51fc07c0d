// PeerGroup: an ordered stream of non-blocking byte exchanges among a fixed set of peers.
//
// This is all that an algorithm knows of the network between nodes. Every peer starts the same
// operations in the same order. Up to kDepth may be in flight; Test() tests the oldest. Nothing
// here blocks: deadlines are up to the caller, who polls Test().
//
// Operations read and write the group's own memory, never a tensor: an operation that was given up,
// say after a timeout, may still write as long as the process lives, when the tensor has long been
// returned to its owner. For the same reason the group keeps its memory alive as long as an
// operation may use it, even after the group itself is destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/status.h"

namespace smddp {

class PeerGroup {
 public:
  static constexpr size_t kDepth = 8;

  virtual ~PeerGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // At least `bytes` of memory for operations, 64-byte aligned. Call it only while no operation is
  // in flight; its previous contents may be lost.
  virtual char* Memory(size_t bytes);

  // All buffers must be in Memory(). What is sent and what is received may not overlap, except
  // where the own block is said to lie in place; a buffer of no bytes may have any address. recv
  // holds size() blocks of `bytes`, in rank order; `send` may be the own block.
  virtual Status StartAllgather(const void* send, size_t bytes, void* recv) = 0;
  // Rank r's block has bytes[r] bytes and is stored at recv + offsets[r]; `send` may be the own
  // block.
  virtual Status StartAllgatherV(const void* send, void* recv, const std::vector<size_t>& bytes,
                                 const std::vector<size_t>& offsets) = 0;
  // send and recv hold size() blocks of `bytes`; block r goes to (comes from) rank r. The own block
  // is not moved: it stays in `send`.
  virtual Status StartAlltoall(const void* send, size_t bytes, void* recv) = 0;
  // Sends send_bytes[p] bytes to rank p and receives recv_bytes[p] from it; both buffers are laid
  // out in rank order.
  virtual Status StartAlltoallV(const void* send, const std::vector<size_t>& send_bytes, void* recv,
                                const std::vector<size_t>& recv_bytes) = 0;
  virtual Status StartBroadcast(void* buffer, size_t bytes, int root) = 0;

  // Sets *done if the oldest operation has finished, and then removes it.
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
