// PackLayout: where the tensors of a reduction lie on the wire, and the pieces in which it goes
// through the buffer. Pure; the same on all ranks but for the addresses and which part is a rank's
// own.
//
// Of a reducescatter the wire of each piece has a segment for each rank, all of one length, so that
// NCCL scatters them. Rank 0's is full, as it has the most rows; what others lack is left as it is.
// Behind the segments there is room for the result, in the same place on all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/pack.h"
#include "transport/device_group.h"

namespace smddp {

// 16-bit floats are summed and multiplied in float32.
bool PackWidens(const DeviceCollective& reduction);

// Offsets and counts are in elements of the kernels' wire type, of `unit` bytes.
struct PackLayout {
  // [begin, end) is packed, and goes through the buffer at once; what NCCL makes of it is `result`
  // elements behind the begin of the buffer, and of that this rank unpacks [own, own + count).
  struct Piece {
    uint64_t begin, end, own, count, result;
  };

  // At most `most_bytes` of the wire go through the buffer at once.
  PackLayout(const DeviceCollective& reduction, int rank, uint64_t most_bytes);
  uint64_t table_bytes() const { return entries.size() * sizeof(PackEntry); }

  PackType type;
  DType dtype;  // what NCCL reduces
  uint64_t unit;
  std::vector<PackEntry> entries;
  std::vector<Piece> pieces;

 private:
  void LayOut(const DeviceCollective& reduction, uint64_t most);
  void LayOutByRank(const DeviceCollective& reduction, int rank, uint64_t most);
  void AddPart(const PackEntry& entry, uint64_t from, uint64_t to, uint64_t at);
  uint64_t Aligned(uint64_t count) const { return PackAligned(count * unit) / unit; }

  uint64_t per_element_;  // units of an element of the tensors
  uint64_t tensor_unit_;  // bytes of the tensors that a unit of the wire is
};

}  // namespace smddp
