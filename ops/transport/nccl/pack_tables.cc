#include "transport/nccl/pack_tables.h"

namespace smddp {

Status PackTables::Take(CudaDevice* device) {
  constexpr size_t kTables = 18;  // of two channels that each have eight ahead of one
  constexpr size_t kBytes = 64 << 10;
  void* made = nullptr;
  Status status = device->AllocateHost(kTables * kBytes + kMostBytes, &made);
  if (!status.ok()) return status;
  std::shared_ptr<char> all(static_cast<char*>(made),
                            [device](char* old) { device->FreeHost(old); });
  for (size_t i = 0; i <= kTables; ++i) {
    std::shared_ptr<char> part(all.get() + i * kBytes, [all](char*) {});
    tables_.push_back({std::move(part), i < kTables ? kBytes : kMostBytes});
  }
  return {};
}

std::shared_ptr<char> PackTables::Get(size_t bytes) const {
  for (const Table& table : tables_) {
    if (table.memory.use_count() == 1 && table.bytes >= bytes) return table.memory;
  }
  return nullptr;
}

}  // namespace smddp
