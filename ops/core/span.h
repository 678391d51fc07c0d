// Spans: a bucket is a list of spans, one per tensor, which are logically concatenated. Chunks and
// shares are ranges of that concatenation, so no fusion buffer is needed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>  // for move
#include <vector>

#include "core/ranges.h"

namespace smddp {

struct Span {
  const char* in = nullptr;
  char* out = nullptr;  // may equal `in`
  size_t count = 0;     // elements
};

// The spans of one bucket, with each span's logical offset in elements.
class SpanList {
 public:
  SpanList() = default;
  SpanList(std::vector<Span> spans, size_t element_size)
      : spans_(std::move(spans)), element_size_(element_size) {
    offsets_.reserve(spans_.size() + 1);
    offsets_.push_back(0);
    for (const Span& span : spans_) offsets_.push_back(offsets_.back() + span.count);
  }

  size_t count() const { return offsets_.empty() ? 0 : offsets_.back(); }
  size_t element_size() const { return element_size_; }
  const std::vector<Span>& spans() const { return spans_; }

  // Calls fn(in, out, first, count) for each contiguous piece of the logical range; `first` is the
  // piece's offset from range.begin, in elements.
  template <typename Fn>
  void ForEach(Range range, Fn&& fn) const {
    if (range.begin >= range.end) return;
    size_t i = FindSpan(range.begin);
    for (size_t at = range.begin; at < range.end; ++i) {
      size_t skip = at - offsets_[i];
      size_t n = std::min(spans_[i].count - skip, range.end - at);
      if (n == 0) continue;  // an empty tensor
      fn(spans_[i].in + skip * element_size_, spans_[i].out + skip * element_size_,
         at - range.begin, n);
      at += n;
    }
  }

 private:
  size_t FindSpan(size_t at) const {
    auto it = std::upper_bound(offsets_.begin(), offsets_.end(), at);
    return static_cast<size_t>(it - offsets_.begin()) - 1;
  }

  std::vector<Span> spans_;
  std::vector<size_t> offsets_;
  size_t element_size_ = 1;
};

}  // namespace smddp
