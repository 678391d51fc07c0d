// The collectives that a user calls by hand: stateful, so TensorFlow keeps them in program order,
// and synchronous, so a small one costs no thread switch. The op blocks a thread of TensorFlow's
// pool; that cannot deadlock, since every rank runs these ops in the same order.
// Ops of process sets are the exception; see tf/set_op.h.
#include <cstring>
#include <new>

#include "tf/op_kernel.h"
#include "tf/parts.h"
#include "tf/register.h"
#include "tf/set_op.h"

namespace smddp_tf {
namespace {

template <int kKind>
void ComputeSameShapes(void* kernel, TF_OpKernelContext* context) {
  TensorPairs pairs;
  if (!pairs.Open(context, 0, TF_NumInputs(context))) return;
  smddp_request request = MakeRequest(kKind, *static_cast<Attributes*>(kernel), pairs.tensors());
  int code = smddp_run(&request);
  if (code != SMDDP_OK) FailOp(context, code, smddp_last_error());
}

// ---- allgather ----------------------------------------------------------------------------------

// What every rank tells the others first: its count of dimensions, rows, and elements a row.
enum : size_t { kNdim, kRows, kRowElements };

std::vector<int64_t> PartOf(const std::vector<int64_t>& dims) {
  int64_t row = 1;
  for (size_t i = 1; i < dims.size(); ++i) row *= dims[i];
  return {static_cast<int64_t>(dims.size()), dims.empty() ? 1 : dims[0], row};
}

// A rank that has joined tells zeros: it has no rows, of any shape.
bool HasJoined(const std::vector<int64_t>& part) {
  return part[kRowElements] == 0 && part[kNdim] == 0;
}

// Empty if the parts fit together; otherwise the same sentence on every rank.
std::string CheckParts(const std::vector<std::vector<int64_t>>& parts,
                       const std::vector<int32_t>& ranks, const std::string& name) {
  auto show = [&](size_t r) {
    return "rank " + std::to_string(ranks[r]) + " has " + std::to_string(parts[r][kNdim]) +
           " dimensions and " + std::to_string(parts[r][kRowElements]) + " elements a row";
  };
  size_t own = 0;  // the first that has not joined
  while (own < parts.size() && HasJoined(parts[own])) ++own;
  for (size_t r = own + 1; r < parts.size(); ++r) {
    if (HasJoined(parts[r])) continue;
    if (parts[r][kNdim] == parts[own][kNdim] &&
        parts[r][kRowElements] == parts[own][kRowElements]) {
      continue;
    }
    return "Mismatched allgather '" + name + "': " + show(own) + ", " + show(r) +
           "; all dimensions but the first must agree";
  }
  return "";
}

void ComputeAllgather(void* kernel, TF_OpKernelContext* context) {
  const Attributes& attributes = *static_cast<Attributes*>(kernel);
  std::vector<int32_t> ranks = RanksOf(attributes);
  size_t size = ranks.size();
  Input in(context, 0);
  if (in.Failed(context)) return;
  std::vector<int64_t> dims = Dims(in.get());
  std::vector<std::vector<int64_t>> parts;
  int code = ExchangeNumbers(attributes, "", PartOf(dims), size, &parts);
  if (code != SMDDP_OK) return FailOp(context, code, smddp_last_error());
  std::string mismatch = CheckParts(parts, ranks, attributes.name);
  if (!mismatch.empty()) return FailOp(context, SMDDP_MISMATCH, mismatch.c_str());
  std::vector<int64_t> out_dims = dims, bytes(size);
  if (out_dims.empty()) out_dims.push_back(0);
  out_dims[0] = 0;
  int64_t element = static_cast<int64_t>(SizeOf(attributes.dtype));
  for (size_t r = 0; r < size; ++r) {
    out_dims[0] += parts[r][kRows];
    bytes[r] = parts[r][kRows] * parts[r][kRowElements] * element;
  }
  size_t total = 0;
  for (int64_t part : bytes) total += static_cast<size_t>(part);
  ScopedStatus status;
  TF_Tensor* out = TF_AllocateOutput(context, 0, attributes.dtype, out_dims.data(),
                                     static_cast<int>(out_dims.size()), total, status);
  if (!status.ok()) return TF_OpKernelContext_Failure(context, status);
  smddp_tensor tensor{TF_TensorData(in.get()), TF_TensorData(out),
                      static_cast<int32_t>(dims.size()), dims.data()};
  smddp_request request = MakeRequest(SMDDP_ALLGATHER, attributes, {});
  request.num_tensors = 1;
  request.tensors = &tensor;
  request.gather_bytes = bytes.data();
  code = smddp_run(&request);
  if (code != SMDDP_OK) FailOp(context, code, smddp_last_error());
  TF_DeleteTensor(out);
}

void ComputeJoin(void*, TF_OpKernelContext* context) {
  ScopedStatus status;
  TF_Tensor* out = TF_AllocateOutput(context, 0, kTfInt32, nullptr, 0, sizeof(int32_t), status);
  if (!status.ok()) return TF_OpKernelContext_Failure(context, status);
  int code = smddp_join(static_cast<int*>(TF_TensorData(out)));
  if (code != SMDDP_OK) FailOp(context, code, smddp_last_error());
  TF_DeleteTensor(out);
}

void ComputeBarrier(void* kernel, TF_OpKernelContext* context) {
  smddp_request request = MakeRequest(SMDDP_BARRIER, *static_cast<Attributes*>(kernel), {});
  int code = smddp_run(&request);
  if (code != SMDDP_OK) FailOp(context, code, smddp_last_error());
}

}  // namespace

void RegisterCollectiveOps() {
  Register<CreateAttributes<kHasType | kHasReduce>, ComputeSameShapes<SMDDP_ALLREDUCE>,
           DestroyAttributes>({"SmddpAllreduce",
                               {"tensors: N * T"},
                               {"outputs: N * T"},
                               {kTypeAttr, "N: int >= 1", "reduce_op: int", "prescale: float = 1.0",
                                "postscale: float = 1.0", kNameAttr, kSetAttr},
                               true,
                               SameShapes});
  Register<CreateAttributes<kHasType | kHasRoot>, ComputeSameShapes<SMDDP_BROADCAST>,
           DestroyAttributes>({"SmddpBroadcast",
                               {"tensors: N * T"},
                               {"outputs: N * T"},
                               {kTypeAttr, "N: int >= 1", "root_rank: int", kNameAttr, kSetAttr},
                               true,
                               SameShapes});
  Register<CreateAttributes<kHasType>, ComputeAllgather, DestroyAttributes>(
      {"SmddpAllgather",
       {"tensor: T"},
       {"output: T"},
       {kTypeAttr, kNameAttr, kSetAttr},
       true,
       UnknownShape});
  RegisterOp({"SmddpJoin", {}, {"last: int32"}, {kNameAttr, kSetAttr}, true, UnknownShape});
  RegisterKernel("SmddpJoin", TF_NewKernelBuilder("SmddpJoin", "CPU", CreateAttributes<0>,
                                                  ComputeJoin, DestroyAttributes));
  Register<CreateAttributes<0>, ComputeBarrier, DestroyAttributes>(
      {"SmddpBarrier", {}, {}, {kNameAttr, kSetAttr}, true, NoOutputs});
}

}  // namespace smddp_tf
