// Copies that bypass the caches, for data that is not read again soon, or that is read far away.
#pragma once

#include <cstddef>

namespace smddp {

// Payloads of at least this size bypass the caches: beyond the cache size, a plain store first
// reads the line that it overwrites. Twice as fast as memcpy at 32 MiB, slower up to 1 MiB.
constexpr size_t kPastCachesBytes = 16 << 20;

// Whether the processor has stores that bypass the caches. Without them the functions below are
// memcpy.
#if SMDDP_X86
constexpr bool kHasStreamingStores = true;
#else
constexpr bool kHasStreamingStores = false;
#endif

// memcpy, with non-temporal stores if `large`. The bytes are visible to other processes on return.
void CopyBytes(void* out, const void* in, size_t bytes, bool large);

// memcpy with non-temporal stores. Other processes may see the bytes only after a StreamFence().
void StreamBytes(void* out, const void* in, size_t bytes);

// Orders all earlier StreamBytes() of this thread before its later stores, such as the counter that
// publishes the bytes: a release store alone does not.
void StreamFence();

}  // namespace smddp
