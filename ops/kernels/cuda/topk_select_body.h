// Bodies of the kernels that select the k elements of the largest magnitude, of equal ones those
// with lower indices. No element is compared with another, and the host waits for nothing:
//
// 1. AddAndCountBins makes the total, and counts by the upper 11 of the 31 bits of its magnitudes.
//    NarrowPrefix finds which of these 2048 bins has the k-th largest.
// 2. CountBins counts those of that bin by the next 11 bits, and then by the last 9. After that the
//    prefix is the whole threshold, the k-th largest magnitude, and `need` is how many elements
//    equal to it are selected.
// 3. CountTile counts in each tile those above the threshold and those equal to it. SumUpTiles
//    makes of that how many come before each tile, so TakeFromTile knows where to write.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cuda/compress.h"
#include "kernels/cuda/lanes.h"
#include "kernels/cuda/words.h"
#include "kernels/magnitude.h"

namespace smddp {

// Elements are loaded in fours, several at once, so that loads are in flight together.
constexpr uint32_t kFour = 4;

struct Four {
  float at[kFour];
};

// Elements [first, first + 4) of `array` as float32; the total of those that do not exist is zero.
template <typename T>
SMDDP_INLINE Four LoadFour(const void* array, uint32_t first, uint32_t count) {
  constexpr unsigned kBytes = kFour * sizeof(T), kWords = kBytes < kWord ? 1 : kBytes / kWord;
  const char* from = static_cast<const char*>(array) + uint64_t{first} * sizeof(T);
  T in[kFour];
  bool aligned = reinterpret_cast<uintptr_t>(from) % (kBytes < kWord ? kBytes : kWord) == 0;
  if (first + kFour <= count && aligned) {
    if constexpr (kBytes < kWord) {
      auto half_word = LoadOne<uint64_t>(from);
      std::memcpy(in, &half_word, kBytes);
    } else {
      Word words[kWords];
      SMDDP_UNROLL
      for (unsigned w = 0; w < kWords; ++w) words[w] = LoadWord(from + w * kWord);
      std::memcpy(in, words, kBytes);
    }
  } else {
    SMDDP_UNROLL
    for (uint32_t i = 0; i < kFour; ++i) {
      in[i] = first + i < count ? LoadOne<T>(from + i * sizeof(T)) : T{};
    }
  }
  Four four;
  SMDDP_UNROLL
  for (uint32_t i = 0; i < kFour; ++i) four.at[i] = static_cast<float>(Wide(in[i]));
  return four;
}

SMDDP_INLINE void StoreFour(float* to, uint32_t first, uint32_t count, const Four& four) {
  auto* at = reinterpret_cast<char*>(to + first);
  if (first + kFour <= count) {
    Word word;
    std::memcpy(&word, four.at, kWord);
    return StoreWord(at, word);
  }
  SMDDP_UNROLL
  for (uint32_t i = 0; i < kFour; ++i) {
    if (first + i < count) StoreOne(at + i * sizeof(float), four.at[i]);
  }
}

SMDDP_INLINE void BeginSelecting(const TopkSelectArgs& args, unsigned, unsigned, void*) {
  ForThreads([&](unsigned thread) {
    for (uint32_t b = thread; b < kTopkBins; b += kThreads) args.state->bins[b] = 0;
    if (thread == 0) {
      args.state->prefix = 0;
      args.state->need = args.k;
    }
  });
}

// Counts in the block's memory what load(first) returns for the fours of this block, of the
// elements whose magnitudes begin with the prefix; then adds that to the other blocks' counts.
template <uint32_t kAtOnce, typename Load>
SMDDP_INLINE void CountInBins(const TopkSelectArgs& args, unsigned block, unsigned blocks,
                              void* shared, Load&& load) {
  auto* counts = static_cast<uint32_t*>(shared);
  ForThreads([&](unsigned thread) {
    for (uint32_t b = thread; b < kTopkBins; b += kThreads) counts[b] = 0;
  });
  Sync();

  uint32_t prefix = args.state->prefix, shift = args.shift, bits = args.bits;
  uint32_t fours = (args.count - 1) / kFour + 1;
  ForThreads([&](unsigned thread) {
    uint32_t step = blocks * kThreads;
    for (uint32_t f = block * kThreads + thread; f < fours; f += kAtOnce * step) {
      Four loaded[kAtOnce];
      SMDDP_UNROLL
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        if (f + i * step < fours) loaded[i] = load((f + i * step) * kFour);
      }
      SMDDP_UNROLL
      for (uint32_t i = 0; i < kAtOnce * kFour; ++i) {
        uint32_t index = (f + i / kFour * step) * kFour + i % kFour;
        if (index >= args.count) continue;
        auto magnitude = static_cast<uint32_t>(Magnitude(loaded[i / kFour].at[i % kFour]));
        if (magnitude >> shift >> bits != prefix) continue;
        AddAtomically(&counts[magnitude >> shift & ((1u << bits) - 1)], 1);
      }
    }
  });
  Sync();

