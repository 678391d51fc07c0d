// Copying memory that nobody will read soon.
#pragma once

#include <cstddef>

namespace smddp {

// Payloads from this on are copied past the caches: beyond what they hold, a plain store reads the
// line that it is about to overwrite. Twice as fast as memcpy at 32 MiB, slower up to 1 MiB.
constexpr size_t kPastCachesBytes = 16 << 20;

// memcpy, past the caches if `large`. The bytes are visible to other processes when it returns.
void CopyBytes(void* out, const void* in, size_t bytes, bool large);

}  // namespace smddp
