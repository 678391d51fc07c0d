#include "collective/device/device_collective.h"

#include <algorithm>

#include "core/ranges.h"

namespace smddp {
namespace {

DeviceCollective::Op OpOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return DeviceCollective::Op::kMin;
    case ReduceOp::kMax:
      return DeviceCollective::Op::kMax;
    case ReduceOp::kProduct:
      return DeviceCollective::Op::kProduct;
    default:
      return DeviceCollective::Op::kSum;
  }
}

bool Sums(ReduceOp op) { return op == ReduceOp::kSum || op == ReduceOp::kAverage; }

void SetReduction(const Request& request, const Topology& topo, DeviceCollective* made) {
  made->dtype = request.dtype;
  made->op = OpOf(request.op);
  made->prescale = request.prescale;
  made->postscale = request.postscale;
  if (request.op == ReduceOp::kAverage) made->postscale /= topo.size;
}

void SetRows(const Request& request, const Topology& topo, DeviceCollective* made) {
  for (const TensorArg& tensor : request.tensors) {
    int64_t rows = tensor.dims.empty() ? 0 : tensor.dims[0];
    size_t row = rows == 0 ? 0 : tensor.count() / static_cast<size_t>(rows);
    for (int r = 0; r < topo.size; ++r) {
      made->parts.push_back(RowsOf(rows, topo.size, r).size() * row);
    }
  }
}

void SetBytes(const Request& request, DeviceCollective* made) {
  made->dtype = DType::kUint8;
  for (Span& span : made->spans) span.count *= Info(request.dtype).size;
}

// Of an alltoall's parts, those that this rank sends and receives.
void SetOwnParts(const Request& request, const Topology& topo, DeviceCollective* made) {
  size_t size = static_cast<size_t>(topo.size), self = static_cast<size_t>(topo.rank);
  size_t sent = 0, received = 0;
  made->parts.resize(2 * size);
  for (size_t r = 0; r < size; ++r) {
    sent += made->parts[r] = request.part_bytes[self * size + r];
    received += made->parts[size + r] = request.part_bytes[r * size + self];
  }
  made->bytes = std::max(sent, received);
}

}  // namespace

std::string CannotBeOnDevice(const Request& request) {
  switch (request.kind) {
    case Kind::kAllreduce:
    case Kind::kBroadcast:
    case Kind::kAllgather:
    case Kind::kReduceScatter:
    case Kind::kAlltoall:
      break;
    default:
      return std::string("not for ") + KindName(request.kind);
  }
  if (request.moved_bytes() == 0) return "there are no elements";
  bool scaled = request.reduces() && request.prescale * request.postscale != 1;
  return scaled && !Sums(request.op) ? "scales sums and averages only" : "";
}

DeviceCollective CollectiveOf(const Request& request, const Topology& topo) {
  DeviceCollective made;
  made.spans = request.Spans().spans();
  made.after = request.ready;
  made.bytes = request.moved_bytes();
  switch (request.kind) {
    case Kind::kBroadcast:
      made.kind = DeviceCollective::Kind::kBroadcast;
      made.root = topo.RankOf(request.root);
      SetBytes(request, &made);
      break;
    case Kind::kAllgather:
      made.kind = DeviceCollective::Kind::kAllgather;
      made.parts = request.part_bytes;
      SetBytes(request, &made);
      break;
    case Kind::kAlltoall:
      made.kind = DeviceCollective::Kind::kAlltoall;
      SetBytes(request, &made);
      SetOwnParts(request, topo, &made);
      break;
    case Kind::kReduceScatter:
      made.kind = DeviceCollective::Kind::kReduceScatter;
      SetReduction(request, topo, &made);
      SetRows(request, topo, &made);
      break;
    default:
      SetReduction(request, topo, &made);
  }
  return made;
}

}  // namespace smddp
