#include "collective/device/device_collective.h"

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

void SetBytes(const Request& request, DeviceCollective* made) {
  made->dtype = DType::kUint8;
  for (Span& span : made->spans) span.count *= Info(request.dtype).size;
}

}  // namespace

std::string CannotBeOnDevice(const Request& request) {
  switch (request.kind) {
    case Kind::kAllreduce:
    case Kind::kBroadcast:
    case Kind::kAllgather:
      break;
    default:
      return "allreduces, broadcasts and allgathers only";
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
    default:
      SetReduction(request, topo, &made);
  }
  return made;
}

}  // namespace smddp
