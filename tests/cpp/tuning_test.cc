// What messages and bytes cost between nodes: as given, as measured, and what follows from it.
#include "core/tuning.h"

#include <unistd.h>

#include <cstdio>
#include <deque>
#include <fstream>

#include "check.h"
#include "core/deadline.h"
#include "engine/connect/measure_link.h"
#include "transport/inproc/inproc.h"

namespace {

using namespace smddp;
using smddp_test::RunRanks;

Tuning Given(const std::string& text) {
  Tuning tuning;
  Status status = Tuning::Parse(text, &tuning);
  EXPECT(status.ok(), status.message());
  return tuning;
}

// A link on which each exchange takes a time and a time for each byte, at least.
class SlowGroup : public PeerGroup {
 public:
  SlowGroup(std::unique_ptr<PeerGroup> group, double latency, double per_byte)
      : group_(std::move(group)), latency_(latency), per_byte_(per_byte) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  char* Memory(size_t bytes) override { return group_->Memory(bytes); }
  Status StartAllgather(const void*, size_t, void*) override { return None(); }
  Status StartAllgatherV(const void*, void*, const std::vector<size_t>&,
                         const std::vector<size_t>&) override {
    return None();
  }
  Status StartAlltoall(const void*, size_t, void*) override { return None(); }
  Status StartAlltoallV(const void* send, const std::vector<size_t>& send_bytes, void* recv,
                        const std::vector<size_t>& recv_bytes) override {
    ++exchanges;
    size_t bytes = recv_bytes[1 - rank()];
    over_.emplace_back(latency_ + per_byte_ * static_cast<double>(bytes));
    return group_->StartAlltoallV(send, send_bytes, recv, recv_bytes);
  }
  Status StartBroadcast(void*, size_t, int) override { return None(); }
  Status Test(bool* done) override {
    *done = false;
    if (!over_.empty() && !over_.front().Passed()) return {};
    Status status = group_->Test(done);
    if (*done && !over_.empty()) over_.pop_front();
    return status;
  }
  int exchanges = 0;

 private:
  static Status None() { return {Code::kSystem, "is not called"}; }
  std::unique_ptr<PeerGroup> group_;
  double latency_, per_byte_;
  std::deque<Deadline> over_;
};

// What both ranks of a slow link measure, and in how many exchanges and seconds.
struct Found {
  Tuning tuning[2];
  int exchanges[2];
  double seconds;
};

Found MeasuredOn(double latency, double per_byte) {
  Found found;
  auto groups = MakeInprocGroups(2);
  double begin = NowSeconds();
  RunRanks(2, [&](int rank) {
    // The second rank is slow: the first one's times have that in them, and it ends first.
    double own = rank == 0 ? latency : 2 * latency;
    SlowGroup group(std::move(groups[rank]), own, per_byte);
    Status status = MeasureLink(&group, &found.tuning[rank]);
    EXPECT(status.ok(), status.message());
    found.exchanges[rank] = group.exchanges;
  });
  found.seconds = NowSeconds() - begin;
  return found;
}

}  // namespace

TEST(TuningIsReadFromTextsAndFiles) {
  EXPECT_EQ(Given("").Text(), std::string("default"));
  EXPECT_EQ(Given("default").Text(), std::string("default"));
  EXPECT_EQ(Given("measure").Text(), std::string("measure"));
  EXPECT_EQ(Given("copy_gbs=5,latency_us=25.5,gbs=1.25").Text(),
            std::string("latency_us=25.5,gbs=1.25,copy_gbs=5"));
  std::string path = "/tmp/smddp_tuning_" + std::to_string(::getpid());
  std::ofstream(path) << "latency_us=25,\ngbs=1.25,\ncopy_gbs=5\n";
  EXPECT_EQ(Given(path).Text(), std::string("latency_us=25,gbs=1.25,copy_gbs=5"));
  std::remove(path.c_str());
  for (const char* wrong :
       {"fast", "latency_us", "latency_us=", "latency_us=1", "latency_us=1,gbs=1",
        "latency_us=0,gbs=1,copy_gbs=1", "latency_us=-1,gbs=1,copy_gbs=1", "gbs=1x", "gbs=inf",
        "latency_us=1,gbs=nan,copy_gbs=1", "latency_us=1,gbs=1,copy_gbs=1,x=1", path.c_str()}) {
    Tuning tuning;
    Status status = Tuning::Parse(wrong, &tuning);
    EXPECT(!status.ok(), wrong);
    EXPECT(status.message().find(wrong) != std::string::npos, status.message());
    EXPECT(status.message().find("it takes default, measure") != std::string::npos);
  }
}

