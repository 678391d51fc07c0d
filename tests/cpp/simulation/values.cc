#include "values.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace smddp_sim {

using smddp::DType;
using smddp::ReduceOp;

namespace {

template <typename T>
void Put(T value, char* to) {
  std::memcpy(to, &value, sizeof value);
}

// Of values that the type holds exactly.
uint16_t HalfBits(double value) {
  if (value == 0) return 0;
  int exponent = 0;
  double fraction = std::frexp(std::fabs(value), &exponent);  // in [0.5, 1)
  auto bits = static_cast<uint16_t>((exponent + 14) << 10);
  bits = static_cast<uint16_t>(bits + static_cast<uint16_t>((fraction * 2 - 1) * 1024));
  return static_cast<uint16_t>(bits | (value < 0 ? 0x8000 : 0));
}

uint16_t Bfloat16Bits(double value) {
  uint32_t bits;
  auto single = static_cast<float>(value);
  std::memcpy(&bits, &single, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

bool IsInteger(DType dtype) {
  return dtype == DType::kInt32 || dtype == DType::kInt64 || dtype == DType::kInt8 ||
         dtype == DType::kUint8 || dtype == DType::kInt16;
}

}  // namespace

double InputValue(int id, int tensor, int rank, size_t i, bool power_of_two) {
  uint64_t mixed = static_cast<uint64_t>(id) * 7919 + static_cast<uint64_t>(tensor) * 104729 +
                   static_cast<uint64_t>(rank) * 31 + i * 3;
  mixed = (mixed ^ (mixed >> 7)) * 0x9e3779b97f4a7c15ull >> 40;
  return power_of_two ? static_cast<double>(1 + mixed % 2) : static_cast<double>(1 + mixed % 5);
}

void Encode(DType dtype, double value, char* to) {
  auto whole = static_cast<int64_t>(value);
  switch (dtype) {
    case DType::kFloat32:
      return Put(static_cast<float>(value), to);
    case DType::kFloat64:
      return Put(value, to);
    case DType::kFloat16:
      return Put(HalfBits(value), to);
    case DType::kBfloat16:
      return Put(Bfloat16Bits(value), to);
    case DType::kInt32:
      return Put(static_cast<int32_t>(whole), to);
    case DType::kInt64:
      return Put(whole, to);
    case DType::kInt16:
      return Put(static_cast<int16_t>(whole), to);
    default:
      return Put(static_cast<uint8_t>(whole), to);  // and int8, which wraps alike
  }
}

void EncodeReduced(const smddp::Request& request, const std::vector<double>& values, int size,
                   char* to) {
  double result = values[0];
  for (size_t i = 1; i < values.size(); ++i) {
    if (request.op == ReduceOp::kMin) {
      result = std::min(result, values[i]);
    } else if (request.op == ReduceOp::kMax) {
      result = std::max(result, values[i]);
    } else if (request.op == ReduceOp::kProduct) {
      result *= values[i];
    } else {
      result += values[i];
    }
  }
  double scale = request.prescale * request.postscale;
  if (request.op == ReduceOp::kAverage && IsInteger(request.dtype)) {
    result = static_cast<double>(static_cast<int64_t>(result) / size);
  } else if (request.op == ReduceOp::kAverage) {
    scale /= size;
  }
  if (request.dtype == DType::kFloat64) {
    result *= scale;
  } else if (IsInteger(request.dtype)) {
    result *= scale;
  } else {
    result = static_cast<float>(result) * static_cast<float>(scale);
  }
  Encode(request.dtype, result, to);
}

}  // namespace smddp_sim
