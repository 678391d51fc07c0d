// Compression.int8's arithmetic, in one pass over a gradient (smddp_tf/_src/compression/int8.py).
#include "capi/smddp.h"
#include "tf/kernels/compress_op.h"

namespace smddp_tf {
namespace {

constexpr int64_t kChunk = SMDDP_INT8_CHUNK;

void Quantize(const CompressAttributes& self, TF_OpKernelContext* context) {
  Input tensor(context, 0);
  if (tensor.Failed(context)) return;
  int64_t count = TF_TensorElementCount(tensor.get()), chunks = (count + kChunk - 1) / kChunk;
  Output codes(context, 0, SMDDP_INT8, {chunks, kChunk});
  if (codes.Failed(context)) return;
  Output scales(context, 1, SMDDP_FLOAT32, {chunks, 1});
  if (scales.Failed(context)) return;
  const void* in = TF_TensorData(tensor.get());
  auto* to = static_cast<int8_t*>(codes.data());
  auto* scale = static_cast<float*>(scales.data());
  ReportCode(context, smddp_int8_quantize(self.dtype, in, count, to, scale));
}

void Sum(const CompressAttributes& self, TF_OpKernelContext* context) {
  Input codes(context, 0), scales(context, 1);
  if (codes.Failed(context) || scales.Failed(context)) return;
  std::vector<int64_t> dims = Dims(codes.get());
  int64_t chunks = (self.count + kChunk - 1) / kChunk, ranks = dims.empty() ? 0 : dims[0];
  if (dims != std::vector<int64_t>{ranks, chunks, kChunk} ||
      Dims(scales.get()) != std::vector<int64_t>{ranks, chunks, 1}) {
    return FailOp(context, SMDDP_USAGE,
                  "Compression.int8: codes must be [ranks, chunks, 256] and scales "
                  "[ranks, chunks, 1], of as many chunks as the gradient has");
  }
  Output sum(context, 0, self.dtype, {self.count});
  if (sum.Failed(context)) return;
  auto* from = static_cast<const int8_t*>(TF_TensorData(codes.get()));
  auto* scale = static_cast<const float*>(TF_TensorData(scales.get()));
  auto divisor = static_cast<float>(self.divisor);
  auto of = static_cast<int>(ranks);
  ReportCode(context, smddp_int8_sum(from, scale, of, divisor, self.dtype, sum.data(), self.count));
}

}  // namespace

void RegisterInt8Ops() {
  RegisterCompressOp<kTypeOnly, Quantize>("SmddpInt8Quantize", {"tensor: dtype"},
                                          {"codes: int8", "scales: float"}, {kGradientType});
  RegisterCompressOp<kHasCountAndDivisor, Sum>(
      "SmddpInt8Sum", {"codes: int8", "scales: float"}, {"sum: dtype"},
      {kGradientType, "count: int >= 0", "divisor: int >= 1"});
}

}  // namespace smddp_tf
