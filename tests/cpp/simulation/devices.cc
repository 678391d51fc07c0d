#include "devices.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#include "kernels/cpu/reduce.h"

namespace smddp_sim {

using smddp::Code;
using smddp::DeviceCollective;
using smddp::DeviceCopy;
using smddp::DeviceIntroduction;
using smddp::DevicePoint;
using smddp::Span;
using smddp::Status;
using Kind = DeviceCollective::Kind;

namespace {

constexpr double kLongestWork = 400e-6;
constexpr double kPoll = 20e-6;

smddp::Combine CombineOf(DeviceCollective::Op op) {
  switch (op) {
    case DeviceCollective::Op::kMin:
      return smddp::Combine::kMin;
    case DeviceCollective::Op::kMax:
      return smddp::Combine::kMax;
    case DeviceCollective::Op::kProduct:
      return smddp::Combine::kProduct;
    default:
      return smddp::Combine::kSum;
  }
}

// Whether two ranks run the same collective.
bool Same(const DeviceCollective& a, const DeviceCollective& b) {
  bool same = a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.root == b.root &&
              a.prescale == b.prescale && a.postscale == b.postscale &&
              a.spans.size() == b.spans.size();
  bool gathers = a.kind == Kind::kAllgather || a.kind == Kind::kAlltoall;
  for (size_t i = 0; same && !gathers && i < a.spans.size(); ++i) {
    same = a.spans[i].count == b.spans[i].count;
  }
  return same && (a.kind == Kind::kAlltoall || a.parts == b.parts);
}

}  // namespace

// ---- streams and copies -------------------------------------------------------------------------

SimStream::SimStream(Scheduler* scheduler, int rank, const char* role) : scheduler_(scheduler) {
  scheduler->Spawn(rank, role, false, [scheduler, queue = queue_] {
    for (;;) {
      while (queue->empty()) scheduler->Block(queue.get(), -1, "has nothing to do");
      std::function<void()> work = std::move(queue->front());
      queue->pop_front();
      scheduler->Pause(kLongestWork * scheduler->random().Unit(), "is at work");
      work();
    }
  });
}

void SimStream::Enqueue(std::function<void()> work) {
  queue_->push_back(std::move(work));
  scheduler_->Wake(queue_.get(), 1);
}

SimDevice::SimDevice(Scheduler* scheduler, int rank)
    : scheduler_(scheduler),
      to_host_(scheduler, rank, "copies to the host"),
      from_host_(scheduler, rank, "copies from the host") {}

Status SimDevice::AllocateHost(size_t bytes, void** memory) {
  *memory = std::malloc(bytes);
  return {};
}

void SimDevice::FreeHost(void* memory) { std::free(memory); }

Status SimDevice::Record(void* /*stream*/, DevicePoint* point) {
  *point = Soon();
  return {};
}

DevicePoint SimDevice::Soon() {
  Random& random = scheduler_->random();
  double later = random.Chance(0.5) ? 0 : random.Unit() * (random.Chance(0.1) ? 5e-3 : 300e-6);
  return std::make_shared<double>(scheduler_->now() + later);
}

void SimDevice::Await(const DevicePoint& point) {
  if (point == nullptr) return;
  double wait = *static_cast<double*>(point.get()) - scheduler_->now();
  if (wait > 0) scheduler_->Pause(wait, "waits for its inputs");
}

void SimDevice::CopyToHost(const std::vector<DeviceCopy>& copies, const DevicePoint& after,
                           Done done) {
  to_host_.Enqueue([=] {
    Await(after);
    for (const DeviceCopy& one : copies) std::memcpy(one.to, one.from, one.bytes);
    done({});
  });
}

void SimDevice::CopyFromHost(const std::vector<DeviceCopy>& copies, Done done) {
  from_host_.Enqueue([=] {
    for (const DeviceCopy& one : copies) std::memcpy(one.to, one.from, one.bytes);
    done({});
  });
}

// ---- collectives --------------------------------------------------------------------------------

// A collective, as far as the ranks have come to it.
struct SimDevices::Meeting {
  struct Side {
    bool here = false;
    DeviceCollective collective;
    std::vector<std::vector<char>> inputs;  // as they were when it came
  };
  std::vector<Side> sides;
};

class SimDeviceGroup : public smddp::DeviceGroup {
 public:
  SimDeviceGroup(SimDevices* all, int rank)
      : all_(all), rank_(rank), stream_(all->scheduler_, rank, "runs collectives of devices") {}
  ~SimDeviceGroup() override { *stopped_ = true; }