TEST(SizesFollowFromTheCosts) {
  EXPECT_EQ(Tuning().ChunkBytes(2, 1), size_t{256} << 10);
  EXPECT_EQ(Tuning().ChunkBytes(3, 1), size_t{512} << 10);
  EXPECT_EQ(Tuning().ChunkBytes(2, 2), size_t{1} << 20);
  EXPECT_EQ(Tuning().ChunkBytes(32, 8), size_t{1} << 20);
  EXPECT_EQ(Tuning().ChunkBytes(64, 8), size_t{2} << 20);
  EXPECT_EQ(Tuning().ChunkBytes(128, 8), size_t{4} << 20);
  EXPECT_EQ(Tuning().ChunkBytes(64, 1), size_t{1} << 20);
  EXPECT_EQ(Tuning().ChunkBytes(512, 8), size_t{4} << 20);
  EXPECT_EQ(Tuning().AlltoallAggregateBytes(), size_t{128} << 10);
  EXPECT_EQ(Given("measure").ChunkBytes(2, 1), size_t{256} << 10, "before it is measured");
  // 8 latencies of 100 us carry 1 MB; two copies of 20 KB take 8 us.
  Tuning middle = Given("latency_us=100,gbs=1.25,copy_gbs=5");
  EXPECT_EQ(middle.ChunkBytes(2, 1), size_t{1} << 20);
  EXPECT_EQ(middle.AlltoallAggregateBytes(), size_t{256} << 10);
  EXPECT_EQ(Given("latency_us=8,gbs=1.25,copy_gbs=5").AlltoallAggregateBytes(), size_t{16} << 10);
  // Slow links take the smallest chunks, fast ones with a long way the largest.
  EXPECT_EQ(Given("latency_us=20,gbs=0.1,copy_gbs=5").ChunkBytes(2, 1), size_t{256} << 10);
  EXPECT_EQ(Given("latency_us=20,gbs=12,copy_gbs=5").ChunkBytes(2, 1), size_t{2} << 20);
  EXPECT_EQ(Given("latency_us=1000,gbs=50,copy_gbs=5").ChunkBytes(2, 1), size_t{4} << 20);
  EXPECT_EQ(Given("latency_us=0.01,gbs=1,copy_gbs=9").AlltoallAggregateBytes(), size_t{1} << 10);
}

TEST(BothRanksOfALinkMeasureIt) {
  Found quick = MeasuredOn(200e-6, 1e-9);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT(quick.tuning[rank].latency >= 400e-6 * rank, "the own delay is part of each time");
    EXPECT(quick.tuning[rank].latency >= 200e-6);
    EXPECT(quick.tuning[rank].per_byte > 0);
  }
  EXPECT_EQ(quick.exchanges[0], quick.exchanges[1]);
  // A round of each size is enough where time is short.
  Found slow = MeasuredOn(20e-3, 1e-9);
  EXPECT_EQ(slow.exchanges[0], slow.exchanges[1]);
  EXPECT(slow.exchanges[0] <= 6, std::to_string(slow.exchanges[0]));
  for (const Tuning& tuning : slow.tuning) EXPECT(tuning.latency >= 20e-3);
}
