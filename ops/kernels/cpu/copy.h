// Copies that bypass the caches, for data that is not read again soon.
#pragma once

#include <cstddef>

namespace smddp {

// Payloads of at least this size bypass the caches: beyond the cache size, a plain store first
// reads the line that it overwrites. Twice as fast as memcpy at 32 MiB, slower up to 1 MiB.
constexpr size_t kPastCachesBytes = 16 << 20;

// memcpy, with non-temporal stores if `large`. The bytes are visible to other processes on return.
void CopyBytes(void* out, const void* in, size_t bytes, bool large);

}  // namespace smddp
