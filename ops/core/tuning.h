// Tuning: what messages and bytes cost between nodes, and the sizes that follow from it. Pure
// arithmetic; engine/connect/measure_link.h measures.
//
// A message of B bytes takes latency + B * per_byte. All nodes are taken to be as far apart as the
// two that are furthest apart, and all ranks must have the same numbers, since what they choose
// must agree.
#pragma once

#include <cstddef>
#include <string>

#include "core/status.h"

namespace smddp {

struct Tuning {
  enum class Source { kDefault, kToBeMeasured, kMeasured, kGiven };
  Source source = Source::kDefault;
  double latency = 0;        // seconds, of a small exchange between nodes
  double per_byte = 0;       // seconds, between nodes
  double copy_per_byte = 0;  // seconds, from memory to memory inside a node

  // "default", "measure", or all three numbers: "latency_us=25,gbs=1.1,copy_gbs=5", or the path of
  // a file that has them. Empty is default.
  static Status Parse(const std::string& text, Tuning* tuning);
  // In the same words; two tunings are equal if their texts are.
  std::string Text() const;

  // Bytes of a chunk between nodes; each of a node's owners sends a part of its share to each node.
  size_t ChunkBytes(int nodes, int owners) const;
  // See Config::alltoall_aggregate_bytes.
  size_t AlltoallAggregateBytes() const;
  // The costs and the sizes that a job uses, for the log; as a JSON object, for stats().
  std::string Describe(size_t chunk_bytes, size_t alltoall_aggregate_bytes) const;
  std::string Json(size_t chunk_bytes, size_t alltoall_aggregate_bytes) const;

 private:
  bool known() const { return source == Source::kMeasured || source == Source::kGiven; }
  const char* SourceName() const;
};

}  // namespace smddp
