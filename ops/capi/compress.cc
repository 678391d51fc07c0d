// The functions that compressors call.
#include <limits>
#include <string>

#include "capi/last_error.h"
#include "capi/smddp.h"
#include "kernels/cpu/compress.h"
#include "kernels/int8.h"

using namespace smddp;  // this file has C functions only

static_assert(kInt8Chunk == SMDDP_INT8_CHUNK);

namespace {

Status Check(int dtype, int64_t count, int ranks = 1) {
  const DTypeInfo* info = FindDType(dtype);
  if (info == nullptr || !IsFloating(info->dtype)) {
    return {Code::kUsage, "gradients of dtype " + std::to_string(dtype) +
                              " cannot be compressed; give float16, bfloat16, float32 or float64"};
  }
  if (count < 0 || ranks < 1) {
    return {Code::kUsage, std::to_string(count) + " elements of " + std::to_string(ranks) +
                              " ranks cannot be compressed; give none or more of one or more"};
  }
  return {};
}

Status CheckTopk(int dtype, int64_t count, int64_t k, int ranks = 1) {
  Status status = Check(dtype, count, ranks);
  if (!status.ok()) return status;
  if (k < 1 || k > count || count > std::numeric_limits<int32_t>::max()) {
    return {Code::kUsage, "Compression.topk cannot take " + std::to_string(k) + " of " +
                              std::to_string(count) +
                              " elements; it takes 1 or more, of 2^31 - 1 at most"};
  }
  return {};
}

}  // namespace

int smddp_int8_quantize(int dtype, const void* in, int64_t count, int8_t* codes, float* scales) {
  Status status = Check(dtype, count);
  if (!status.ok()) return Return(status);
  Int8Quantize(static_cast<DType>(dtype), in, static_cast<size_t>(count), codes, scales);
  return SMDDP_OK;
}

int smddp_int8_sum(const int8_t* codes, const float* scales, int ranks, float divisor, int dtype,
                   void* out, int64_t count) {
  Status status = Check(dtype, count, ranks);
  if (!status.ok()) return Return(status);
  Int8Sum(codes, scales, static_cast<size_t>(ranks), divisor, static_cast<DType>(dtype), out,
          static_cast<size_t>(count));
  return SMDDP_OK;
}

int smddp_topk_select(int dtype, const void* in, const float* kept, int64_t count, int64_t k,
                      int32_t* indices, float* values, float* residual) {
  Status status = CheckTopk(dtype, count, k);
  if (!status.ok()) return Return(status);
  return ReturnOf([&]() -> Status {
    TopkSelect(static_cast<DType>(dtype), in, kept, static_cast<size_t>(count),
               static_cast<size_t>(k), indices, values, residual);
    return {};
  });
}

int smddp_topk_sum(const int32_t* indices, const float* values, int ranks, int64_t k, float divisor,
                   int dtype, void* out, int64_t count) {
  Status status = CheckTopk(dtype, count, k, ranks);
  if (!status.ok()) return Return(status);
  return ReturnOf([&] {
    return TopkSum(indices, values, static_cast<size_t>(ranks), static_cast<size_t>(k), divisor,
                   static_cast<DType>(dtype), out, static_cast<size_t>(count));
  });
}