  ForThreads([&](unsigned thread) {
    for (uint32_t b = thread; b < kTopkBins; b += kThreads) {
      if (counts[b] != 0) AddAtomically(&args.state->bins[b], counts[b]);
    }
  });
}

template <typename T>
SMDDP_INLINE void AddAndCountBins(const TopkSelectArgs& args, unsigned block, unsigned blocks,
                                  void* shared) {
  CountInBins<2>(args, block, blocks, shared, [&](uint32_t first) {
    Four total = LoadFour<T>(args.in, first, args.count);
    Four kept = LoadFour<float>(args.kept, first, args.count);
    SMDDP_UNROLL
    for (uint32_t i = 0; i < kFour; ++i) total.at[i] += kept.at[i];
    StoreFour(args.total, first, args.count, total);
    return total;
  });
}

SMDDP_INLINE void CountBins(const TopkSelectArgs& args, unsigned block, unsigned blocks,
                            void* shared) {
  CountInBins<4>(args, block, blocks, shared,
                 [&](uint32_t first) { return LoadFour<float>(args.total, first, args.count); });
}

// One block. Each thread has some of the bins, the first one those of the largest magnitudes; also
// clears them for the next count.
SMDDP_INLINE void NarrowPrefix(const TopkSelectArgs& args, unsigned, unsigned, void* shared) {
  constexpr uint32_t kEach = kTopkBins / kThreads;
  uint32_t prefix = args.state->prefix, need = args.state->need;
  uint32_t *bins = args.state->bins, *sums = static_cast<uint32_t*>(shared);
  ForThreads([&](unsigned thread) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < kEach; ++i) sum += bins[kTopkBins - 1 - (thread * kEach + i)];
    sums[thread] = sum;
  });
  SumUp(sums, sums + kThreads);
  ForThreads([&](unsigned thread) {
    uint32_t above = thread == 0 ? 0 : sums[thread - 1];
    for (uint32_t i = 0; i < kEach; ++i) {
      uint32_t bin = kTopkBins - 1 - (thread * kEach + i), count = bins[bin];
      bins[bin] = 0;
      if (above < need && need <= above + count) {
        args.state->prefix = prefix << args.bits | bin;
        args.state->need = need - above;
      }
      above += count;
    }
  });
}

// How a warp's lanes divide a tile: kTopkRows times each lane has a four, of kRowsAtOnce together.
constexpr uint32_t kTopkRow = kFour * kLanes;
constexpr uint32_t kRowsAtOnce = 4;
static_assert(kTopkTile % (kTopkRow * kRowsAtOnce) == 0);

// Only the bits below 2^16 of a tile's counts are used here.
SMDDP_INLINE void CountTile(const TopkSelectArgs& args, uint64_t warp) {
  if (warp > (args.count - 1) / kTopkTile) return;
  auto begin = static_cast<uint32_t>(warp) * kTopkTile;
  uint32_t threshold = args.state->prefix;
  OfLanes<uint32_t> counts;  // those above it in the upper half, those equal in the lower one
  ForLanes([&](unsigned lane) {
    uint32_t count = 0;
    for (uint32_t row = 0; row < kTopkTile; row += kTopkRow * kRowsAtOnce) {
      Four loaded[kRowsAtOnce];
      SMDDP_UNROLL
      for (uint32_t i = 0; i < kRowsAtOnce; ++i) {
        uint32_t first = begin + row + i * kTopkRow + lane * kFour;
        if (first < args.count) loaded[i] = LoadFour<float>(args.total, first, args.count);
      }
      SMDDP_UNROLL
      for (uint32_t i = 0; i < kRowsAtOnce * kFour; ++i) {
        uint32_t index = begin + row + i / kFour * kTopkRow + lane * kFour + i % kFour;
        if (index >= args.count) continue;
        auto magnitude = static_cast<uint32_t>(Magnitude(loaded[i / kFour].at[i % kFour]));
        count += magnitude > threshold ? 1u << 16 : magnitude == threshold ? 1 : 0;
      }
    }
    Of(counts, lane) = count;
  });
  uint32_t sum = SumOf(counts);
  ForLanes([&](unsigned lane) {
    if (lane == 0) args.tiles[warp] = uint64_t{sum >> 16} << 32 | (sum & 0xffff);
  });
}