  std::string Cannot(const DeviceCollective& collective) const override {
    bool integer =
        collective.dtype != smddp::DType::kFloat32 && collective.dtype != smddp::DType::kFloat64 &&
        collective.dtype != smddp::DType::kFloat16 && collective.dtype != smddp::DType::kBfloat16;
    return collective.reduces() && collective.scaled() && integer ? "scales floats only" : "";
  }
  std::string Unavailable(smddp::Device*) override {
    return all_->program_.without_device == rank_ ? "this rank has none" : "";
  }
  std::string Lacks(smddp::Device*, const DeviceCollective&) override {
    return random().Chance(0.05) ? "memory" : "";
  }
  bool required() const override { return false; }

  DeviceIntroduction Introduce(smddp::Device*, bool) override {
    DeviceIntroduction own{};
    own.device[0] = static_cast<char>(rank_ + 1);
    return own;
  }
  void Connect(smddp::Device*, int, const std::vector<DeviceIntroduction>&, Done done) override {
    bool fails = all_->program_.cannot_connect == rank_;
    stream_.Enqueue([=] { done(fails ? Status(Code::kSystem, "cannot connect") : Status()); });
  }

  void Submit(DeviceCollective collective, std::function<void()> computed, Done done) override {
    if (*stopped_) return done(Stopped());
    all_->ahead_ += !jobs_.empty();
    ++all_->collectives_;
    jobs_.push_back({std::move(collective), std::move(computed), std::move(done)});
    stream_.Enqueue([this, stopped = stopped_] { RunNext(stopped); });
  }

  void Abort() override {
    *stopped_ = true;
    std::deque<Job> left = std::move(jobs_);
    jobs_.clear();
    for (Job& job : left) job.done(Stopped());
  }
  void Close() override {}
  smddp::DeviceGroupStats stats() const override { return {}; }

 private:
  using Meeting = SimDevices::Meeting;
  struct Job {
    DeviceCollective collective;
    std::function<void()> computed;
    Done done;
  };

  static Status Stopped() { return {Code::kSystem, "the device was stopped"}; }
  Random& random() const { return all_->scheduler_->random(); }

  // Whenever it has waited, the group may have been stopped, and then be gone as well.
  void RunNext(const std::shared_ptr<bool>& stopped) {
    if (*stopped) return;
    all_->device(rank_)->Await(jobs_.front().collective.after);
    if (*stopped) return;
    auto computed = jobs_.front().computed;
    computed();
    if (*stopped) return;
    Meeting* meeting = Come(jobs_.front().collective);
    while (!HasAll(*meeting)) {
      double pause = kPoll * (1 + 20 * random().Unit());
      all_->scheduler_->Pause(pause, "waits for its peers' devices");
      if (*stopped) return;
    }
    Take(*meeting, jobs_.front().collective);
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    job.done({});
  }

  Meeting* Come(const DeviceCollective& collective) {
    auto& meetings = all_->meetings_;
    if (meetings.size() == started_) {
      meetings.push_back(std::make_unique<Meeting>());
      meetings.back()->sides.resize(static_cast<size_t>(all_->program_.size));
    }
    Meeting* meeting = meetings[started_++].get();
    Meeting::Side& own = meeting->sides[static_cast<size_t>(rank_)];
    own.here = true;
    own.collective = collective;
    size_t element = Info(collective.dtype).size;
    bool receives = collective.kind == Kind::kBroadcast && collective.root != rank_;
    for (const Span& span : collective.spans) {
      own.inputs.emplace_back();
      if (!receives) own.inputs.back().assign(span.in, span.in + span.count * element);
    }
    for (const Meeting::Side& other : meeting->sides) {
      if (!other.here || Same(other.collective, collective)) continue;
      all_->abuse_ = "rank " + std::to_string(rank_) + " runs another one as collective " +
                     std::to_string(started_) + " than a peer";
    }
    return meeting;
  }

