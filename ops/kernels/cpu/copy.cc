#include "kernels/cpu/copy.h"

#include <cstdint>
#include <cstring>

#if SMDDP_X86
#include <emmintrin.h>
#endif

namespace smddp {
namespace {

#if SMDDP_X86
constexpr size_t kLine = 64;

void StreamLines(char* out, const char* in, size_t lines) {
  for (; lines > 0; --lines, out += kLine, in += kLine) {
    auto from = reinterpret_cast<const __m128i*>(in);
    auto to = reinterpret_cast<__m128i*>(out);
    __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
    __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
}
#endif

}  // namespace

void StreamBytes(void* out, const void* in, size_t bytes) {
  char* to = static_cast<char*>(out);
  const char* from = static_cast<const char*>(in);
#if SMDDP_X86
  size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  if (bytes >= head + kLine) {
    if (head > 0) std::memcpy(to, from, head);
    size_t lines = (bytes - head) / kLine, done = head + lines * kLine;
    StreamLines(to + head, from + head, lines);
    if (bytes > done) std::memcpy(to + done, from + done, bytes - done);
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

void StreamFence() {
#if SMDDP_X86
  _mm_sfence();
#endif
}

void CopyBytes(void* out, const void* in, size_t bytes, bool large) {
  if (!large) {
    std::memcpy(out, in, bytes);
    return;
  }
  StreamBytes(out, in, bytes);
  StreamFence();
}

}  // namespace smddp
