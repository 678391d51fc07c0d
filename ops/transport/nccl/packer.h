// Packer: gathers the tensors of a reduction in one buffer of the GPU, casts and scales them on the
// way, and brings the results back: a kernel for each, however many tensors there are, and one
// call of NCCL between them.
//
// 16-bit floats are float32 in the buffer, so NCCL sums them in that.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/cuda/pack_kernels.h"
#include "transport/device_group.h"
#include "transport/nccl/pack_layout.h"

namespace smddp {

// Memory of a GPU that is kept, and grows by doubling. What it had before is kept as well, since
// freeing it would wait for the GPU, and so for the peers.
class KeptMemory {
 public:
  explicit KeptMemory(CudaDevice* device) : device_(device) {}
  ~KeptMemory() { Free(); }
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;

  // *memory is at least of that size.
  Status Get(size_t bytes, char** memory);
  void Free();

 private:
  CudaDevice* const device_;
  std::vector<void*> all_;  // the last one is the largest
  size_t bytes_ = 0;
};

class Packer {
 public:
  // Reduces elements of the GPU in place: `count` of them, or for a reducescatter as many for each
  // rank, of which this rank's place gets its own.
  using Reduction = std::function<Status(char* wire, size_t count, DType dtype)>;

  // What is larger than `most_wire` bytes, a multiple of kPackAlign, goes through the buffer in
  // pieces; the same on all ranks.
  Packer(CudaDevice* device, const PackKernels* kernels, int rank, uint64_t most_wire)
      : device_(device),
        kernels_(kernels),
        rank_(rank),
        most_wire_(most_wire),
        wire_(device),
        table_(device) {}

  // Whether NCCL cannot do without. These two follow from the collective alone.
  static bool Needed(const DeviceCollective& reduction);
  // Whether to pack, where it can be done; what is not reduced is not packed.
  static bool Pays(const DeviceCollective& reduction);

  // Takes the memory that Reduce() needs. Any thread may call it.
  Status Reserve(const DeviceCollective& reduction);
  // Enqueues the reduction in `stream`. *table is host memory that must live until it has ended.
  Status Reduce(const DeviceCollective& reduction, void* stream, std::shared_ptr<char>* table,
                const Reduction& reduce);
  // Frees the memory, for which it may wait until the GPU stands still. Of the thread that reduces.
  void Release();

 private:
  struct Places {
    char *wire, *table;  // on the GPU
  };
  Status Take(const PackLayout& layout, Places* places);
  Status HostTable(size_t bytes, std::shared_ptr<char>* table);

  CudaDevice* const device_;
  const PackKernels* const kernels_;
  const int rank_;
  const uint64_t most_wire_;
  std::mutex mutex_;  // protects the two below
  KeptMemory wire_, table_;
  // Pinned. Free if nobody else shares it; of the thread that reduces.
  std::vector<std::pair<std::shared_ptr<char>, size_t>> host_tables_;
};

}  // namespace smddp
