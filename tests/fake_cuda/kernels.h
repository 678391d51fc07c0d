// The kernels of ops/kernels/cuda as the fake driver runs them: their bodies compiled for the CPU,
// with the addresses of the device's memory replaced by those where its bytes really are.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

// A kernel's parameter.
struct FakeArgs {
  alignas(16) char bytes[128];
};

struct FakeKernel {
  std::string name;
  size_t bytes;      // of the parameter
  unsigned threads;  // of a block
  void (*run)(const FakeArgs& args, unsigned blocks);
};

const std::vector<FakeKernel>& FakePackKernels();
