// What the files of the fake driver share: its results, settings, contexts and streams.
#pragma once

#include <cstddef>

namespace fake_cuda {

enum Result {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kNoDevice = 100,
  kInvalidContext = 201,
  kNoBinary = 209,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
};

constexpr int kDevices = 8;

// An environment variable; 0 if it is not set.
long Setting(const char* name);
// Of the GPUs: 10 times the major number and the minor one.
long Capability();
bool Initialized();
// What every call that needs a context may return first.
int Usable();
// Of the calling thread; null: it has none.
void* CurrentContext();
// The device of a context.
int DeviceOf(const void* context);
// Null if there is no such stream.
void* ContextOfStream(const void* stream);
// Waits until all streams of the calling thread's context stand still.
int WaitForContext();
// As the driver may do in many calls, and NVIDIA's documentation warns of: if FAKE_CUDA_WAITS is
// set.
void WaitPerhaps();

}  // namespace fake_cuda
