// Packer: gathers the tensors of a reduction in one buffer of the GPU, casts and scales them on the
// way, and brings the results back: a kernel for each, however many tensors there are, and one
// call of NCCL between them.
//
// 16-bit floats are float32 in the buffer, so NCCL sums them in that.
//
// All memory is taken before the ranks connect. To take some later may wait for the GPU, and so for
// a peer that has died, on a thread that would have to end that.
#pragma once

#include <functional>
#include <memory>
#include <utility>  // for move

#include "transport/cuda/pack_kernels.h"
#include "transport/device_group.h"
#include "transport/nccl/pack_layout.h"
#include "transport/nccl/pack_tables.h"

namespace smddp {

// On the GPU.
struct PackMemory {
  std::shared_ptr<char> wire;   // the buffer
  size_t wire_bytes = 0;        // a multiple of kPackAlign, and at least that for each rank and one
  std::shared_ptr<char> table;  // of PackTables::kMostBytes
};

class Packer {
 public:
  // Reduces elements of the GPU. `count` is the number of elements of an allreduce, or that each
  // rank gets of a scatter.
  using Call = std::function<Status(char* in, char* out, size_t count, DType dtype)>;

  // For this rank of the group. What is larger than the wire goes through it in pieces; the same on
  // all ranks.
  Packer(CudaDevice* device, const PackKernels* kernels, int rank, PackMemory memory)
      : device_(device), kernels_(kernels), rank_(rank), memory_(std::move(memory)) {}

  // Whether NCCL cannot do without. These three are the same on all ranks.
  static bool Needed(const DeviceCollective& reduction);
  // Whether to pack, where it can be done; what is not reduced is not packed.
  static bool Pays(const DeviceCollective& reduction);
  // Whether it is not of too many tensors.
  bool Fits(const DeviceCollective& reduction) const;

  // The following are of the thread that reduces.
  Status TakeTables() { return tables_.Take(device_); }
  // Host memory for the reduction's table, which must live until the reduction has ended; null
  // while there is none.
  std::shared_ptr<char> Table(const DeviceCollective& reduction) const;
  // Enqueues the reduction in `stream`.
  Status Reduce(const DeviceCollective& reduction, void* stream, char* table, const Call& reduce);
  // Frees the memory, for which it may wait until the GPU stands still.
  void Release();

 private:
  PackLayout LayOut(const DeviceCollective& reduction) const;
  Status CopyTable(const PackLayout& layout, void* stream, char* table);
  PackArgs ArgsOf(const PackLayout& layout, char* wire, uint64_t begin, uint64_t end,
                  double factor) const;

  CudaDevice* const device_;
  const PackKernels* const kernels_;
  const int rank_;
  PackMemory memory_;
  PackTables tables_;
};

}  // namespace smddp
