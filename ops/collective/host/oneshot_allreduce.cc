// One-hop allreduce: each rank copies its whole payload into its slot; once all have, each rank
// reduces all slots into its own tensors. It reads (n - 1) times as much as the two-hop algorithm
// but waits once instead of twice, which dominates for a few KiB. Payloads larger than a slot take
// several chunks.
#include <cstring>

#include "collective/host/allreduce.h"

namespace smddp {

ReduceSpec::ReduceSpec(const Request& request, int world_size) {
  scale = request.prescale * request.postscale;
  bool integer = request.dtype == DType::kInt32 || request.dtype == DType::kInt64 ||
                 request.dtype == DType::kUint8 || request.dtype == DType::kInt8 ||
                 request.dtype == DType::kInt16;
  switch (request.op) {
    case ReduceOp::kAverage: {
      if (integer) {
        divisor = world_size;
      } else {
        scale /= world_size;
      }
      break;
    }
    case ReduceOp::kMin:
      combine = Combine::kMin;
      break;
    case ReduceOp::kMax:
      combine = Combine::kMax;
      break;
    case ReduceOp::kProduct:
      combine = Combine::kProduct;
      break;
    default:
      break;
  }
  // Minima and maxima are values of the tensor's type, and so are integers that wrap.
  bool picks = combine == Combine::kMin || combine == Combine::kMax;
  partials_are_wide = !picks && (!integer || scale != 1.0 || divisor != 1);
}

OneshotAllreduce::OneshotAllreduce(ChannelResources* resources, const Request* request)
    : Pipeline(resources, request, ChunksOf(request->bytes(), resources->shm->chunk_bytes()), true),
      spans_(request->Spans()),
      plan_(*request, topo_.size),
      reduce_(FindReduce(request->dtype, plan_.combine, ReduceStage::kFull)) {}

void OneshotAllreduce::Stage(size_t i) {
  size_t element = spans_.element_size(), per_chunk = shm_->chunk_bytes() / element;
  Range range{i * per_chunk, std::min((i + 1) * per_chunk, spans_.count())};
  char* slot = Slot(shm_->rank(), i);
  spans_.ForEach(range, [&](const char* in, char*, size_t first, size_t n) {
    Write(i, slot + first * element, in, n * element);
  });
}

bool OneshotAllreduce::Combine(size_t i) {
  size_t element = spans_.element_size(), per_chunk = shm_->chunk_bytes() / element;
  Range range{i * per_chunk, std::min((i + 1) * per_chunk, spans_.count())};
  CountRead(range.size() * element * (shm_->size() - 1));
  std::vector<const void*> sources(shm_->size());
  spans_.ForEach(range, [&](const char*, char* out, size_t first, size_t n) {
    for (int p = 0; p < shm_->size(); ++p) sources[p] = Slot(p, i) + first * element;
    reduce_({sources.data(), shm_->size(), n, out, nullptr, plan_.scale, plan_.divisor});
  });
  return true;
}

}  // namespace smddp
