// Reducescatter inside a node: each rank stages the peers' parts in their stripes, and reduces its
// own part from its tensors and the peers' stripes, in rank order, directly into the output.
#include <algorithm>
#include <cstring>

#include "collective/host/exchange.h"
#include "core/ranges.h"

namespace smddp {

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

namespace {

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

}  // namespace smddp
