#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "capi/smddp.h"
#include "tf/runtime/op_call.h"
#include "tf/runtime/register.h"

namespace smddp_tf {
namespace {

class ReduceScatterCall : public OpCall {
  void Start() override {
    size_t count = static_cast<size_t>(attributes().num_tensors);
    dims_.reserve(count);  // no reallocation: tensors_ points into it
    for (size_t i = 0; i < count; ++i) {
      if (!Add(static_cast<int>(i))) return Finish();
    }
    Post(MakeRequest(SMDDP_REDUCESCATTER, attributes(), tensors_), [this] { Finish(); });
  }

  // Opens input i and allocates output i. Returns false after a failure, which it has reported to
  // TensorFlow.
  bool Add(int i) {
    inputs_.push_back(std::make_unique<Input>(context_, i));
    if (inputs_.back()->Failed(context_)) return false;
    TF_Tensor* in = inputs_.back()->get();
    dims_.push_back(Dims(in));
    if (dims_.back().empty()) {
      FailOp(context_, SMDDP_USAGE, "reducescatter takes tensors of at least one dimension");
      return false;
    }
    std::vector<int64_t> own = dims_.back();
    // Where there are none because this rank is not in the set, the collective fails.
    int set = static_cast<int>(attributes().process_set);
    own[0] = std::max<int64_t>(0, smddp_own_rows(set, own[0]));
    int64_t count = std::accumulate(own.begin(), own.end(), int64_t{1}, std::multiplies<int64_t>());
    ScopedStatus status;
    outputs_.push_back(
        TF_AllocateOutput(context_, i, attributes().dtype, own.data(), static_cast<int>(own.size()),
                          static_cast<size_t>(count) * SizeOf(attributes().dtype), status));
    if (!status.ok()) {
      TF_OpKernelContext_Failure(context_, status);
      return false;
    }
    tensors_.push_back({TF_TensorData(in), TF_TensorData(outputs_.back()),
                        static_cast<int32_t>(dims_.back().size()), dims_.back().data()});
    return true;
  }

 public:
  ~ReduceScatterCall() override {
    for (TF_Tensor* output : outputs_) {
      if (output != nullptr) TF_DeleteTensor(output);
    }
  }

 private:
  std::vector<std::unique_ptr<Input>> inputs_;
  std::vector<std::vector<int64_t>> dims_;
  std::vector<TF_Tensor*> outputs_;
  std::vector<smddp_tensor> tensors_;
};

}  // namespace

void RegisterReducescatter() {
  constexpr unsigned kAttrs = kHasType | kHasReduce | kHasList | kHasDescription;
  RegisterCollective<ReduceScatterCall, CreateAttributes<kAttrs>, DestroyAttributes>(
      "Reducescatter", {{"tensors: N * T"},
                        {"outputs: N * T"},
                        {kTypeAttr, "N: int >= 1", "reduce_op: int", kPrescaleAttr, kPostscaleAttr,
                         kDescriptionAttr},
                        UnknownShape});
}

}  // namespace smddp_tf
