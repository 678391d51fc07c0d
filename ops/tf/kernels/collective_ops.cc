// The ops of explicit collectives; smddp_tf/_graph/order.py keeps them in program order.
#include <memory>
#include <string>
#include <vector>

#include "tf/runtime/async_call.h"
#include "tf/runtime/register.h"

namespace smddp_tf {
namespace {

template <int kKind>
class SameShapesCall : public AsyncCall {
  void Start() override {
    if (!pairs_.Open(context_, 0, static_cast<int>(attributes().num_tensors))) return Finish();
    Post(MakeRequest(kKind, attributes(), pairs_.tensors()), [this] { Finish(); });
  }

  TensorPairs pairs_;
};

class BarrierCall : public AsyncCall {
  void Start() override {
    Post(MakeRequest(SMDDP_BARRIER, attributes(), {}), [this] { Finish(); });
  }
};

// ---- allgather ----------------------------------------------------------------------------------

// The numbers that ranks exchange first: dimensions, rows, and elements per row.
enum : size_t { kNdim, kRows, kRowElements };

std::vector<int64_t> PartOf(const std::vector<int64_t>& dims) {
  int64_t row = 1;
  for (size_t i = 1; i < dims.size(); ++i) row *= dims[i];
  return {static_cast<int64_t>(dims.size()), dims.empty() ? 1 : dims[0], row};
}

// A joined rank contributes zeros: it has no rows, of any shape.
bool HasJoined(const std::vector<int64_t>& part) {
  return part[kRowElements] == 0 && part[kNdim] == 0;
}

// Returns "" if the parts are consistent, otherwise the same message on every rank.
std::string CheckParts(const std::vector<std::vector<int64_t>>& parts,
                       const std::vector<int32_t>& ranks, const std::string& name) {
  auto show = [&](size_t r) {
    return "rank " + std::to_string(ranks[r]) + " has " + std::to_string(parts[r][kNdim]) +
           " dimensions and " + std::to_string(parts[r][kRowElements]) + " elements a row";
  };
  size_t own = 0;  // the first rank that has not joined
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

class AllgatherCall : public AsyncCall {
  void Start() override {
    in_ = std::make_unique<Input>(context_, 0);
    if (in_->Failed(context_)) return Finish();
    dims_ = Dims(in_->get());
    ranks_ = RanksOf(attributes());
    GatherNumbers("", PartOf(dims_), ranks_.size(), [this](const Rows& parts) { Gather(parts); });
  }

  void Gather(const Rows& parts) {
    std::string mismatch = CheckParts(parts, ranks_, attributes().name);
    if (!mismatch.empty()) return Fail(SMDDP_MISMATCH, mismatch);
    std::vector<int64_t> out_dims = dims_, bytes;
    if (out_dims.empty()) out_dims.push_back(0);
    out_dims[0] = 0;
    int64_t element = static_cast<int64_t>(SizeOf(attributes().dtype)), total = 0;
    for (const auto& part : parts) {
      out_dims[0] += part[kRows];
      bytes.push_back(part[kRows] * part[kRowElements] * element);
      total += bytes.back();
    }
    ScopedStatus status;
    out_ = TF_AllocateOutput(context_, 0, attributes().dtype, out_dims.data(),
                             static_cast<int>(out_dims.size()), static_cast<size_t>(total), status);
    if (!status.ok()) {
      TF_OpKernelContext_Failure(context_, status);
      return Finish();
    }
    smddp_tensor tensor{TF_TensorData(in_->get()), TF_TensorData(out_),
                        static_cast<int32_t>(dims_.size()), dims_.data()};
    smddp_request request = MakeRequest(SMDDP_ALLGATHER, attributes(), {});
    request.num_tensors = 1;
    request.tensors = &tensor;
    request.part_bytes = bytes.data();
    Post(request, [this] { Finish(); });
  }

 public:
  ~AllgatherCall() override {
    if (out_ != nullptr) TF_DeleteTensor(out_);
  }

 private:
  std::unique_ptr<Input> in_;
  std::vector<int64_t> dims_;
  std::vector<int32_t> ranks_;
  TF_Tensor* out_ = nullptr;
};

void ComputeJoin(void*, TF_OpKernelContext* context) {
  ScopedStatus status;
  TF_Tensor* out = TF_AllocateOutput(context, 0, kTfInt32, nullptr, 0, sizeof(int32_t), status);
  if (!status.ok()) return TF_OpKernelContext_Failure(context, status);
  int code = smddp_join(static_cast<int*>(TF_TensorData(out)));
  if (code != SMDDP_OK) FailOp(context, code, smddp_last_error());
  TF_DeleteTensor(out);
}

}  // namespace

void RegisterCollectiveOps() {
  constexpr unsigned kAllreduceAttrs = kHasType | kHasReduce | kHasList | kHasDescription;
  RegisterAsync<SameShapesCall<SMDDP_ALLREDUCE>, CreateAttributes<kAllreduceAttrs>,
                DestroyAttributes>(
      {"SmddpAllreduce",
       {"tensors: N * T"},
       {"outputs: N * T"},
       {kTypeAttr, "N: int >= 1", "reduce_op: int", "prescale: float = 1.0",
        "postscale: float = 1.0", "description: string = ''", kNameAttr, kSetAttr, kMatchingAttr},
       true,
       SameShapes});
  RegisterAsync<SameShapesCall<SMDDP_BROADCAST>, CreateAttributes<kHasType | kHasRoot | kHasList>,
                DestroyAttributes>(
      {"SmddpBroadcast",
       {"tensors: N * T"},
       {"outputs: N * T"},
       {kTypeAttr, "N: int >= 1", "root_rank: int", kNameAttr, kSetAttr, kMatchingAttr},
       true,
       SameShapes});
  RegisterAsync<AllgatherCall, CreateAttributes<kHasType>, DestroyAttributes>(
      {"SmddpAllgather",
       {"tensor: T"},
       {"output: T"},
       {kTypeAttr, kNameAttr, kSetAttr, kMatchingAttr},
       true,
       UnknownShape});
  RegisterOp(
      {"SmddpJoin", {}, {"last: int32"}, {kNameAttr, kSetAttr, kMatchingAttr}, true, UnknownShape});
  RegisterKernel("SmddpJoin", TF_NewKernelBuilder("SmddpJoin", "CPU", CreateAttributes<0>,
                                                  ComputeJoin, DestroyAttributes));
  RegisterAsync<BarrierCall, CreateAttributes<0>, DestroyAttributes>(
      {"SmddpBarrier", {}, {}, {kNameAttr, kSetAttr, kMatchingAttr}, true, NoOutputs});
}

}  // namespace smddp_tf
