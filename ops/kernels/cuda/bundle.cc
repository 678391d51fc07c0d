#include "kernels/cuda/bundle.h"

#include <algorithm>
#include <cstring>

namespace smddp {

std::vector<const void*> CodeFor(const void* image, uint32_t capability) {
  const char* bytes = static_cast<const char*>(image);
  if (std::memcmp(bytes, kBundleMagic, sizeof kBundleMagic) != 0) return {image};
  BundleHeader header;
  std::memcpy(&header, bytes, sizeof header);
  std::vector<BundleEntry> fitting(header.entries);
  std::memcpy(fitting.data(), bytes + sizeof header, header.entries * sizeof(BundleEntry));
  auto unfit = [capability](const BundleEntry& entry) {
    bool other = entry.is_ptx == 0 && entry.capability / 10 != capability / 10;
    return other || entry.capability > capability;
  };
  fitting.erase(std::remove_if(fitting.begin(), fitting.end(), unfit), fitting.end());
  std::sort(fitting.begin(), fitting.end(), [](const BundleEntry& a, const BundleEntry& b) {
    return a.is_ptx != b.is_ptx ? a.is_ptx < b.is_ptx : a.capability > b.capability;
  });
  std::vector<const void*> codes;
  for (const BundleEntry& entry : fitting) codes.push_back(bytes + entry.begin);
  return codes;
}

}  // namespace smddp
