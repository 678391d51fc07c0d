// The functions of NCCL that are used here, declared by hand and found at run time, so neither
// building nor importing the library needs NCCL. The values are those of nccl.h 2.18 and later;
// NVIDIA documents them in "NCCL API".
#pragma once

#include <climits>
#include <cstddef>
#include <memory>
#include <string>

#include "core/status.h"

namespace smddp {

// ncclResult_t, ncclDataType_t and ncclRedOp_t are plain integers in the ABI.
using NcclResult = int;
inline constexpr NcclResult kNcclSuccess = 0, kNcclInvalidArgument = 4, kNcclInvalidUsage = 5,
                            kNcclRemoteError = 6, kNcclInProgress = 7;

inline constexpr int kNcclInt8 = 0, kNcclUint8 = 1, kNcclInt32 = 2, kNcclInt64 = 4,
                     kNcclFloat16 = 6, kNcclFloat32 = 7, kNcclFloat64 = 8, kNcclBfloat16 = 9;
inline constexpr int kNcclSum = 0, kNcclProduct = 1, kNcclMax = 2, kNcclMin = 3;
inline constexpr int kNcclScalarOnHost = 1;  // ncclScalarHostImmediate

inline constexpr int kNcclUndefined = INT_MIN;      // NCCL_CONFIG_UNDEF_INT
inline constexpr unsigned kNcclMagic = 0xcafebeef;  // NCCL_API_MAGIC
inline constexpr int kNcclLeast = 21800;            // 2.18.0; major * 10000 + minor * 100 + patch

struct NcclUniqueId {
  char internal[128];
};

// ncclConfig_t of 2.18. Later versions add members behind these, and read those of the version and
// size that are given here; but 2.26 reads traffic_class, which is padding before, whatever they
// are.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = kNcclMagic;
  unsigned version = kNcclLeast;
  int blocking = kNcclUndefined;
  int cga_cluster_size = kNcclUndefined;
  int min_ctas = kNcclUndefined;
  int max_ctas = kNcclUndefined;
  const char* net_name = nullptr;
  int split_share = kNcclUndefined;
  int traffic_class = kNcclUndefined;
};
static_assert(sizeof(NcclConfig) == 48, "as of NCCL 2.18");

struct NcclLibrary {
  NcclResult (*GetVersion)(int* version);
  NcclResult (*GetUniqueId)(NcclUniqueId* id);
  NcclResult (*CommInitRankConfig)(void** comm, int size, NcclUniqueId id, int rank,
                                   NcclConfig* config);
  NcclResult (*CommGetAsyncError)(void* comm, NcclResult* error);
  NcclResult (*CommFinalize)(void* comm);
  NcclResult (*CommDestroy)(void* comm);
  NcclResult (*CommAbort)(void* comm);
  const char* (*GetErrorString)(NcclResult result);
  const char* (*GetLastError)(void* comm);
  NcclResult (*RedOpCreatePreMulSum)(int* op, void* scalar, int dtype, int residence, void* comm);
  NcclResult (*RedOpDestroy)(int op, void* comm);
  NcclResult (*GroupStart)();
  NcclResult (*GroupEnd)();
  NcclResult (*AllReduce)(const void* in, void* out, size_t count, int dtype, int op, void* comm,
                          void* stream);
  NcclResult (*ReduceScatter)(const void* in, void* out, size_t count, int dtype, int op,
                              void* comm, void* stream);
  NcclResult (*Reduce)(const void* in, void* out, size_t count, int dtype, int op, int root,
                       void* comm, void* stream);
  NcclResult (*Send)(const void* in, size_t count, int dtype, int peer, void* comm, void* stream);
  NcclResult (*Recv)(void* out, size_t count, int dtype, int peer, void* comm, void* stream);
  NcclResult (*AllGather)(const void* in, void* out, size_t count, int dtype, void* comm,
                          void* stream);
  NcclResult (*Broadcast)(const void* in, void* out, size_t count, int dtype, int root, void* comm,
                          void* stream);

  int version = 0;
  std::string path;

  // "2.27.7".
  std::string VersionText() const;
  // Opens `path`, unless that is empty; else the one that this process has loaded, `hint` if there
  // is such a file, or the system's. Null, with the reason in *why, if it cannot be used. NCCL is
  // never unloaded.
  static std::shared_ptr<const NcclLibrary> Open(const std::string& path, const std::string& hint,
                                                 std::string* why);
  // The error of a call to `function`.
  Status Failure(const char* function, NcclResult result, void* comm) const;
};

}  // namespace smddp
