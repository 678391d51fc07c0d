// Alltoall and reducescatter: stateful and synchronous, like the ops of collective_ops.cc.
#include <functional>
#include <memory>
#include <numeric>

#include "tf/op_kernel.h"
#include "tf/parts.h"
#include "tf/register.h"
#include "tf/set_op.h"

namespace smddp_tf {
namespace {

// ---- alltoall -----------------------------------------------------------------------------------

// What every rank tells the others first; the splits follow.
enum : size_t { kNdim, kRows, kRowElements, kGivenSplits, kFirstSplit };

// The numbers of this rank. Without splits the rows are divided evenly, as far as they can be.
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

// Empty if all offers are sound and fit together; otherwise the same sentence on every rank.
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

// Allocates both outputs and runs. `offers` are sound.
void Exchange(const Attributes& attributes, TF_OpKernelContext* context, TF_Tensor* in, size_t self,
              const std::vector<std::vector<int64_t>>& offers) {
  size_t size = offers.size();
  std::vector<int64_t> in_dims = Dims(in), out_dims = in_dims, bytes;
  int64_t row = offers[0][kRowElements] * static_cast<int64_t>(SizeOf(attributes.dtype));
  for (const auto& offer : offers) {
    for (size_t p = 0; p < size; ++p) bytes.push_back(offer[kFirstSplit + p] * row);
  }
  ScopedStatus status;
  int64_t n = static_cast<int64_t>(size);
  TF_Tensor* received = TF_AllocateOutput(context, 1, kTfInt32, &n, 1, size * 4, status);
  if (!status.ok()) return TF_OpKernelContext_Failure(context, status);
  out_dims[0] = 0;
  for (size_t r = 0; r < size; ++r) {
    int64_t rows = offers[r][kFirstSplit + self];
    static_cast<int32_t*>(TF_TensorData(received))[r] = static_cast<int32_t>(rows);
    out_dims[0] += rows;
  }
  TF_DeleteTensor(received);
  size_t total = static_cast<size_t>(out_dims[0] * row);
  TF_Tensor* out = TF_AllocateOutput(context, 0, attributes.dtype, out_dims.data(),
                                     static_cast<int>(out_dims.size()), total, status);
  if (!status.ok()) return TF_OpKernelContext_Failure(context, status);
  smddp_tensor tensor{TF_TensorData(in), TF_TensorData(out), static_cast<int32_t>(in_dims.size()),
                      in_dims.data()};
  smddp_request request = MakeRequest(SMDDP_ALLTOALL, attributes, {});
  request.num_tensors = 1;
  request.tensors = &tensor;
  request.gather_bytes = bytes.data();
  int code = smddp_run(&request);
  if (code != SMDDP_OK) FailOp(context, code, smddp_last_error());
  TF_DeleteTensor(out);
}

void ComputeAlltoall(void* kernel, TF_OpKernelContext* context) {
  const Attributes& attributes = *static_cast<Attributes*>(kernel);
  Input in(context, 0), splits(context, 1);
  if (in.Failed(context) || splits.Failed(context)) return;
  std::vector<int32_t> ranks = RanksOf(attributes);
  std::vector<int64_t> own =
      Offer(Dims(in.get()), static_cast<const int32_t*>(TF_TensorData(splits.get())),
            TF_TensorElementCount(splits.get()), ranks.size());
  std::vector<std::vector<int64_t>> offers;
  int code = ExchangeNumbers(attributes, "splits", own, ranks.size(), &offers);
  if (code != SMDDP_OK) return FailOp(context, code, smddp_last_error());
  std::string problem = CheckOffers(offers, ranks);
  if (!problem.empty()) return FailOp(context, SMDDP_USAGE, problem.c_str());
  size_t self = 0;
  while (ranks[self] != smddp_rank()) ++self;
  Exchange(attributes, context, in.get(), self, offers);
}

// ---- reducescatter ------------------------------------------------------------------------------

// This rank's rows of `rows`; collective/exchange.h divides them the same way.
int64_t OwnRows(int64_t rows, int64_t size, int64_t self) {
  return rows / size + (self < rows % size ? 1 : 0);
}

void ComputeReduceScatter(void* kernel, TF_OpKernelContext* context) {
  const Attributes& attributes = *static_cast<Attributes*>(kernel);
  std::vector<int32_t> ranks = RanksOf(attributes);
  int64_t self = 0;
  while (self + 1 < static_cast<int64_t>(ranks.size()) && ranks[self] != smddp_rank()) ++self;
  int n = TF_NumInputs(context);
  std::vector<std::unique_ptr<Input>> inputs;
  std::vector<std::vector<int64_t>> dims;
  std::vector<smddp_tensor> tensors;
  std::vector<TF_Tensor*> outputs;
  ScopedStatus status;
  for (int i = 0; i < n && status.ok(); ++i) {
    inputs.push_back(std::make_unique<Input>(context, i));
    if (inputs.back()->Failed(context)) break;
    dims.push_back(Dims(inputs.back()->get()));
    if (dims.back().empty()) {
      FailOp(context, SMDDP_USAGE, "reducescatter takes tensors of at least one dimension");
      break;
    }
    std::vector<int64_t> own = dims.back();
    own[0] = OwnRows(own[0], static_cast<int64_t>(ranks.size()), self);
    int64_t count = std::accumulate(own.begin(), own.end(), int64_t{1}, std::multiplies<int64_t>());
    outputs.push_back(
        TF_AllocateOutput(context, i, attributes.dtype, own.data(), static_cast<int>(own.size()),
                          static_cast<size_t>(count) * SizeOf(attributes.dtype), status));
    if (!status.ok()) TF_OpKernelContext_Failure(context, status);
  }
  if (static_cast<int>(outputs.size()) == n && status.ok()) {
    for (int i = 0; i < n; ++i) {
      tensors.push_back({TF_TensorData(inputs[i]->get()), TF_TensorData(outputs[i]),
                         static_cast<int32_t>(dims[i].size()), dims[i].data()});
    }
    smddp_request request = MakeRequest(SMDDP_REDUCESCATTER, attributes, tensors);
    int code = smddp_run(&request);
    if (code != SMDDP_OK) FailOp(context, code, smddp_last_error());
  }
  for (TF_Tensor* output : outputs) {
    if (output != nullptr) TF_DeleteTensor(output);
  }
}

}  // namespace

void RegisterExchangeOps() {
  Register<CreateAttributes<kHasType>, ComputeAlltoall, DestroyAttributes>(
      {"SmddpAlltoall",
       {"tensor: T", "splits: int32"},
       {"output: T", "received_splits: int32"},
       {kTypeAttr, kNameAttr, kSetAttr},
       true,
       UnknownShape});
  Register<CreateAttributes<kHasType | kHasReduce>, ComputeReduceScatter, DestroyAttributes>(
      {"SmddpReducescatter",
       {"tensors: N * T"},
       {"outputs: N * T"},
       {kTypeAttr, "N: int >= 1", "reduce_op: int", "prescale: float = 1.0",
        "postscale: float = 1.0", kNameAttr, kSetAttr},
       true,
       UnknownShape});
}

}  // namespace smddp_tf
