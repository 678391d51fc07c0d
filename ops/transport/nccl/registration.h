// Memory of the GPU that NCCL's communicators can register, and its registration with one: what a
// collective reads and writes there, its peers and the network access in place.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>  // for move

#include "transport/cuda/cuda_device.h"
#include "transport/nccl/library.h"

namespace smddp {

// From NCCL's allocator; null if it has none, or no memory is left. Freed by whoever has it last.
std::shared_ptr<char> AllocateRegistrable(std::shared_ptr<const NcclLibrary> library,
                                          CudaDevice* device, size_t bytes);

// All functions are of the thread that makes the communicator's calls.
class Registration {
 public:
  // The kind is the same on all ranks, and so is the number of bytes; see NcclLibrary::registers().
  Registration(std::shared_ptr<const NcclLibrary> library, NcclRegisters kind,
               std::shared_ptr<char> memory, size_t bytes)
      : library_(std::move(library)), kind_(kind), memory_(std::move(memory)), bytes_(bytes) {}

  // Starts it, before the first collective; windows are registered by all ranks together.
  NcclResult Begin(void* comm);
  // Once nothing uses the memory, and before the communicator is destroyed. One that is aborted
  // ends its registrations itself, since its kernels may use the memory until then.
  void End(void* comm);
  const char* function() const;
  // After Begin() has taken effect: NCCL may decide that it cannot make use of it.
  NcclRegisters kind() const { return handle_ != nullptr ? kind_ : NcclRegisters::kNothing; }
  // Whether it may still be a buffer, as which Begin() then registers it: NCCL has no use for
  // windows where GPUs cannot access each other's memory, which all ranks know alike.
  bool FallsBack();

 private:
  const std::shared_ptr<const NcclLibrary> library_;
  NcclRegisters kind_;
  const std::shared_ptr<char> memory_;
  const size_t bytes_;
  void* handle_ = nullptr;
};

}  // namespace smddp
