// Ranges of elements, rows or bytes, and how they are divided among ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace smddp {

struct Range {
  size_t begin = 0;
  size_t end = 0;
  size_t size() const { return end - begin; }
};

// Part `index` of `parts` nearly equal parts of [0, n), each but the last a multiple of `align`.
// Early parts are never smaller than later ones; trailing parts may be empty.
inline Range PartOf(size_t n, int parts, int index, size_t align) {
  size_t blocks = (n + align - 1) / align;
  size_t per_part = blocks / parts, extra = blocks % parts;
  size_t i = static_cast<size_t>(index);
  size_t begin = per_part * i + std::min(i, extra);
  size_t end = begin + per_part + (i < extra ? 1 : 0);
  return {std::min(begin * align, n), std::min(end * align, n)};
}

// The rows that `rank` receives in a reducescatter: they are divided evenly, and the first ranks
// get one more if they do not divide.
inline Range RowsOf(int64_t rows, int size, int rank) {
  size_t parts = static_cast<size_t>(size), r = static_cast<size_t>(rank);
  size_t each = static_cast<size_t>(rows) / parts, odd = static_cast<size_t>(rows) % parts;
  size_t begin = r * each + std::min(r, odd);
  return {begin, begin + each + (r < odd ? 1 : 0)};
}

}  // namespace smddp
