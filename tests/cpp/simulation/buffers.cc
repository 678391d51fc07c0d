#include "buffers.h"

#include <cstring>

#include "core/ranges.h"
#include "values.h"

namespace smddp_sim {
namespace {

using smddp::Info;
using smddp::Kind;
using smddp::ReduceOp;

constexpr char kGuardByte = '\x5a', kOldByte = '\x3c';

}  // namespace

Buffers::Buffers(const Program& program, const Item& item, const Call& call, int id, int rank)
    : program_(program),
      item_(item),
      call_(call),
      id_(id),
      rank_(rank),
      request_(RequestOf(call, program.size)) {
  for (size_t t = 0; t < request_.tensors.size(); ++t) {
    std::vector<char> input = Input(t, rank);
    if (request_.gathers()) request_.tensors[t].dims = {static_cast<int64_t>(Count(t, rank))};
    wanted_.push_back(Wanted(t));
    in_.push_back(Add(std::move(input)));
    size_t bytes = wanted_[t].size();
    out_.push_back(call.in_place ? in_[t] : Add(std::vector<char>(bytes, kOldByte)));
  }
  for (size_t t = 0; t < request_.tensors.size(); ++t) {
    request_.tensors[t].in = Data(in_[t]);
    request_.tensors[t].out = Data(out_[t]);
  }
  first_ = memory_;
}

size_t Buffers::Add(std::vector<char> content) {
  std::vector<char> all(content.size() + 2 * kGuard, kGuardByte);
  if (!content.empty()) std::memcpy(all.data() + kGuard, content.data(), content.size());
  memory_.push_back(std::move(all));
  return memory_.size() - 1;
}

// Elements that `rank` brings.
size_t Buffers::Count(size_t tensor, int rank) const {
  size_t n = static_cast<size_t>(program_.size), r = static_cast<size_t>(rank);
  if (call_.kind == Kind::kAllgather) return static_cast<size_t>(call_.gather[r]);
  if (call_.kind != Kind::kAlltoall) return request_.tensors[tensor].count();
  size_t count = 0;
  for (size_t p = 0; p < n; ++p) count += static_cast<size_t>(call_.gather[r * n + p]);
  return count;
}

double Buffers::Value(size_t tensor, int rank, size_t i) const {
  bool power = call_.op == ReduceOp::kProduct && Info(call_.dtype).size == 2;
  return InputValue(id_, static_cast<int>(tensor), rank, i, power);
}

std::vector<char> Buffers::Input(size_t tensor, int rank) const {
  size_t count = Count(tensor, rank), element = Info(call_.dtype).size;
  std::vector<char> bytes(count * element);
  for (size_t i = 0; i < count; ++i) {
    Encode(call_.dtype, Value(tensor, rank, i), bytes.data() + i * element);
  }
  return bytes;
}

std::vector<char> Buffers::Wanted(size_t tensor) const {
  if (request_.gathers()) return WantedGathered();
  if (!request_.reduces()) return Input(tensor, call_.root);
  return WantedReduced(tensor);
}

std::vector<char> Buffers::WantedReduced(size_t tensor) const {
  const auto& dims = call_.dims[tensor];
  size_t element = Info(call_.dtype).size, begin = 0, end = Count(tensor, rank_);
  if (call_.kind == Kind::kReduceScatter) {
    size_t row = dims[0] == 0 ? 0 : end / static_cast<size_t>(dims[0]);
    smddp::Range own = smddp::RowsOf(dims[0], program_.size, rank_);
    begin = own.begin * row;
    end = own.end * row;
  }
  std::vector<char> bytes((end - begin) * element);
  std::vector<double> values(program_.size);
  for (size_t i = begin; i < end; ++i) {
    for (int r = 0; r < program_.size; ++r) {
      values[r] = item_.absent[r] ? 0 : Value(tensor, r, i);
    }
    EncodeReduced(request_, values, program_.size, bytes.data() + (i - begin) * element);
  }
  return bytes;
}

std::vector<char> Buffers::WantedGathered() const {
  size_t n = static_cast<size_t>(program_.size), element = Info(call_.dtype).size;
  std::vector<char> bytes;
  for (size_t r = 0; r < n; ++r) {
    std::vector<char> part = Input(0, static_cast<int>(r));
    size_t first = 0, count = part.size() / element;
    if (call_.kind == Kind::kAlltoall) {
      for (int p = 0; p < rank_; ++p) first += static_cast<size_t>(call_.gather[r * n + p]);
      count = static_cast<size_t>(call_.gather[r * n + rank_]);
    }
    const char* from = part.data() + first * element;
    bytes.insert(bytes.end(), from, from + count * element);
  }
  return bytes;
}

std::string Buffers::CheckResult() const {
  for (size_t t = 0; t < out_.size(); ++t) {
    const std::vector<char>& wanted = wanted_[t];
    if (wanted.size() != Bytes(out_[t])) return "the size of an output is not what was wanted";
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (Data(out_[t])[i] == wanted[i]) continue;
      return "tensor " + std::to_string(t) + " is wrong from byte " + std::to_string(i) + " of " +
             std::to_string(wanted.size()) + ": " +
             std::to_string(static_cast<unsigned char>(Data(out_[t])[i])) + " instead of " +
             std::to_string(static_cast<unsigned char>(wanted[i]));
    }
    if (in_[t] != out_[t] && memory_[in_[t]] != first_[in_[t]]) return "an input was changed";
  }
  return CheckGuards();
}

std::string Buffers::CheckUntouched() const {
  return memory_ == first_ ? "" : "a tensor was changed although the ranks did not agree";
}

std::string Buffers::CheckGuards() const {
  for (const auto& memory : memory_) {
    for (size_t i = 0; i < kGuard; ++i) {
      if (memory[i] == kGuardByte && memory[memory.size() - 1 - i] == kGuardByte) continue;
      return "memory beside a tensor was written";
    }
  }
  return "";
}

std::string Buffers::CheckKept() const {
  return kept_.empty() || kept_ == memory_ ? "" : "a tensor changed after it had been handed back";
}

}  // namespace smddp_sim
