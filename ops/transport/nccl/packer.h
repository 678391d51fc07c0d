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
#include <utility>  // for move
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

  // For `ranks` ranks, of which this one is `rank`. What is larger than `most_wire` bytes, a
  // multiple of kPackAlign, goes through the buffer in pieces; the same on all ranks. `registered`:
  // as many bytes, to be used for allreduces; may be null.
  Packer(CudaDevice* device, const PackKernels* kernels, int rank, int ranks, uint64_t most_wire,
         std::shared_ptr<char> registered)
      : device_(device),
        kernels_(kernels),
        rank_(rank),
        ranks_(static_cast<uint64_t>(ranks)),
        most_wire_(most_wire),
        registered_(std::move(registered)),
        wire_(device),
        table_(device) {}

  // Whether NCCL cannot do without. These two follow from the collective alone.
  static bool Needed(const DeviceCollective& reduction);
  // Whether to pack, where it can be done; what is not reduced is not packed.
  static bool Pays(const DeviceCollective& reduction);

  // Takes pinned memory for the tables of what is under way at a time, before anything is. To take
  // some later may wait for the GPU, and so for a peer that has died, on the thread that would have
  // to abort. Where there is none, it is taken when it is needed.
  void TakeHostTables();
  // Takes the memory that Reduce() needs. Any thread may call it.
  Status Reserve(const DeviceCollective& reduction);
  // Enqueues the reduction in `stream`. *table is host memory that must live until it has ended.
  Status Reduce(const DeviceCollective& reduction, void* stream, std::shared_ptr<char>* table,
                const Reduction& reduce);
  // The parts of an allreduce among groups: `scatter` leaves this rank's slice in its place of the
  // wire, `gather` those of all ranks in theirs; both get the elements of a slice.
  DeviceSlices SlicesOf(const DeviceCollective& reduction) const;
  Status ToHost(const DeviceCollective& reduction, void* stream, std::shared_ptr<char>* table,
                const Reduction& scatter);
  Status FromHost(const DeviceCollective& reduction, void* stream, std::shared_ptr<char>* table,
                  const Reduction& gather);
  // Frees the memory, for which it may wait until the GPU stands still. Of the thread that reduces.
  void Release();

 private:
  struct Places {
    char *wire, *table;  // on the GPU
  };
  Status Take(const DeviceCollective& reduction, const PackLayout& layout, Places* places);
  Status HostTable(size_t bytes, std::shared_ptr<char>* table);
  PackLayout LayOut(const DeviceCollective& reduction) const;
  uint64_t SliceOf(const PackLayout& layout, const PackLayout::Piece& piece) const;
  Status Begin(const DeviceCollective& reduction, const PackLayout& layout, void* stream,
               std::shared_ptr<char>* table, Places* places, PackArgs* args);

  CudaDevice* const device_;
  const PackKernels* const kernels_;
  const int rank_;
  const uint64_t ranks_;
  const uint64_t most_wire_;
  char* held_ = nullptr;  // the wire between ToHost() and FromHost()
  std::mutex mutex_;      // protects the three below
  std::shared_ptr<char> registered_;
  KeptMemory wire_, table_;
  // Pinned. Free if nobody else shares it; of the thread that reduces.
  std::vector<std::pair<std::shared_ptr<char>, size_t>> host_tables_;
};

}  // namespace smddp
