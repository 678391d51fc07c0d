#include "tf/kernels/ragged_call.h"

#include <numeric>  // for accumulate

#include "tf/runtime/register.h"

namespace smddp_tf {

RaggedCall::~RaggedCall() {
  if (out_ != nullptr) TF_DeleteTensor(out_);
}

void RaggedCall::PostRagged(int kind, const int32_t* splits, int num_splits) {
  in_ = std::make_unique<Input>(context_, 0);
  if (in_->Failed(context_)) return Finish();
  dims_ = Dims(in_->get());
  smddp_tensor tensor{TF_TensorData(in_->get()), nullptr, static_cast<int32_t>(dims_.size()),
                      dims_.data()};
  smddp_request request = MakeRequest(kind, attributes(), {});
  request.num_tensors = 1;
  request.tensors = &tensor;
  std::string name;
  if (!NumberRun(&request, &name)) return Finish();
  Place(&request);
  next_ = [this] { Finish(); };
  OpCall* call = this;  // as Done and Allocate expect it
  smddp_post_ragged(&request, splits, num_splits, Allocate, Done, call);
}

int RaggedCall::Allocate(void* argument, const int64_t* rows, int ranks, void** out) {
  auto* call = static_cast<RaggedCall*>(static_cast<OpCall*>(argument));
  bool allocated = smddp::Guarded(
      [&] { return call->AllocateOthers(rows, ranks) && call->AllocateOutput(rows, ranks); },
      [](const smddp::Status&) { return false; });
  if (!allocated) return SMDDP_SYSTEM;
  *out = TF_TensorData(call->out_);
  return SMDDP_OK;
}

// Returns false after a failure, which it has reported to TensorFlow.
bool RaggedCall::AllocateOutput(const int64_t* rows, int ranks) {
  std::vector<int64_t> dims = dims_;
  if (dims.empty()) dims.push_back(0);  // a scalar is one row
  dims[0] = std::accumulate(rows, rows + ranks, int64_t{0});
  size_t bytes = SizeOf(attributes().dtype);
  for (int64_t dim : dims) bytes *= static_cast<size_t>(dim);
  ScopedStatus status;
  out_ = TF_AllocateOutput(context_, 0, attributes().dtype, dims.data(),
                           static_cast<int>(dims.size()), bytes, status);
  if (!status.ok()) TF_OpKernelContext_Failure(context_, status);
  return status.ok();
}

}  // namespace smddp_tf
