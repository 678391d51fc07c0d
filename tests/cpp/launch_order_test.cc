// Process sets that share ranks, but not their first one: their collectives start in one order on
// all devices. One thread plays all ranks in random order, so what makes no progress is a deadlock.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "collective/device/on_device.h"
#include "inproc_job.h"

namespace {

using namespace smddp;
using smddp_test::InprocJob;

// Memory that the host can access.
class PlainDevice : public Device {
 public:
  const char* kind() const override { return "plain"; }
  Status AllocateHost(size_t bytes, void** memory) override {
    *memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    return {};
  }
  void FreeHost(void* memory) override { std::free(memory); }
  Status Record(void*, DevicePoint*) override { return {}; }
  void CopyToHost(const std::vector<DeviceCopy>& copies, const DevicePoint&, Done done) override {
    CopyFromHost(copies, done);
  }
  void CopyFromHost(const std::vector<DeviceCopy>& copies, Done done) override {
    for (const DeviceCopy& one : copies) std::memcpy(one.to, one.from, one.bytes);
    done({});
  }
};

constexpr int kRanks = 4;
const std::vector<int> kSets[] = {{0, 1, 2, 3}, {1, 2, 3}, {0, 2, 3}, {1, 2}, {0, 3}};
constexpr size_t kWorld = 0;

// A device runs one collective at a time, in the order in which they were submitted; and each of
// them waits there until it is the one on all devices of its set.
class Devices {
 public:
  struct Work {
    size_t set;
    int number;  // of the set's collectives
    DeviceGroup::Done done;
  };
  void Submit(int rank, Work work) { queues_[rank].push_back(std::move(work)); }
  bool Advance() {
    bool moved = false;
    for (size_t set = 0; set < std::size(kSets); ++set) moved |= Run(set);
    return moved;
  }
  int run = 0;

 private:
  bool Run(size_t set) {
    for (int rank : kSets[set]) {
      const auto& queue = queues_[rank];
      const auto& first = queues_[kSets[set][0]];
      if (queue.empty() || queue.front().set != set) return false;
      EXPECT_EQ(queue.front().number, first.front().number);
    }
    for (int rank : kSets[set]) {
      Work work = std::move(queues_[rank].front());
      queues_[rank].pop_front();
      work.done({});
    }
    ++run;
    return true;
  }
  std::deque<Work> queues_[kRanks];
};

class Group : public DeviceGroup {
 public:
  Group(Devices* devices, size_t set, int rank) : devices_(devices), set_(set), rank_(rank) {}
  std::string Cannot(const DeviceCollective&) const override { return ""; }
  std::string Unavailable(Device*) override { return ""; }
  std::string Lacks(Device*, const DeviceCollective&) override { return ""; }
  bool required() const override { return false; }
  DeviceIntroduction Introduce(Device*, bool) override {
    DeviceIntroduction own{};
    own.device[0] = static_cast<char>(rank_ + 1);
    return own;
  }
  void Connect(Device*, int, const std::vector<DeviceIntroduction>&, Done done) override {
    done({});
  }
  void Submit(DeviceCollective, std::function<void()> computed, Done done) override {
    computed();
    devices_->Submit(rank_, {set_, submitted_++, std::move(done)});
  }
  void Abort() override {}
  void Close() override {}
  DeviceGroupStats stats() const override { return {}; }

 private:
  Devices* devices_;
  size_t set_;
  int rank_, submitted_ = 0;
};

// What one thread of a rank's script does: collectives one after another, or (`ahead`) each as soon
// as the one before goes on in the background.
struct Thread {
  struct Step {
    std::unique_ptr<Request> request;
    std::unique_ptr<Collective> collective;
  };
  std::vector<size_t> sets;  // of its collectives
  bool ahead = false;
  size_t begun = 0;
  std::deque<Step> steps;  // begun and not ended
};

class Script {
 public:
  // apart: ranks learn that sets are apart, at the latest before they use one that is not all.
  Script(unsigned seed, bool apart) : random_(seed), apart_(apart) {
    for (size_t s = 0; s < std::size(kSets); ++s) {
      int size = static_cast<int>(kSets[s].size());
      jobs_.push_back(std::make_unique<InprocJob>(size, 1 + Below(2), smddp_test::kChunk));
      for (int i = 0; i < size; ++i) {
        groups_.push_back(std::make_unique<Group>(&devices_, s, kSets[s][i]));
        jobs_[s]->resources(i).devices = groups_.back().get();
        jobs_[s]->resources(i).turn = &turns_[kSets[s][i]];
      }
    }
    MakeThreads();
  }

