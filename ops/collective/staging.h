// Staging: whether a rank writes the bytes that its peers will read through its cache or past it.
//
// Lines that are dirty in the cache of another socket arrive at a fifth of the speed at which lines
// in memory do; on one socket and between hyperthreads the cache is faster. Ranks of one node can
// be at any of these distances, and a virtual machine's cores move between them while it runs. So
// each rank times some of its writes into its slots and some of its reads from every peer's, and
// publishes the costs of the reads (PullReport). A writer compares its own cost plus its readers'
// in both ways and takes the cheaper. Once in a while it writes one chunk in the other way, a
// probe, to learn what that costs by now.
//
// The costs of operations of one chunk, which wait for each line, differ from those of long ones,
// and those of one-hop operations from two-hop ones: each kind has its own figures and choice.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>

#include "transport/shm/shm_group.h"

namespace smddp {

enum class StagingMode { kAuto, kCached, kStreaming };

// SMDDP_STAGING; empty: automatic.
StagingMode ToStagingMode(const std::string& text);

// How one chunk is written, as the writer tells its readers in ChannelCell::written.
struct Writing {
  bool streaming = false;
  bool probe = false;
  bool chosen = false;  // not of an operation that is too small to choose
  uint8_t Encode() const { return static_cast<uint8_t>(streaming | probe << 1 | chosen << 2); }
  static Writing Decode(uint8_t code) {
    return {(code & 1) != 0, (code & 2) != 0, (code & 4) != 0};
  }
};

// Adds a measurement to a moving figure of nanoseconds per KiB. A single writer.
void AddCost(std::atomic<float>* figure, size_t bytes, double seconds, bool probe);

// One rank's choice on one channel.
class StorePolicy {
 public:
  // The kind of an operation; -1: too small for the choice to matter, always cached.
  static int KindOf(size_t bytes, size_t chunks, bool one_hop);

  void Force(StagingMode mode) { mode_ = mode; }
  StagingMode mode() const { return mode_; }
  // How the next chunk of an operation of this kind is written.
  Writing Next(int kind);
  // Whether to time the write for which Next() was called last, and to choose after it.
  bool TimesWrite(int kind) const { return kind >= 0 && of_[kind].timed; }
  bool ChoosesNow(int kind) const { return kind >= 0 && of_[kind].chooses; }
  // Whether to time all reads of the next chunk that is read; those of a probe are always timed.
  bool TimesReads(int kind);

  void Wrote(int kind, Writing writing, size_t bytes, double seconds);
  // Takes the cheaper way. `readers`: the readers' costs of what this rank wrote, in ns per KiB it
  // wrote, cached and streaming; 0 where not known yet.
  void Choose(int kind, const float (&readers)[kWritings]);
  bool streaming(int kind) const { return of_[kind].streaming; }

 private:
  struct OfKind {
    bool streaming = false;
    bool timed = false, chooses = false;  // at the last write
    unsigned writes = 0, reads = 0;
    unsigned interval = 8, until_probe = 8;  // in chunks
    bool probes_are_dear = false;
    float cost[kWritings] = {};  // of the own writes, ns per KiB
  };
  StagingMode mode_ = StagingMode::kAuto;
  OfKind of_[kOperationKinds];
};

}  // namespace smddp
