// Reducescatter inside a node: each rank stages the peers' parts in their stripes, and reduces its
// own part from its tensors and the peers' stripes, in rank order, directly into the output.
#include <algorithm>
#include <cstring>

#include "collective/host/exchange.h"
#include "core/ranges.h"

namespace smddp {
namespace {

// The part of every tensor that `owner` receives: `in` points into this rank's tensors, `out` is
// set only if this rank is the owner.
SpanList PartOfOwner(const Request& request, const Topology& topo, int owner) {
  size_t element = Info(request.dtype).size;
  std::vector<Span> spans;
  for (const TensorArg& tensor : request.tensors) {
    int64_t rows = tensor.dims.empty() ? 0 : tensor.dims[0];
    size_t row = rows == 0 ? 0 : tensor.count() / static_cast<size_t>(rows);
    Range own = RowsOf(rows, topo.size, owner);
    const char* in = static_cast<const char*>(tensor.in) + own.begin * row * element;
    char* out = owner == topo.rank ? static_cast<char*>(tensor.out) : nullptr;
    spans.push_back({in, out, own.size() * row});
  }
  return SpanList(std::move(spans), element);
}

// The part of rank 0, which has the most rows.
size_t LargestPart(const Request& request, const Topology& topo) {
  return PartOfOwner(request, topo, 0).count() * Info(request.dtype).size;
}

}  // namespace

ShmReduceScatter::ShmReduceScatter(ChannelResources* resources, const Request* request)
    : Pipeline(resources, request,
               PeerStripes(*resources->shm, Info(request->dtype).size)
                   .Chunks(LargestPart(*request, *resources->topology)),
               true),
      stripes_(*resources->shm, Info(request->dtype).size),
      plan_(*request, topo_.size),
      reduce_(FindReduce(request->dtype, plan_.combine, ReduceStage::kFull)) {
  for (int p = 0; p < topo_.size; ++p) parts_.push_back(PartOfOwner(*request, topo_, p));
}

Range ShmReduceScatter::Chunk(size_t i, const SpanList& part) const {
  size_t per_chunk = stripes_.bytes() / part.element_size();
  return {std::min(i * per_chunk, part.count()), std::min((i + 1) * per_chunk, part.count())};
}

void ShmReduceScatter::Stage(size_t i) {
  int self = topo_.rank;
  for (int p = 0; p < topo_.size; ++p) {
    if (p == self) continue;
    size_t element = parts_[p].element_size();
    char* at = Slot(self, i) + stripes_.Offset(self, p);
    parts_[p].ForEach(Chunk(i, parts_[p]), [&](const char* in, char*, size_t first, size_t n) {
      Write(i, at + first * element, in, n * element);
    });
  }
}

bool ShmReduceScatter::Combine(size_t i) {
  int self = topo_.rank;
  const SpanList& own = parts_[self];
  CountRead(Chunk(i, own).size() * own.element_size() * static_cast<size_t>(topo_.size - 1));
  std::vector<const void*> sources(topo_.size);
  own.ForEach(Chunk(i, own), [&](const char* in, char* out, size_t first, size_t n) {
    for (int p = 0; p < topo_.size; ++p) {
      sources[p] =
          p == self ? in : Slot(p, i) + stripes_.Offset(p, self) + first * own.element_size();
    }
    reduce_({sources.data(), topo_.size, n, out, nullptr, plan_.scale, plan_.divisor});
  });
  return true;
}

CrossNodeReduceScatter::CrossNodeReduceScatter(ChannelResources* resources, const Request* request)
    : request_(request), topo_(*resources->topology), scratch_(request->bytes()), whole_(*request) {
  char* at = scratch_.data();
  for (TensorArg& tensor : whole_.tensors) {
    tensor.out = at;
    at += tensor.count() * Info(request->dtype).size;
  }
  allreduce_ = std::make_unique<HierarchicalAllreduce>(resources, &whole_);
}

Progress CrossNodeReduceScatter::Advance() {
  Progress progress = allreduce_->Advance();
  if (progress != Progress::kDone || !status().ok()) return progress;
  size_t element = Info(request_->dtype).size;
  for (size_t t = 0; t < whole_.tensors.size(); ++t) {
    const TensorArg& tensor = whole_.tensors[t];
    int64_t rows = tensor.dims.empty() ? 0 : tensor.dims[0];
    if (rows == 0 || tensor.count() == 0) continue;
    size_t row = tensor.count() / static_cast<size_t>(rows) * element;
    Range own = RowsOf(rows, topo_.size, topo_.rank);
    if (own.size() == 0) continue;
    std::memcpy(request_->tensors[t].out, static_cast<char*>(tensor.out) + own.begin * row,
                own.size() * row);
  }
  return progress;
}

}  // namespace smddp
