// Code of the kernels for several GPUs in one image, as cmake/compile_kernels.py writes it: a
// BundleHeader, its entries, and what they refer to, each code at a multiple of 64 bytes.
#pragma once

#include <cstdint>
#include <vector>

namespace smddp {

inline constexpr char kBundleMagic[8] = {'S', 'M', 'D', 'D', 'P', 'G', 'P', 'U'};

struct BundleHeader {
  char magic[8];
  uint64_t entries;
};
struct BundleEntry {
  uint32_t capability;  // 10 times the major number and the minor one: 90 for sm_90
  uint32_t is_ptx;      // 1: text for drivers to compile, zero-terminated; 0: machine code
  uint64_t begin, bytes;
};

// What cuModuleLoadData may take on a GPU, the best first: machine code of the GPU's generation and
// not for later GPUs of it, then PTX that is not for later ones. An image that is no bundle, such
// as a fat binary of nvcc's, is all there is.
std::vector<const void*> CodeFor(const void* image, uint32_t capability);

}  // namespace smddp
