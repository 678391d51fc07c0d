#include "transport/nccl/registration.h"

namespace smddp {

std::shared_ptr<char> AllocateRegistrable(std::shared_ptr<const NcclLibrary> library,
                                          CudaDevice* device, size_t bytes) {
  if (library->registers() == NcclRegisters::kNothing) return nullptr;
  CudaDevice::Current current(device);
  void* memory = nullptr;
  if (!current.status().ok() || library->MemAlloc(&memory, bytes) != kNcclSuccess) return nullptr;
  return {static_cast<char*>(memory), [library = std::move(library), device](char* old) {
            CudaDevice::Current current(device);
            static_cast<void>(library->MemFree(old));
          }};
}

const char* Registration::function() const {
  return kind_ == NcclRegisters::kWindows ? "ncclCommWindowRegister" : "ncclCommRegister";
}

NcclResult Registration::Begin(void* comm) {
  return kind_ == NcclRegisters::kWindows
             ? library_->CommWindowRegister(comm, memory_.get(), bytes_, &handle_,
                                            kNcclWindowSymmetric)
             : library_->CommRegister(comm, memory_.get(), bytes_, &handle_);
}

bool Registration::FallsBack() {
  if (handle_ != nullptr || kind_ != NcclRegisters::kWindows) return false;
  kind_ = NcclRegisters::kBuffers;
  return library_->CommRegister != nullptr && library_->CommDeregister != nullptr;
}

void Registration::End(void* comm) {
  if (handle_ == nullptr) return;
  // What may fail here fails after the last collective has ended.
  static_cast<void>(kind_ == NcclRegisters::kWindows ? library_->CommWindowDeregister(comm, handle_)
                                                     : library_->CommDeregister(comm, handle_));
  handle_ = nullptr;
}

}  // namespace smddp
