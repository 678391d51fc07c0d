// The ops for alltoall and reducescatter; the others are in collective_ops.cc.
#include <functional>
#include <memory>
#include <numeric>

#include "tf/runtime/async_call.h"
#include "tf/runtime/register.h"

namespace smddp_tf {
namespace {

// ---- alltoall -----------------------------------------------------------------------------------

// The layout of the numbers that ranks exchange first; the splits follow.
enum : size_t { kNdim, kRows, kRowElements, kGivenSplits, kFirstSplit };

// This rank's numbers. Without splits, rows are divided evenly if possible.
std::vector<int64_t> Offer(const std::vector<int64_t>& dims, const int32_t* splits, int64_t given,
                           size_t size) {
  int64_t row = 1, n = static_cast<int64_t>(size);
  for (size_t i = 1; i < dims.size(); ++i) row *= dims[i];
  std::vector<int64_t> offer{static_cast<int64_t>(dims.size()), dims.empty() ? 0 : dims[0], row,
                             given};
  for (int64_t p = 0; p < n; ++p) {
    offer.push_back(given == 0 ? offer[kRows] / n : p < given ? splits[p] : 0);
  }
  return offer;
}

// Returns "" if all offers are valid and consistent, otherwise the same message on every rank.
std::string CheckOffers(const std::vector<std::vector<int64_t>>& offers,
                        const std::vector<int32_t>& ranks) {
  int64_t size = static_cast<int64_t>(offers.size());
  auto number = [](int64_t value) { return std::to_string(value); };
  for (size_t r = 0; r < offers.size(); ++r) {
    const std::vector<int64_t>& offer = offers[r];
    if (offer[kNdim] == 0 && offer[kRowElements] == 0) {
      return "alltoall: rank " + number(ranks[r]) + " has called join(), so it has nothing to send";
    }
    std::string who = "alltoall: rank " + number(ranks[r]) + " has ";
    if (offer[kNdim] == 0) return who + "a scalar; it takes tensors of at least one dimension";
    if (offer[kNdim] != offers[0][kNdim] || offer[kRowElements] != offers[0][kRowElements]) {
      return who + number(offer[kNdim]) + " dimensions and " + number(offer[kRowElements]) +
             " elements a row, rank " + number(ranks[0]) + " has " + number(offers[0][kNdim]) +
             " and " + number(offers[0][kRowElements]) + "; all but the first must agree";
    }
    if (offer[kGivenSplits] == 0 && offer[kRows] % size != 0) {
      return who + number(offer[kRows]) + " rows, which " + number(size) +
             " ranks do not divide; give splits";
    }
    if (offer[kGivenSplits] != 0 && offer[kGivenSplits] != size) {
      return who + number(offer[kGivenSplits]) + " splits for " + number(size) +
             " ranks; give one for each";
    }
    int64_t sum = 0;
    for (int64_t p = 0; p < size; ++p) {
      int64_t split = offer[kFirstSplit + static_cast<size_t>(p)];
      if (split < 0) return who + "a split of " + number(split) + "; splits are not negative";
      sum += split;
    }
    if (sum != offer[kRows]) {
      return who + "splits that sum to " + number(sum) + " for " + number(offer[kRows]) +
             " rows; they must be equal";
    }
  }
  return "";
}

class AlltoallCall : public AsyncCall {
  void Start() override {
    in_ = std::make_unique<Input>(context_, 0);
    Input splits(context_, 1);
    if (in_->Failed(context_) || splits.Failed(context_)) return Finish();
    dims_ = Dims(in_->get());
    ranks_ = RanksOf(attributes());
    std::vector<int64_t> own =
        Offer(dims_, static_cast<const int32_t*>(TF_TensorData(splits.get())),
              TF_TensorElementCount(splits.get()), ranks_.size());
    GatherNumbers("splits", own, ranks_.size(), [this](const Rows& offers) { Exchange(offers); });
  }

  void Exchange(const Rows& offers) {
    std::string problem = CheckOffers(offers, ranks_);
    if (!problem.empty()) return Fail(SMDDP_USAGE, problem);
    size_t size = offers.size(), self = 0;
    while (ranks_[self] != smddp_rank()) ++self;
    std::vector<int64_t> bytes;
    int64_t row = offers[0][kRowElements] * static_cast<int64_t>(SizeOf(attributes().dtype));
    for (const auto& offer : offers) {
      for (size_t p = 0; p < size; ++p) bytes.push_back(offer[kFirstSplit + p] * row);
    }
    if (!Allocate(offers, self, row)) return Finish();
    smddp_tensor tensor{TF_TensorData(in_->get()), TF_TensorData(out_),
                        static_cast<int32_t>(dims_.size()), dims_.data()};
    smddp_request request = MakeRequest(SMDDP_ALLTOALL, attributes(), {});
    request.num_tensors = 1;
    request.tensors = &tensor;
    request.part_bytes = bytes.data();
    Post(request, [this] { Finish(); });
  }

