#include "capi/to_request.h"

#include <memory>
#include <string>
#include <vector>

namespace smddp {
namespace {

Status Refuse(const std::string& text) { return {Code::kUsage, text}; }

Status CheckReduction(const smddp_request& in, const DTypeInfo& dtype) {
  if (in.op < 0 || in.op > 5 || in.op == static_cast<int>(ReduceOp::kAdasum)) {
    return Refuse("reduce op " + std::to_string(in.op) +
                  " is not supported; use Average, Sum, Min, Max or Product");
  }
  if (dtype.accum_size == 0) {
    return Refuse(std::string("reducing ") + dtype.name +
                  " is not supported; it takes float16, bfloat16, float32, float64, uint8, int8, "
                  "int32 and int64");
  }
  return {};
}

// Sets the sizes of the parts of an allgather or alltoall; part_bytes may be null.
Status SetParts(const int64_t* part_bytes, const Topology& topo, Request* out) {
  if (!out->gathers()) return {};
  size_t size = static_cast<size_t>(topo.size), bytes = out->bytes();
  size_t parts = out->kind == Kind::kAllgather ? size : size * size;
  if (part_bytes != nullptr) {
    out->part_bytes.assign(part_bytes, part_bytes + parts);
    return {};
  }
  if (out->kind == Kind::kAlltoall && bytes % size != 0) {
    return Refuse("alltoall of " + std::to_string(bytes) + " bytes, which " + std::to_string(size) +
                  " ranks do not divide, needs part_bytes");
  }
  out->part_bytes.assign(parts, out->kind == Kind::kAllgather ? bytes : bytes / size);
  return {};
}

}  // namespace

Status ToRequest(const smddp_request& in, const Topology& topo, Parts parts, Request* out) {
  const DTypeInfo* dtype = FindDType(in.dtype);
  if (in.kind < 0 || in.kind > 5) return Refuse("unknown collective " + std::to_string(in.kind));
  if (dtype == nullptr) {
    return Refuse("TensorFlow dtype number " + std::to_string(in.dtype) + " is not supported");
  }
  out->kind = static_cast<Kind>(in.kind);
  if (out->reduces()) {
    Status checked = CheckReduction(in, *dtype);
    if (!checked.ok()) return checked;
  }
  if (out->kind == Kind::kBroadcast && topo.RankOf(in.root) < 0) {
    return Refuse("root_rank " + std::to_string(in.root) + " is not among the " +
                  std::to_string(topo.size) + " ranks that take part");
  }

  out->dtype = dtype->dtype;
  out->op = static_cast<ReduceOp>(in.op);
  out->root = in.root;
  out->process_set = in.process_set;
  out->prescale = in.prescale;
  out->postscale = in.postscale;
  out->name = in.name != nullptr ? in.name : "";
  out->matching = static_cast<Matching>(in.matching);
  if (in.description != nullptr && *in.description != '\0') {
    out->plan_text = std::make_shared<const std::string>(in.description);
  }

  out->tensors.reserve(in.num_tensors);
  for (int i = 0; i < in.num_tensors; ++i) {
    const smddp_tensor& tensor = in.tensors[i];
    out->tensors.push_back(
        {tensor.in, tensor.out, std::vector<int64_t>(tensor.dims, tensor.dims + tensor.ndim)});
  }
  if (parts == Parts::kKnown) return SetParts(in.part_bytes, topo, out);
  if (out->gathers() && in.num_tensors == 1) return {};
  return Refuse(
      std::string("sizes are exchanged for an allgather or alltoall of one tensor, not ") + "for " +
      KindName(out->kind) + " of " + std::to_string(in.num_tensors) + " tensors");
}

}  // namespace smddp