  // A root has nothing to wait for.
  bool HasAll(const Meeting& meeting) const {
    auto here = [](const Meeting::Side& side) { return side.here; };
    const auto& own = meeting.sides[static_cast<size_t>(rank_)].collective;
    if (own.kind != Kind::kBroadcast) {
      return std::all_of(meeting.sides.begin(), meeting.sides.end(), here);
    }
    return here(meeting.sides[static_cast<size_t>(own.root)]);
  }

  void Take(const Meeting& meeting, const DeviceCollective& collective) const {
    if (collective.reduces()) return TakeReduced(meeting, collective);
    size_t self = static_cast<size_t>(rank_), size = meeting.sides.size();
    for (size_t s = 0; s < collective.spans.size(); ++s) {
      char* to = collective.spans[s].out;
      auto copy = [&](size_t from, size_t at, size_t bytes) {
        if (bytes > 0) std::memcpy(to, meeting.sides[from].inputs[s].data() + at, bytes);
        to += bytes;
      };
      for (size_t r = 0; r < size; ++r) {
        const auto& parts = meeting.sides[r].collective.parts;
        if (collective.kind == Kind::kAllgather) copy(r, 0, parts[r]);
        if (collective.kind == Kind::kAlltoall) {
          copy(r, std::accumulate(parts.begin(), parts.begin() + rank_, size_t{0}), parts[self]);
        }
      }
      if (collective.kind == Kind::kBroadcast) {
        copy(static_cast<size_t>(collective.root), 0, collective.spans[s].count);
      }
    }
  }

  void TakeReduced(const Meeting& meeting, const DeviceCollective& collective) const {
    size_t size = meeting.sides.size(), element = Info(collective.dtype).size;
    smddp::ReduceFn reduce =
        smddp::FindReduce(collective.dtype, CombineOf(collective.op), smddp::ReduceStage::kFull);
    for (size_t s = 0; s < collective.spans.size(); ++s) {
      size_t begin = 0, count = collective.spans[s].count;
      if (collective.kind == Kind::kReduceScatter) {
        auto parts = collective.parts.begin() + static_cast<ptrdiff_t>(s * size);
        begin = std::accumulate(parts, parts + rank_, size_t{0});
        count = parts[rank_];
      }
      if (count == 0) continue;
      std::vector<const void*> sources;
      for (const Meeting::Side& side : meeting.sides) {
        sources.push_back(side.inputs[s].data() + begin * element);
      }
      smddp::ReduceArgs args;
      args.sources = sources.data();
      args.num_sources = static_cast<int>(size);
      args.count = count;
      args.out = collective.spans[s].out;
      args.scale = collective.prescale * collective.postscale;
      reduce(args);
    }
  }

  SimDevices* all_;
  int rank_;
  SimStream stream_;
  std::deque<Job> jobs_;  // that have not ended, in order
  size_t started_ = 0;
  std::shared_ptr<bool> stopped_ = std::make_shared<bool>(false);
};

bool OnDevice(const Program& program, const Call& call, int id) {
  if (!program.on_devices || call.kind == smddp::Kind::kBarrier) return false;
  return Random(program.seed ^ (static_cast<uint64_t>(id) << 32)).Chance(0.8);
}

SimDevices::SimDevices(Scheduler* scheduler, const Program& program)
    : scheduler_(scheduler), program_(program) {
  for (int r = 0; r < program.size && program.on_devices; ++r) devices_.emplace_back(scheduler, r);
}

SimDevices::~SimDevices() = default;

std::unique_ptr<smddp::DeviceGroup> SimDevices::Join(int rank) {
  return std::make_unique<SimDeviceGroup>(this, rank);
}

}  // namespace smddp_sim