  // Allocates both outputs and fills in the second. Returns false after a failure, which it has
  // reported to TensorFlow.
  bool Allocate(const Rows& offers, size_t self, int64_t row) {
    ScopedStatus status;
    int64_t n = static_cast<int64_t>(offers.size());
    TF_Tensor* received =
        TF_AllocateOutput(context_, 1, kTfInt32, &n, 1, static_cast<size_t>(n) * 4, status);
    std::vector<int64_t> out_dims = dims_;
    out_dims[0] = 0;
    for (size_t r = 0; r < offers.size() && status.ok(); ++r) {
      int64_t rows = offers[r][kFirstSplit + self];
      static_cast<int32_t*>(TF_TensorData(received))[r] = static_cast<int32_t>(rows);
      out_dims[0] += rows;
    }
    if (received != nullptr) TF_DeleteTensor(received);
    if (status.ok()) {
      out_ = TF_AllocateOutput(context_, 0, attributes().dtype, out_dims.data(),
                               static_cast<int>(out_dims.size()),
                               static_cast<size_t>(out_dims[0] * row), status);
    }
    if (!status.ok()) TF_OpKernelContext_Failure(context_, status);
    return status.ok();
  }

 public:
  ~AlltoallCall() override {
    if (out_ != nullptr) TF_DeleteTensor(out_);
  }

 private:
  std::unique_ptr<Input> in_;
  std::vector<int64_t> dims_;
  std::vector<int32_t> ranks_;
  TF_Tensor* out_ = nullptr;
};

// ---- reducescatter ------------------------------------------------------------------------------

// The number of `rows` that this rank receives, as divided in collective/host/exchange.h.
int64_t OwnRows(int64_t rows, int64_t size, int64_t self) {
  return rows / size + (self < rows % size ? 1 : 0);
}

class ReduceScatterCall : public AsyncCall {
  void Start() override {
    std::vector<int32_t> ranks = RanksOf(attributes());
    int64_t size = static_cast<int64_t>(ranks.size()), self = 0;
    while (self + 1 < size && ranks[static_cast<size_t>(self)] != smddp_rank()) ++self;
    size_t count = static_cast<size_t>(attributes().num_tensors);
    dims_.reserve(count);  // no reallocation: tensors_ points into it
    for (size_t i = 0; i < count; ++i) {
      if (!Add(static_cast<int>(i), size, self)) return Finish();
    }
    Post(MakeRequest(SMDDP_REDUCESCATTER, attributes(), tensors_), [this] { Finish(); });
  }

  // Opens input i and allocates output i. Returns false after a failure, which it has reported to
  // TensorFlow.
  bool Add(int i, int64_t size, int64_t self) {
    inputs_.push_back(std::make_unique<Input>(context_, i));
    if (inputs_.back()->Failed(context_)) return false;
    TF_Tensor* in = inputs_.back()->get();
    dims_.push_back(Dims(in));
    if (dims_.back().empty()) {
      FailOp(context_, SMDDP_USAGE, "reducescatter takes tensors of at least one dimension");
      return false;
    }
    std::vector<int64_t> own = dims_.back();
    own[0] = OwnRows(own[0], size, self);
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

void RegisterExchangeOps() {
  RegisterAsync<AlltoallCall, CreateAttributes<kHasType>, DestroyAttributes>(
      {"SmddpAlltoall",
       {"tensor: T", "splits: int32"},
       {"output: T", "received_splits: int32"},
       {kTypeAttr, kNameAttr, kSetAttr, kMatchingAttr},
       true,
       UnknownShape});
  RegisterAsync<ReduceScatterCall, CreateAttributes<kHasType | kHasReduce | kHasList>,
                DestroyAttributes>(
      {"SmddpReducescatter",
       {"tensors: N * T"},
       {"outputs: N * T"},
       {kTypeAttr, "N: int >= 1", "reduce_op: int", "prescale: float = 1.0",
        "postscale: float = 1.0", kNameAttr, kSetAttr, kMatchingAttr},
       true,
       UnknownShape});
}

}  // namespace smddp_tf
