// PackTables: pinned memory from which the tables of packed reductions are copied to the GPU.
//
// All of it is taken before NCCL runs anything: to take more later may wait for the GPU, and so for
// a peer that has died, on the thread that would have to end that.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "transport/cuda/cuda_device.h"

namespace smddp {

// All functions are of the thread that enqueues the reductions.
class PackTables {
 public:
  // The largest table, which is of some 32,000 tensors.
  static constexpr size_t kMostBytes = 1 << 20;

  Status Take(CudaDevice* device);
  // Memory for a table of at most kMostBytes; null while what there is for it is in use. It is free
  // again once nobody shares it.
  std::shared_ptr<char> Get(size_t bytes) const;
  void Release() { tables_.clear(); }

 private:
  struct Table {
    std::shared_ptr<char> memory;
    size_t bytes;
  };
  std::vector<Table> tables_;  // the largest one last
};

}  // namespace smddp
