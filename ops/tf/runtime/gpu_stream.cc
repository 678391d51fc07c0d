#include "tf/runtime/gpu_stream.h"

#include <dlfcn.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>

#include "capi/smddp.h"
#include "tf/runtime/stream_layout.h"

namespace smddp_tf {
namespace {

// dladdr() looks through all names of a library, which takes milliseconds; so it is asked once.
std::string NameOf(const void* function) {
  static std::mutex mutex;
  static auto* names = new std::map<const void*, std::string>();
  std::lock_guard<std::mutex> lock(mutex);
  auto known = names->find(function);
  if (known != names->end()) return known->second;
  Dl_info info = {};
  bool named = dladdr(function, &info) != 0 && info.dli_saddr == function;
  std::string name = named && info.dli_sname != nullptr ? info.dli_sname : "";
  return (*names)[function] = name;
}

// The version of the loaded TensorFlow; "" if that cannot be asked.
std::string LoadedVersion() {
  void* library = dlopen("libtensorflow_cc.so.2", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return "";
  auto version = reinterpret_cast<const char* (*)()>(dlsym(library, "TF_Version"));
  std::string text = version == nullptr ? "" : version();
  dlclose(library);
  return text;
}

std::string Find(TF_OpKernelContext* context, const std::string& version, void** stream) {
  const StreamLayout* layout = FindStreamLayout(version.c_str());
  if (layout == nullptr) return "its layout is not known here";
  KernelNumbers numbers = {TF_StepId(context), TF_GetFrameId(context), TF_GetIterId(context)};
  return FindStream(*layout, context, numbers, NameOf, stream);
}

}  // namespace

void* GpuStreamOf(TF_OpKernelContext* context) {
  static const std::string version = LoadedVersion();
  static std::atomic<bool> unknown{false};
  if (unknown.load(std::memory_order_relaxed)) return SMDDP_EVERY_STREAM;
  void* stream = nullptr;
  std::string problem = Find(context, version, &stream);
  if (problem.empty()) return stream;
  if (!unknown.exchange(true)) {
    std::string text = "The stream of TensorFlow " + (version.empty() ? "?" : version) +
                       " on the GPU cannot be found (" + problem +
                       "), so each collective of a GPU's tensors first waits on the host until the "
                       "GPU has done all its work. Results are the same; the GPU idles meanwhile";
    smddp_warn(text.c_str());
  }
  return SMDDP_EVERY_STREAM;
}

}  // namespace smddp_tf

extern "C" {

// For tests: finds the stream of a kernel in the layout of that version. Returns "" or the problem,
// which stays valid until this thread's next call.
SMDDP_EXPORT const char* smddp_find_stream(TF_OpKernelContext* context, const char* version,
                                           void** stream) {
  static thread_local std::string problem;
  problem = smddp_tf::Find(context, version, stream);
  return problem.c_str();
}

// For tests: the offsets of a version: params, device context, device, implementation, handle's
// slot. Returns 0 if they are not known.
SMDDP_EXPORT int smddp_stream_layout(const char* version, int64_t* offsets) {
  const smddp_tf::StreamLayout* layout = smddp_tf::FindStreamLayout(version);
  if (layout == nullptr) return 0;
  size_t values[] = {layout->params, layout->device_context, layout->device, layout->implementation,
                     layout->handle_slot};
  for (size_t value : values) *offsets++ = static_cast<int64_t>(value);
  return 1;
}

}  // extern "C"
