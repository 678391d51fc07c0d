// The choice between writing slots through the cache and past it, on machines of given costs.
#include "collective/staging.h"

#include <string>

#include "check.h"
#include "kernels/cpu/copy.h"

namespace {

using namespace smddp;

constexpr size_t kBytes = 128 << 10;  // of a chunk that one rank writes
constexpr int kLong = 1;              // operations of several chunks

// Two ranks, of which one writes: nanoseconds per KiB of a write and a read, cached and streaming.
struct Machine {
  double write[kWritings], read[kWritings];
};
// The figures of hyperthreads, of one socket and of two, for 128 KiB.
constexpr Machine kCore = {{20, 60}, {20, 60}};
constexpr Machine kSocket = {{50, 60}, {60, 110}};
constexpr Machine kSockets = {{150, 60}, {500, 100}};

class Pair {
 public:
  // Runs chunks; returns how many were written past the cache. Every `interrupted`th one takes 50
  // times as long.
  int Run(const Machine& machine, int chunks, int interrupted = 0) {
    int streamed = 0;
    for (int i = 1; i <= chunks; ++i) {
      Writing writing = writer.Next(kLong);
      int way = writing.streaming ? 1 : 0;
      streamed += way;
      double slow = interrupted > 0 && i % interrupted == 0 ? 50 : 1;
      double per_ns = 1e-9 * kBytes / 1024 * slow;
      if (writer.TimesWrite(kLong)) {
        writer.Wrote(kLong, writing, kBytes, machine.write[way] * per_ns);
      }
      if (reader.TimesReads(kLong) || writing.probe) {
        AddCost(&report.cost[kLong][way], kBytes, machine.read[way] * per_ns, writing.probe);
      }
      if (writer.ChoosesNow(kLong)) {
        float costs[] = {report.cost[kLong][0], report.cost[kLong][1]};
        writer.Choose(kLong, costs);
      }
    }
    return streamed;
  }

  StorePolicy writer, reader;
  PullReport report{};
};

// All but the probes are written in the better way, once that is found.
TEST(NearRanksStageThroughTheCache) {
  for (const Machine& machine : {kCore, kSocket}) {
    Pair pair;
    pair.Run(machine, 100);
    EXPECT(pair.Run(machine, 10000) <= 10000 / 100, "streamed chunks among near ranks");
  }
}

TEST(FarRanksStagePastTheCache) {
  if (!kHasStreamingStores) return;
  Pair pair;
  pair.Run(kSockets, 64);
  // A probe costs four chunks more, so there is one in 256, after a few in quicker succession.
  EXPECT(pair.Run(kSockets, 10000) >= 10000 - 50, "cached chunks among far ranks");
}

TEST(TheChoiceFollowsTheDistance) {
  if (!kHasStreamingStores) return;
  Pair pair;
  for (int round = 0; round < 3; ++round) {
    pair.Run(kSocket, 5000);
    EXPECT(!pair.writer.streaming(kLong), "on one socket");
    pair.Run(kSockets, 64);
    EXPECT(pair.writer.streaming(kLong), "64 chunks after the cores moved apart");
    pair.Run(kSockets, 5000);
    EXPECT(pair.writer.streaming(kLong), "on two sockets");
    // One probe, of which there is one in 256, and the next choice.
    pair.Run(kSocket, 256 + 16);
    EXPECT(!pair.writer.streaming(kLong), "after the cores moved together");
  }
}

TEST(InterruptionsChangeNothing) {
  if (!kHasStreamingStores) return;
  for (int interrupted : {7, 28, 64}) {
    Pair pair;
    pair.Run(kSocket, 200, interrupted);
    EXPECT(pair.Run(kSocket, 20000, interrupted) <= 20000 / 50, "streamed on one socket");
    pair.Run(kSockets, 200, interrupted);
    EXPECT(pair.Run(kSockets, 20000, interrupted) >= 20000 * 49 / 50, "streamed on two");
  }
}

TEST(NothingIsChosenBeforeAllIsKnown) {
  StorePolicy choice;
  const float nothing[] = {0, 0}, half[] = {100, 0}, all[] = {500, 100};
  Writing cached{false, false, true}, streaming{true, true, true};
  choice.Choose(kLong, all);  // the own writes were not timed
  EXPECT(!choice.streaming(kLong), "own costs");
  choice.Wrote(kLong, cached, kBytes, 1e-5);
  choice.Wrote(kLong, streaming, kBytes, 1e-5);
  choice.Choose(kLong, nothing);
  choice.Choose(kLong, half);
  EXPECT(!choice.streaming(kLong), "the readers' costs");
  choice.Choose(kLong, all);
  EXPECT(choice.streaming(kLong), "all known");
  EXPECT(!choice.streaming(0), "each kind of operation has a choice of its own");
}

TEST(StagingCanBeForced) {
  for (const char* text : {"cached", "streaming"}) {
    StorePolicy choice;
    choice.Force(ToStagingMode(text));
    bool streaming = kHasStreamingStores && std::string(text) == "streaming";
    for (int i = 0; i < 5000; ++i) {
      Writing writing = choice.Next(kLong);
      EXPECT_EQ(writing.streaming, streaming);
      EXPECT(!writing.probe && !choice.TimesWrite(kLong), "forced");
    }
  }
  EXPECT(ToStagingMode("") == StagingMode::kAuto && ToStagingMode("auto") == StagingMode::kAuto,
         "automatic");
}

TEST(WritingsAreTold) {
  for (bool streaming : {false, true}) {
    for (bool probe : {false, true}) {
      Writing told = Writing::Decode(Writing{streaming, probe, true}.Encode());
      EXPECT(told.streaming == streaming && told.probe == probe && told.chosen, "what is told");
    }
  }
  EXPECT_EQ(Writing::Decode(0).streaming, false);  // of a slot that was never written
  EXPECT_EQ(StorePolicy::KindOf(4095, 1, false), -1);
  EXPECT_EQ(StorePolicy().Next(-1).streaming, false);
}

}  // namespace
