// The tensors of one operation on one rank, between guards, and what they must hold.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "program.h"

namespace smddp_sim {

class Buffers {
 public:
  // `id` tells the values of operations apart. What is passed outlives the buffers.
  Buffers(const Program& program, const Item& item, const Call& call, int id, int rank);

  void PlaceOn(smddp::Device* device, smddp::DevicePoint ready) {
    request_.PlaceOn(device, std::move(ready));
  }
  // With the addresses of the tensors.
  const smddp::Request& request() const { return request_; }
  // The functions that check return what is wrong, "" if nothing is.
  std::string CheckResult() const;     // of an operation that returned OK
  std::string CheckUntouched() const;  // of one that failed before any tensor was touched
  std::string CheckGuards() const;
  // The caller has its tensors back: from now on they stay as they are.
  void Keep() { kept_ = memory_; }
  std::string CheckKept() const;

 private:
  char* Data(size_t index) { return memory_[index].data() + kGuard; }
  const char* Data(size_t index) const { return memory_[index].data() + kGuard; }
  size_t Bytes(size_t index) const { return memory_[index].size() - 2 * kGuard; }
  size_t Add(std::vector<char> content);
  double Value(size_t tensor, int rank, size_t i) const;
  std::vector<char> Input(size_t tensor, int rank) const;
  size_t Count(size_t tensor, int rank) const;
  std::vector<char> Wanted(size_t tensor) const;
  std::vector<char> WantedReduced(size_t tensor) const;
  std::vector<char> WantedGathered() const;

  static constexpr size_t kGuard = 64;
  const Program& program_;
  const Item& item_;
  const Call& call_;
  int id_, rank_;
  smddp::Request request_;
  std::vector<size_t> in_, out_;           // of each tensor, indices of memory_
  std::vector<std::vector<char>> memory_;  // with guards
  std::vector<std::vector<char>> first_, kept_;
  std::vector<std::vector<char>> wanted_;  // of each tensor
};

}  // namespace smddp_sim
