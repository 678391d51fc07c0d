// Compression.topk's arithmetic (smddp_tf/_src/compression/topk.py): selecting in one pass over a
// gradient, and adding up what the ranks selected.
#include "capi/smddp.h"
#include "tf/kernels/compress_op.h"

namespace smddp_tf {
namespace {

void Select(const CompressAttributes& self, TF_OpKernelContext* context) {
  Input tensor(context, 0), kept(context, 1);
  if (tensor.Failed(context) || kept.Failed(context)) return;
  int64_t count = TF_TensorElementCount(tensor.get());
  if (TF_TensorElementCount(kept.get()) != count) {
    std::string text = "Compression.topk: the gradient has " + std::to_string(count) +
                       " elements, but what was kept of it " +
                       std::to_string(TF_TensorElementCount(kept.get())) +
                       "; give a gradient of another shape another name";
    return FailOp(context, SMDDP_USAGE, text.c_str());
  }
  Output indices(context, 0, SMDDP_INT32, {self.k});
  if (indices.Failed(context)) return;
  Output values(context, 1, SMDDP_FLOAT32, {self.k});
  if (values.Failed(context)) return;
  Output residual(context, 2, SMDDP_FLOAT32, {count});
  if (residual.Failed(context)) return;
  const void* in = TF_TensorData(tensor.get());
  auto* add = static_cast<const float*>(TF_TensorData(kept.get()));
  auto* index = static_cast<int32_t*>(indices.data());
  auto *value = static_cast<float*>(values.data()), *rest = static_cast<float*>(residual.data());
  ReportCode(context, smddp_topk_select(self.dtype, in, add, count, self.k, index, value, rest));
}

void Sum(const CompressAttributes& self, TF_OpKernelContext* context) {
  Input indices(context, 0), values(context, 1);
  if (indices.Failed(context) || values.Failed(context)) return;
  std::vector<int64_t> dims = Dims(indices.get());
  if (dims.size() != 2 || Dims(values.get()) != dims) {
    return FailOp(context, SMDDP_USAGE,
                  "Compression.topk: indices and values must both be [ranks, k]");
  }
  Output sum(context, 0, self.dtype, {self.count});
  if (sum.Failed(context)) return;
  auto* index = static_cast<const int32_t*>(TF_TensorData(indices.get()));
  auto* value = static_cast<const float*>(TF_TensorData(values.get()));
  auto ranks = static_cast<int>(dims[0]);
  auto divisor = static_cast<float>(self.divisor);
  ReportCode(context, smddp_topk_sum(index, value, ranks, dims[1], divisor, self.dtype, sum.data(),
                                     self.count));
}

}  // namespace

void RegisterTopkOps() {
  RegisterCompressOp<kHasK, Select>("SmddpTopkSelect", {"tensor: dtype", "kept: float"},
                                    {"indices: int32", "values: float", "residual: float"},
                                    {kGradientType, "k: int >= 1"});
  RegisterCompressOp<kHasCountAndDivisor, Sum>(
      "SmddpTopkSum", {"indices: int32", "values: float"}, {"sum: dtype"},
      {kGradientType, "count: int >= 1", "divisor: int >= 1"});
}

}  // namespace smddp_tf