// One block: each thread has some tiles. Of each tile makes what comes before it.
SMDDP_INLINE void SumUpTiles(const TopkSelectArgs& args, unsigned, unsigned, void* shared) {
  uint32_t tiles = (args.count - 1) / kTopkTile + 1, each = (tiles - 1) / kThreads + 1;
  auto* sums = static_cast<uint64_t*>(shared);
  ForThreads([&](unsigned thread) {
    uint64_t sum = 0;
    uint32_t begin = thread * each;
    SMDDP_UNROLL_BY_4
    for (uint32_t t = begin; t < begin + each && t < tiles; ++t) sum += args.tiles[t];
    sums[thread] = sum;
  });
  SumUp(sums, sums + kThreads);
  ForThreads([&](unsigned thread) {
    uint64_t before = thread == 0 ? 0 : sums[thread - 1];
    uint32_t begin = thread * each;
    for (uint32_t t = begin; t < begin + each && t < tiles; ++t) {
      uint64_t own = args.tiles[t];
      args.tiles[t] = before;
      before += own;
    }
  });
}

// A bit of each lane for each of its four elements.
struct RowBits {
  uint32_t of[kFour];
  SMDDP_INLINE_MEMBER bool has(unsigned lane, uint32_t i) const { return of[i] >> lane & 1; }
  // Those of lanes before this one, and of its own elements before the i-th.
  SMDDP_INLINE_MEMBER uint32_t before(unsigned lane, uint32_t i) const {
    uint32_t sum = 0;
    SMDDP_UNROLL
    for (uint32_t j = 0; j < kFour; ++j) {
      sum += CountBits(of[j] & ((1u << lane) - 1)) + (j < i && has(lane, j) ? 1 : 0);
    }
    return sum;
  }
  SMDDP_INLINE_MEMBER uint32_t count() const {
    return CountBits(of[0]) + CountBits(of[1]) + CountBits(of[2]) + CountBits(of[3]);
  }
};

// Writes what is selected in the row that begins at `first`, and zeros in its place. `above` and
// `equal` are how many come before, and are then what comes before the next row.
SMDDP_INLINE void TakeFromRow(const TopkSelectArgs& args, uint32_t first, OfLanes<Four>& row,
                              uint32_t threshold, uint32_t need, uint32_t* above, uint32_t* equal) {
  auto magnitude = [&](unsigned lane, uint32_t i) {
    return static_cast<uint32_t>(Magnitude(Of(row, lane).at[i]));
  };
  auto exists = [&](unsigned lane, uint32_t i) { return first + lane * kFour + i < args.count; };
  RowBits larger, same;
  uint32_t any = 0;
  SMDDP_UNROLL
  for (uint32_t i = 0; i < kFour; ++i) {
    larger.of[i] =
        Ballot([&](unsigned lane) { return exists(lane, i) && magnitude(lane, i) > threshold; });
    same.of[i] =
        Ballot([&](unsigned lane) { return exists(lane, i) && magnitude(lane, i) == threshold; });
    any |= larger.of[i] | same.of[i];
  }
  if (any == 0) return;

  ForLanes([&](unsigned lane) {
    SMDDP_UNROLL
    for (uint32_t i = 0; i < kFour; ++i) {
      uint32_t rank = *equal + same.before(lane, i);
      if (!larger.has(lane, i) && !(same.has(lane, i) && rank < need)) continue;
      uint32_t place = *above + larger.before(lane, i) + (rank < need ? rank : need);
      uint32_t index = first + lane * kFour + i;
      args.indices[place] = static_cast<int32_t>(index);
      args.values[place] = Of(row, lane).at[i];
      args.total[index] = 0;
    }
  });
  *above += larger.count();
  *equal += same.count();
}

SMDDP_INLINE void TakeFromTile(const TopkSelectArgs& args, uint64_t warp) {
  if (warp > (args.count - 1) / kTopkTile) return;
  auto begin = static_cast<uint32_t>(warp) * kTopkTile;
  uint32_t threshold = args.state->prefix, need = args.state->need;
  auto above = static_cast<uint32_t>(args.tiles[warp] >> 32);
  auto equal = static_cast<uint32_t>(args.tiles[warp]);
  for (uint32_t row = begin; row < begin + kTopkTile && row < args.count;
       row += kTopkRow * kRowsAtOnce) {
    OfLanes<Four> rows[kRowsAtOnce];
    ForLanes([&](unsigned lane) {
      SMDDP_UNROLL
      for (uint32_t i = 0; i < kRowsAtOnce; ++i) {
        uint32_t first = row + i * kTopkRow + lane * kFour;
        if (first < args.count) Of(rows[i], lane) = LoadFour<float>(args.total, first, args.count);
      }
    });
    SMDDP_UNROLL
    for (uint32_t i = 0; i < kRowsAtOnce; ++i) {
      TakeFromRow(args, row + i * kTopkRow, rows[i], threshold, need, &above, &equal);
    }
  }
}

}  // namespace smddp