  // Whether everything ended.
  bool Run() {
    constexpr int kStill = 50;  // a message between nodes arrives after some polls
    int still = 0;
    for (int left = 1; left > 0;) {
      bool moved = false;
      left = 0;
      std::shuffle(threads_.begin(), threads_.end(), random_);
      for (auto& [rank, thread] : threads_) {
        if (Below(3) > 0) moved |= Advance(rank, thread.get());
        left += thread->begun < thread->sets.size() || !thread->steps.empty();
      }
      moved |= devices_.Advance();
      still = moved ? 0 : still + 1;
      if (still == kStill) return false;
    }
    return true;
  }
  int collectives() const { return collectives_; }
  int run_by_devices() const { return devices_.run; }

 private:
  int Below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  // Each rank shares out the sets among its threads, and all do collectives in one order: so
  // without devices nothing could wait for ever.
  void MakeThreads() {
    std::vector<size_t> order;
    for (int i = 0; i < 30; ++i) {
      order.push_back(static_cast<size_t>(Below(static_cast<int>(std::size(kSets)))));
    }
    order.insert(order.begin(), 5, kWorld);
    for (int rank = 0; rank < kRanks; ++rank) {
      int count = 1 + Below(4);
      std::vector<int> thread_of;
      for (size_t s = 0; s < std::size(kSets); ++s) thread_of.push_back(Below(count));
      for (int t = 0; t < count; ++t) {
        auto thread = std::make_unique<Thread>();
        thread->ahead = Below(2) == 0;
        for (size_t set : order) {
          if (thread_of[set] == t && Place(rank, set) >= 0) thread->sets.push_back(set);
        }
        threads_.emplace_back(rank, std::move(thread));
      }
    }
    collectives_ = static_cast<int>(order.size());
  }

  static int Place(int rank, size_t set) {
    auto it = std::find(kSets[set].begin(), kSets[set].end(), rank);
    return it == kSets[set].end() ? -1 : static_cast<int>(it - kSets[set].begin());
  }

  void Begin(int rank, Thread* thread) {
    size_t set = thread->sets[thread->begun++];
    if (apart_ && (set != kWorld || Below(10) == 0)) turns_[rank].SetApart();
    auto request = std::make_unique<Request>();
    request->name = "x";
    request->process_set = static_cast<int>(set);
    request->dtype = DType::kFloat32;
    request->PlaceOn(&device_, nullptr);
    request->tensors = {{values_, values_, {1}}};
    Thread::Step step{std::move(request), nullptr};
    auto& resources = jobs_[set]->resources(Place(rank, set));
    step.collective = selector_.Make(&resources, step.request.get(), nullptr);
    thread->steps.push_back(std::move(step));
  }

  bool Advance(int rank, Thread* thread) {
    bool may_begin =
        thread->steps.empty() || (thread->ahead && thread->steps.back().collective->InBackground());
    bool begins = may_begin && thread->begun < thread->sets.size();
    if (begins) Begin(rank, thread);
    bool moved = begins;
    for (auto& step : thread->steps) moved |= step.collective->Advance() != Progress::kNone;
    while (!thread->steps.empty() &&
           thread->steps.front().collective->Advance() == Progress::kDone) {
      const Status& status = thread->steps.front().collective->status();
      EXPECT(status.ok(), status.message());
      thread->steps.pop_front();
    }
    return moved;
  }

  std::mt19937 random_;
  bool apart_;
  Selector selector_;
  PlainDevice device_;
  Devices devices_;
  LaunchTurn turns_[kRanks];
  std::vector<std::unique_ptr<InprocJob>> jobs_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<std::pair<int, std::unique_ptr<Thread>>> threads_;  // and their ranks
  float values_[1] = {0};
  int collectives_ = 0;
};

constexpr unsigned kScripts = 400;

}  // namespace

TEST(SetsThatAreApartStartInOneOrder) {
  int collectives = 0, run_by_devices = 0;
  for (unsigned seed = 0; seed < kScripts; ++seed) {
    Script script(seed, true);
    ASSERT(script.Run(), "script " + std::to_string(seed) + " hangs");
    collectives += script.collectives();
    run_by_devices += script.run_by_devices();
  }
  // The rest is from the time when not all ranks knew.
  EXPECT(run_by_devices > collectives / 2, std::to_string(run_by_devices));
}

// So the scripts are such that it matters.
TEST(SetsThatAreApartNeedAnOrder) {
  int hang = 0;
  for (unsigned seed = 0; seed < kScripts; ++seed) hang += Script(seed, false).Run() ? 0 : 1;
  EXPECT(hang > 0, "no script hangs without an order");
}
