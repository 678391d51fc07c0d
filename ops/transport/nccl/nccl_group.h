// NcclGroup: a DeviceGroup of NVIDIA GPUs, connected by NCCL.
//
// One thread makes all calls of NCCL, which are of the non-blocking kind: it enqueues collectives
// on a stream of the group's own, polls for their ends and for errors, and takes an Abort() in
// between. So a peer that dies, or that never comes, holds up no other thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/config.h"
#include "transport/cuda/cuda_device.h"
#include "transport/device_group.h"
#include "transport/nccl/library.h"
#include "transport/nccl/packer.h"

namespace smddp {

class NcclRunner;

struct NcclOptions {
  std::string path;  // of the library; empty: search for it
  std::string hint;  // where it may be, if `path` is empty
  bool required = false;
  double connect_seconds = 120;   // limit for all ranks to connect
  const void* kernels = nullptr;  // PackImage(); null: tensors are reduced where they are
  size_t pack_bytes = 64 << 20;   // of the buffer in which tensors are packed; as all ranks have it
};

class NcclGroup : public DeviceGroup {
 public:
  // Null if the configuration does without.
  static std::unique_ptr<NcclGroup> Make(const Config& config);
  explicit NcclGroup(NcclOptions options);
  ~NcclGroup() override;

  std::string Cannot(const DeviceCollective& collective) const override;
  std::string Unavailable(Device* device) override;
  std::string Lacks(Device* device, const DeviceCollective& collective) override;
  bool required() const override { return options_.required; }
  DeviceIntroduction Introduce(Device* device, bool first) override;
  void Connect(Device* device, int rank, const std::vector<DeviceIntroduction>& all,
               Done done) override;
  void Submit(DeviceCollective collective, std::function<void()> computed, Done done) override;
  void Abort() override;
  void Close() override;
  DeviceGroupStats stats() const override;

 private:
  // Opens the library once.
  const NcclLibrary* Library(std::string* why);
  // Why this rank cannot pack; "" if it can, and has the memory for it.
  std::string CannotPack(CudaDevice* device);
  Status TakePackMemory(CudaDevice* device);

  const NcclOptions options_;
  mutable std::mutex mutex_;  // protects the members below
  bool opened_ = false;
  std::string problem_;
  std::shared_ptr<const NcclLibrary> library_;
  bool stuck_ = false;            // it has not stopped when it was told to
  CudaDevice* device_ = nullptr;  // that it is connected with
  // Until the ranks connect: memory to pack in, of that GPU.
  PackMemory pack_memory_;
  CudaDevice* pack_device_ = nullptr;
  std::shared_ptr<Packer> packer_;      // null: not connected, or not all ranks can pack
  std::shared_ptr<NcclRunner> runner_;  // shared with its thread, which may outlive the group
};

}  // namespace smddp
