// What the fake driver says of its devices.
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "state.h"

using namespace fake_cuda;

namespace {

int Devices() {
  long set = Setting("FAKE_CUDA_GPUS");
  return set == 0 ? kDevices : static_cast<int>(set);
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int cuDeviceGetCount(int* count) {
  if (!Initialized()) return kNotInitialized;
  *count = Devices();
  return kSuccess;
}

EXPORT int cuDeviceGetName(char* name, int length, int device) {
  if (!Initialized()) return kNotInitialized;
  if (device < 0 || device >= Devices()) return kInvalidValue;
  std::snprintf(name, static_cast<size_t>(length), "simulated");
  return kSuccess;
}

EXPORT int cuDeviceGet(int* device, int ordinal) {
  if (!Initialized()) return kNotInitialized;
  *device = ordinal;
  return ordinal >= 0 && ordinal < Devices() ? kSuccess : kInvalidValue;
}

EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device) {
  constexpr int kMajor = 75, kMinor = 76;
  if (!Initialized()) return kNotInitialized;
  if (device < 0 || device >= Devices()) return kInvalidValue;
  long capability = Capability();
  if (attribute != kMajor && attribute != kMinor) return kInvalidValue;
  *value = static_cast<int>(attribute == kMajor ? capability / 10 : capability % 10);
  return kSuccess;
}

EXPORT int cuDeviceGetUuid(void* uuid, int device) {
  if (!Initialized()) return kNotInitialized;
  constexpr size_t kBytes = 16;
  std::memset(uuid, 0, kBytes);
  long number = Setting("FAKE_CUDA_UUID");
  if (number == 0) number = getpid();
  std::memcpy(uuid, &number, sizeof number);
  std::memcpy(static_cast<char*>(uuid) + sizeof number, &device, sizeof device);
  return kSuccess;
}
