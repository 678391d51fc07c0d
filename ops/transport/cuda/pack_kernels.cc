#include "transport/cuda/pack_kernels.h"

namespace smddp {
namespace {

constexpr uint64_t kWireBytes[] = {  // of an element
#define SMDDP_WIRE_BYTES(name, tensor, wire) sizeof(wire),
    SMDDP_PACK_KERNELS(SMDDP_WIRE_BYTES)
#undef SMDDP_WIRE_BYTES
};

// Each type's number in kWireBytes; its kernels are at twice that.
Status Launch(const CudaModule& module, size_t type, bool unpack, PackArgs args, void* stream) {
  uint64_t bytes = (args.end - args.begin) * kWireBytes[type];
  return module.Launch(2 * type + (unpack ? 1 : 0), PackBlocks(bytes), kPackThreads, &args, stream);
}

}  // namespace

std::vector<const char*> PackKernels::Names() {
  return {
#define SMDDP_NAMES(name, tensor, wire) "smddp_pack_" #name, "smddp_unpack_" #name,
      SMDDP_PACK_KERNELS(SMDDP_NAMES)
#undef SMDDP_NAMES
  };
}

Status PackKernels::Pack(PackType type, const PackArgs& args, void* stream) const {
  return Launch(module_, static_cast<size_t>(type), false, args, stream);
}

Status PackKernels::Unpack(PackType type, const PackArgs& args, void* stream) const {
  return Launch(module_, static_cast<size_t>(type), true, args, stream);
}

}  // namespace smddp
