// TensorFlow's class for the streams of pluggable devices inherits a virtual function that tells no
// CUstream, where the class for NVIDIA's has one that does. Here the entry in its table is
// replaced, by a function of the same name.
#include "streams.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "memory.h"

namespace {

// The one word of TensorFlow's object that is a stream of the driver's.
void* StreamIn(const void* object) {
  constexpr int kWords = 32;
  auto* words = static_cast<void* const*>(object);
  for (int i = 0; i < kWords; ++i) {
    if (FakeIsStream(words[i]) != 0) return words[i];
  }
  return nullptr;
}

bool Replace(void** entry, void* function) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  void* begin = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(entry) / page * page);
  if (mprotect(begin, page, PROT_READ | PROT_WRITE) != 0) return false;
  *entry = function;
  return mprotect(begin, page, PROT_READ) == 0;
}

}  // namespace

// Their addresses are ours, not those of TensorFlow's functions.
#define SAME_NAME extern "C" __attribute__((visibility("protected")))

// TensorFlow 2.15, 2.16, and later.
SAME_NAME void* _ZN15stream_executor8internal15StreamInterface13GpuStreamHackEv(
    const void* stream) {
  return StreamIn(stream);
}
SAME_NAME void* _ZN15stream_executor8internal15StreamInterface24platform_specific_streamEv(
    const void* stream) {
  return StreamIn(stream);
}
SAME_NAME void* _ZNK15stream_executor12StreamCommon24platform_specific_handleEv(
    const void* stream) {
  return StreamIn(stream);
}

bool TellStreams() {
  struct {
    const char* name;
    void* (*function)(const void*);
  } const functions[] = {
      {"_ZN15stream_executor8internal15StreamInterface13GpuStreamHackEv",
       _ZN15stream_executor8internal15StreamInterface13GpuStreamHackEv},
      {"_ZN15stream_executor8internal15StreamInterface24platform_specific_streamEv",
       _ZN15stream_executor8internal15StreamInterface24platform_specific_streamEv},
      {"_ZNK15stream_executor12StreamCommon24platform_specific_handleEv",
       _ZNK15stream_executor12StreamCommon24platform_specific_handleEv},
  };
  constexpr int kFirst = 2, kEntries = 24;  // after offset-to-top and the type; of 7 and more
  void* tensorflow = dlopen("libtensorflow_framework.so.2", RTLD_NOW | RTLD_NOLOAD);
  if (tensorflow == nullptr) return false;
  auto** table = static_cast<void**>(dlsym(tensorflow, "_ZTVN15stream_executor7CStreamE"));
  for (const auto& one : functions) {
    void* original = dlsym(tensorflow, one.name);
    if (table == nullptr || original == nullptr) continue;
    for (int i = kFirst; i < kFirst + kEntries; ++i) {
      if (table[i] == original) return Replace(&table[i], reinterpret_cast<void*>(one.function));
    }
  }
  return false;
}
