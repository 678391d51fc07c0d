#include "transport/nccl/pack_layout.h"

#include <algorithm>

namespace smddp {
namespace {

PackType TypeOf(const DeviceCollective& reduction) {
  if (PackWidens(reduction)) {
    return reduction.dtype == DType::kFloat16 ? PackType::float16 : PackType::bfloat16;
  }
  if (!reduction.scaled()) return PackType::bytes;
  return reduction.dtype == DType::kFloat64 ? PackType::float64 : PackType::float32;
}

}  // namespace

bool PackWidens(const DeviceCollective& reduction) {
  using Op = DeviceCollective::Op;
  bool is_short = reduction.dtype == DType::kFloat16 || reduction.dtype == DType::kBfloat16;
  return is_short && (reduction.op == Op::kSum || reduction.op == Op::kProduct);
}

PackLayout::PackLayout(const DeviceCollective& reduction, int rank, uint64_t most_bytes)
    : type(TypeOf(reduction)), dtype(PackWidens(reduction) ? DType::kFloat32 : reduction.dtype) {
  bool bytes = type == PackType::bytes;
  unit = bytes ? 1 : Info(dtype).size;
  per_element_ = bytes ? Info(dtype).size : 1;
  tensor_unit_ = bytes ? 1 : Info(reduction.dtype).size;
  if (reduction.kind == DeviceCollective::Kind::kReduceScatter) {
    LayOutByRank(reduction, rank, most_bytes / unit);
  } else {
    LayOut(reduction, most_bytes / unit);
  }
}

void PackLayout::LayOut(const DeviceCollective& reduction, uint64_t most) {
  uint64_t end = 0;
  for (const Span& span : reduction.spans) {
    if (span.count == 0) continue;
    entries.push_back({span.in, span.out, end, span.count * per_element_});
    end += Aligned(entries.back().count);
  }
  for (uint64_t at = 0; at < end; at += most) {
    uint64_t count = std::min(most, end - at);
    pieces.push_back({at, at + count, at, count, 0});
  }
}

void PackLayout::LayOutByRank(const DeviceCollective& reduction, int rank, uint64_t most) {
  size_t ranks = reduction.parts.size() / reduction.spans.size(), self = static_cast<size_t>(rank);
  std::vector<std::vector<PackEntry>> segments(ranks);
  std::vector<uint64_t> lengths(ranks);
  const size_t* part = reduction.parts.data();
  for (const Span& span : reduction.spans) {
    const char* in = span.in;
    for (size_t r = 0; r < ranks; ++r, ++part) {
      uint64_t count = *part * per_element_;
      if (count == 0) continue;
      segments[r].push_back({in, r == self ? span.out : nullptr, lengths[r], count});
      lengths[r] += Aligned(count);
      in += count * tensor_unit_;
    }
  }

  uint64_t align = kPackAlign / unit, end = 0;
  uint64_t at_once = std::max(most / (ranks + 1) / align * align, align);
  for (uint64_t from = 0; from < lengths[0]; from += at_once) {
    uint64_t length = std::min(at_once, lengths[0] - from);
    pieces.push_back({end, end + ranks * length, end + self * length, length, ranks * length});
    for (const auto& segment : segments) {
      for (const PackEntry& entry : segment) AddPart(entry, from, from + length, end);
      end += length;
    }
  }
}

// What an entry of a segment has in [from, to) of it, which is at `at` on the wire.
void PackLayout::AddPart(const PackEntry& entry, uint64_t from, uint64_t to, uint64_t at) {
  uint64_t begin = std::max(from, entry.begin), end = std::min(to, entry.begin + entry.count);
  if (begin >= end) return;
  uint64_t skip = (begin - entry.begin) * tensor_unit_;
  char* out = static_cast<char*>(entry.out);
  entries.push_back({static_cast<const char*>(entry.in) + skip,
                     out == nullptr ? nullptr : out + skip, at + (begin - from), end - begin});
}

}  // namespace smddp
