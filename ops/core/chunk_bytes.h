// The size of a chunk between nodes, in powers of two. From measurements on links of 1 and 10
// Gbit/s (docs/measurements.md); SMDDP_CHUNK_BYTES overrides it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace smddp {

// Each of a node's `owners` sends a part of its share of a chunk to each node.
inline size_t ChunkBytesBetweenNodes(int nodes, int owners) {
  constexpr size_t kUsual = 1 << 20, kLeast = 256 << 10, kMost = 4 << 20;
  // Where a node has a single owner: a receiver's consent to a message queues behind what it sends
  // itself, so the link idles for long messages. With several owners it carries the others' then.
  constexpr size_t kLoneMessage = 128 << 10;
  // Below this a message costs the processor more than its bytes do (1 us at each end, copies of 5
  // GB/s; benchmarks/simulate_hosts.py), so very many nodes take larger chunks.
  constexpr size_t kLeastMessage = 4 << 10;
  size_t messages = static_cast<size_t>(nodes) * static_cast<size_t>(owners);
  size_t bytes = owners > 1 ? kUsual : std::min(kLoneMessage * messages, kUsual);
  bytes = std::clamp(std::max(bytes, kLeastMessage * messages), kLeast, kMost);
  // The nearest in ratio.
  return size_t{1} << static_cast<int>(std::lround(std::log2(static_cast<double>(bytes))));
}

}  // namespace smddp
