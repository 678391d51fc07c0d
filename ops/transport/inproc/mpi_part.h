// What a rank brings to one of MPI's non-blocking collectives, as Open MPI reads its arguments:
// what stands in for MPI in the tests starts from this, so that MpiGroup itself is tested there.
//
// Open MPI takes equal addresses of the two buffers for MPI_IN_PLACE, even if one is empty. MPI
// says that other buffers may not overlap.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace smddp {

// Bytes for a peer, or from one, counted from the start of a buffer.
struct MpiBlock {
  size_t at = 0, bytes = 0;
};

struct MpiPart {
  std::string call;  // must be the same on all ranks
  std::string misuse;
  int root = -1;  // of a broadcast
  const char* send = nullptr;
  char* recv = nullptr;
  std::vector<MpiBlock> to, from;  // by rank

  static MpiPart Allgather(const void* send, int count, void* recv, int rank, int size);
  static MpiPart AllgatherV(const void* send, int count, void* recv, const int* counts,
                            const int* offsets, int rank, int size);
  static MpiPart AlltoallV(const void* send, const int* send_counts, const int* send_offsets,
                           void* recv, const int* recv_counts, const int* recv_offsets, int size);
  static MpiPart Broadcast(void* buffer, int count, int root, int rank, int size);

  // Bytes of the buffer that may be read, or written, from its address on.
  size_t SendExtent() const { return Extent(to); }
  size_t RecvExtent() const { return Extent(from); }
  // Why what `source` sends to rank `self` is not what that expects from it; "" if it is. A real
  // MPI would wait for the rest, or fail.
  static std::string Differs(const MpiPart& source, int from_rank, const MpiPart& self, int rank);

  static const void* InPlace() { return reinterpret_cast<void*>(1); }  // Open MPI's

 private:
  static size_t Extent(const std::vector<MpiBlock>& blocks);
  void CheckOverlap();
};

}  // namespace smddp
