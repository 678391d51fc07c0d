// The functions that compressors call.
#include <initializer_list>
#include <limits>
#include <map>
#include <mutex>
#include <string>

#include "capi/last_error.h"
#include "capi/smddp.h"
#include "kernels/cpu/compress.h"
#include "kernels/cuda/image.h"
#include "kernels/int8.h"
#include "transport/cuda/compress_kernels.h"

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

Status FindGpu(const void* address, CudaDevice** device, const CompressKernels** kernels) {
  Status status = CudaDevice::Find(address, device);
  if (!status.ok()) return status;
  std::string why;
  *kernels = CompressKernels::Find(*device, CompressImage(), &why);
  if (*kernels != nullptr) return {};
  return {Code::kSystem, "gradients cannot be compressed on this GPU: " + why};
}

// A stream for what is not enqueued in TensorFlow's.
Status OwnStream(CudaDevice* device, void** stream) {
  static std::mutex mutex;
  static auto& streams = *new std::map<CudaDevice*, void*>();
  std::lock_guard<std::mutex> lock(mutex);
  void*& own = streams[device];
  Status status = own == nullptr ? device->NewStream(&own) : Status();
  *stream = own;
  return status;
}

// Calls enqueue(kernels, stream), which launches kernels for the GPU that has `address`. Where
// TensorFlow's stream is not known, the host waits for all that the GPU does, before and after.
template <typename Enqueue>
Status OnGpu(const void* address, void* stream, Enqueue&& enqueue) {
  CudaDevice* device = nullptr;
  const CompressKernels* kernels = nullptr;
  Status status = FindGpu(address, &device, &kernels);
  if (!status.ok()) return status;
  if (stream != kEveryStream) return enqueue(*kernels, stream);
  DevicePoint reached;
  status = device->Record(kEveryStream, &reached);
  if (status.ok()) status = OwnStream(device, &stream);
  if (status.ok()) status = enqueue(*kernels, stream);
  return status.ok() ? device->Record(kEveryStream, &reached) : status;
}

// What the kernels load or store as words.
Status CheckAligned(std::initializer_list<const void*> arrays) {
  constexpr uintptr_t kAlign = 16;
  for (const void* array : arrays) {
    if (reinterpret_cast<uintptr_t>(array) % kAlign != 0) {
      return {Code::kUsage, "an array of a compressor on a GPU does not begin at a multiple of " +
                                std::to_string(kAlign) + " bytes; give TensorFlow's own"};
    }
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

int smddp_gpu_compressors(const void* address) {
  CudaDevice* device = nullptr;
  const CompressKernels* kernels = nullptr;
  return ReturnOf([&] { return FindGpu(address, &device, &kernels); });
}

int smddp_gpu_int8_quantize(int dtype, const void* in, int64_t count, int8_t* codes, float* scales,
                            void* stream) {
  Status status = Check(dtype, count);
  if (status.ok()) status = CheckAligned({codes});
  if (!status.ok() || count == 0) return Return(status);
  Int8QuantizeArgs args{in, codes, scales, static_cast<uint64_t>(count)};
  auto enqueue = [&](const CompressKernels& kernels, void* in_stream) {
    return kernels.Int8Quantize(static_cast<DType>(dtype), args, in_stream);
  };
  return ReturnOf([&] { return OnGpu(codes, stream, enqueue); });
}

int smddp_gpu_int8_sum(const int8_t* codes, const float* scales, int ranks, float divisor,
                       int dtype, void* out, int64_t count, void* stream) {
  Status status = Check(dtype, count, ranks);
  if (status.ok()) status = CheckAligned({codes, out});
  if (!status.ok() || count == 0) return Return(status);
  Int8SumArgs args{codes,  scales, out, static_cast<uint64_t>(count), static_cast<uint32_t>(ranks),
                   divisor};
  auto enqueue = [&](const CompressKernels& kernels, void* in_stream) {
    return kernels.Int8Sum(static_cast<DType>(dtype), args, in_stream);
  };
  return ReturnOf([&] { return OnGpu(out, stream, enqueue); });
}

int64_t smddp_gpu_topk_select_scratch(int64_t count) {
  return static_cast<int64_t>(CompressKernels::TopkSelectScratch(static_cast<uint32_t>(count)));
}

int64_t smddp_gpu_topk_sum_scratch(int dtype, int64_t count) {
  return static_cast<int64_t>(
      CompressKernels::TopkSumScratch(static_cast<DType>(dtype), static_cast<uint32_t>(count)));
}

int smddp_gpu_topk_select(int dtype, const void* in, const float* kept, int64_t count, int64_t k,
                          int32_t* indices, float* values, float* residual, void* scratch,
                          void* stream) {
  Status status = CheckTopk(dtype, count, k);
  if (status.ok()) status = CheckAligned({residual, scratch});
  if (!status.ok()) return Return(status);
  TopkSelectArgs args = {};
  args.in = in;
  args.kept = kept;
  args.total = residual;
  args.indices = indices;
  args.values = values;
  args.count = static_cast<uint32_t>(count);
  args.k = static_cast<uint32_t>(k);
  auto enqueue = [&](const CompressKernels& kernels, void* in_stream) {
    return kernels.TopkSelect(static_cast<DType>(dtype), args, scratch, in_stream);
  };
  return ReturnOf([&] { return OnGpu(residual, stream, enqueue); });
}

int smddp_gpu_topk_sum(const int32_t* indices, const float* values, int ranks, int64_t k,
                       float divisor, int dtype, void* out, int64_t count, void* scratch,
                       void* stream) {
  Status status = CheckTopk(dtype, count, k, ranks);
  if (status.ok()) status = CheckAligned({out, scratch});
  if (!status.ok()) return Return(status);
  TopkSumArgs args = {};
  args.indices = indices;
  args.values = values;
  args.out = out;
  args.count = static_cast<uint32_t>(count);
  args.k = static_cast<uint32_t>(k);
  args.divisor = divisor;
  auto enqueue = [&](const CompressKernels& kernels, void* in_stream) {
    return kernels.TopkSum(static_cast<DType>(dtype), args, static_cast<uint32_t>(ranks), scratch,
                           in_stream);
  };
  return ReturnOf([&] { return OnGpu(out, stream, enqueue); });
}
