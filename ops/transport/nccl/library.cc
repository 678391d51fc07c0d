#include "transport/nccl/library.h"

#include <dlfcn.h>
#include <unistd.h>

namespace smddp {
namespace {

constexpr const char* kName = "libnccl.so.2";

// Up to 2.8 the minor version was counted in hundreds below a thousand.
std::string Version(int code) {
  int major = code < 10000 ? code / 1000 : code / 10000;
  int minor = code < 10000 ? code / 100 % 10 : code / 100 % 100;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(code % 100);
}

// The problem, or "".
std::string Load(void* handle, NcclLibrary* library) {
  std::string missing;
  auto find = [&](auto* function, const char* name) {
    *reinterpret_cast<void**>(function) = dlsym(handle, name);
    if (*function == nullptr && missing.empty()) missing = name;
  };
  find(&library->GetVersion, "ncclGetVersion");
  if (!missing.empty()) return "has no " + missing;
  NcclResult result = library->GetVersion(&library->version);
  if (result != kNcclSuccess) return "does not tell its version";
  if (library->version < kNcclLeast) {
    return "is of version " + Version(library->version) + " and 2.18 or later is needed";
  }
  find(&library->GetUniqueId, "ncclGetUniqueId");
  find(&library->CommInitRankConfig, "ncclCommInitRankConfig");
  find(&library->CommGetAsyncError, "ncclCommGetAsyncError");
  find(&library->CommFinalize, "ncclCommFinalize");
  find(&library->CommDestroy, "ncclCommDestroy");
  find(&library->CommAbort, "ncclCommAbort");
  find(&library->GetErrorString, "ncclGetErrorString");
  find(&library->GetLastError, "ncclGetLastError");
  find(&library->RedOpCreatePreMulSum, "ncclRedOpCreatePreMulSum");
  find(&library->RedOpDestroy, "ncclRedOpDestroy");
  find(&library->GroupStart, "ncclGroupStart");
  find(&library->GroupEnd, "ncclGroupEnd");
  find(&library->AllReduce, "ncclAllReduce");
  find(&library->Broadcast, "ncclBroadcast");
  find(&library->AllGather, "ncclAllGather");
  find(&library->ReduceScatter, "ncclReduceScatter");
  find(&library->Reduce, "ncclReduce");
  find(&library->Send, "ncclSend");
  find(&library->Recv, "ncclRecv");
  return missing.empty() ? "" : "has no " + missing;
}

// Where the library is, from one of its functions.
std::string PathOf(const NcclLibrary& library, const std::string& opened) {
  Dl_info info{};
  bool found = dladdr(reinterpret_cast<void*>(library.GetVersion), &info) != 0;
  return found && info.dli_fname != nullptr ? info.dli_fname : opened;
}

}  // namespace

std::string NcclLibrary::VersionText() const { return Version(version); }

std::shared_ptr<const NcclLibrary> NcclLibrary::Open(const std::string& path,
                                                     const std::string& hint, std::string* why) {
  std::string name = path;
  void* handle = name.empty() ? dlopen(kName, RTLD_NOW | RTLD_NOLOAD) : nullptr;
  if (name.empty()) {
    name = !hint.empty() && ::access(hint.c_str(), R_OK) == 0 ? hint : kName;
  }
  if (handle == nullptr) handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    *why = std::string(dlerror());
    return nullptr;
  }
  auto library = std::make_shared<NcclLibrary>();
  std::string problem = Load(handle, library.get());
  library->path = library->GetVersion != nullptr ? PathOf(*library, name) : name;
  if (problem.empty()) return library;
  *why = library->path + " " + problem;
  return nullptr;
}

Status NcclLibrary::Failure(const char* function, NcclResult result, void* comm) const {
  std::string text = std::string("NCCL: ") + GetErrorString(result) + " (" + function + ", error " +
                     std::to_string(result) + ")";
  const char* last = GetLastError(comm);
  if (last != nullptr && *last != '\0') text += std::string(": ") + last;
  return {result == kNcclRemoteError ? Code::kRemote : Code::kSystem, text};
}

}  // namespace smddp
