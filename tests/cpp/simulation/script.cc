#include "script.h"

#include <numeric>

#include "engine/watch/tell_nodes.h"

namespace smddp_sim {
namespace {

using smddp::Code;
using smddp::Status;

// Values of operations differ: those of a plan's buckets, and of the call that it overlaps.
int ValueId(const Item& item, int bucket) { return item.id * 64 + bucket + 2; }
constexpr int kCallBucket = -1;

// A failure reaches the other channels with the monitor's next ticks.
constexpr double kSpreads = 0.2;
constexpr double kLinger = 1;

std::string PlanText(const std::vector<Call>& buckets) {
  std::string text;
  for (const Call& call : buckets) {
    text += call.name + " " + smddp::Info(call.dtype).name + " " + smddp::ReduceOpName(call.op);
    for (const auto& dims : call.dims) {
      for (int64_t dim : dims) text += " " + std::to_string(dim);
      text += ";";
    }
    text += "\n";
  }
  return text;
}

}  // namespace

// A run of a plan on one rank.
struct Step {
  int submitted = 0, completed = 0;
  bool failed = false, cancelled = false, over = false;
};

void Script::Main() {
  auto context = std::make_unique<smddp::JobContext>();
  context->config.timeout_seconds = job_.program_.timeout;
  context->config.spin_microseconds = 0;
  context->config.allreduce = job_.program_.forced_allreduce;
  communicator_ = std::make_unique<smddp::Communicator>(std::move(context), job_.Connect(rank_));
  Status status = communicator_->Start();
  if (!status.ok()) CheckFailure("init()", status, true);
  Status why;
  set_ = communicator_->Find(0, &why).get();
  for (const Item& item : job_.program_.items) {
    if (leaves_ || (failed_ && !job_.program_.goes_on_after_failure)) break;
    job_.Begin(rank_, item.id);
    if (!item.absent[rank_]) RunItem(item);
  }
  if (!leaves_) WaitForPosted();
  Shutdown();
  finished_ = true;
}

void Script::RunItem(const Item& item) {
  Compute();
  doing_ = "item " + std::to_string(item.id);
  if (item.type == Item::Type::kCall) RunCall(item);
  if (item.type == Item::Type::kPlan) RunPlan(item);
  if (item.type == Item::Type::kJoin) RunJoin(item);
  if (item.type == Item::Type::kPosted) RunPosted(item);
  if (item.type == Item::Type::kThreads) RunThreads(item);
}

void Script::Compute() {
  Random& random = job_.scheduler_.random();
  doing_ = "computes";
  if (random.Chance(0.5)) {
    job_.scheduler_.Pause(random.Unit() * (random.Chance(0.1) ? 5e-3 : 200e-6), "computes");
  }
}

Begun* Script::Add(const Item& item, const Call& call, int bucket) {
  std::string what =
      "item " + std::to_string(item.id) + " " + smddp::KindName(call.kind) + " '" + call.name + "'";
  begun_.push_back(std::make_unique<Begun>(
      Buffers(job_.program_, item, call, ValueId(item, bucket), rank_), std::move(what)));
  Begun* begun = begun_.back().get();
  if (OnDevice(job_.program_, call, ValueId(item, bucket))) {
    SimDevice* device = job_.devices_.device(rank_);
    begun->buffers.PlaceOn(device, device->Soon());
  }
  begun->gradient = bucket != kCallBucket;
  begun->at = job_.scheduler_.now();
  begun->too_late = channel_failed_[begun->gradient];
  begun->in_thread = item.type == Item::Type::kThreads;
  begun->must_succeed = bucket == kCallBucket ? CallSucceeds(job_.program_, item)
                                              : bucket < FirstBadBucket(job_.program_, item);
  return begun;
}

std::string Script::Where(const std::string& what) const {
  return "rank " + std::to_string(rank_) + ", " + what + ": ";
}

void Script::Completed(Begun* begun, const Status& status) {
  const double now = job_.scheduler_.now();
  std::string where = Where(begun->what);
  if (++begun->completions > 1) job_.Complain(where + "completed twice");
  if (status.ok()) {
    if (!begun->must_succeed) job_.Complain(where + "returned OK, though the ranks do not agree");
    bool late = failed_ && now > failed_at_ + kSpreads && begun->at > failed_at_ + kSpreads;
    bool after = begun->in_thread ? begun->too_late : channel_failed_[begun->gradient];
    if (after || late) {
      job_.Complain(where + "returned OK after a failure of this rank");
    }
    std::string wrong = begun->buffers.CheckResult();
    if (!wrong.empty()) job_.Complain(where + "returned OK, but " + wrong);
  } else {
    CheckFailure(begun->what, status, begun->must_succeed);
    if (status.code() != Code::kMismatch) channel_failed_[begun->gradient] = true;
    std::string wrong = status.code() == Code::kMismatch ? begun->buffers.CheckUntouched() : "";
    if (wrong.empty()) wrong = begun->buffers.CheckGuards();
    if (!wrong.empty()) job_.Complain(where + "failed, and " + wrong);
  }
  begun->buffers.Keep();
}

void Script::CheckFailure(const std::string& what, const Status& status, bool must_succeed) {
  const std::string& text = status.message();
  if (status.code() == Code::kMismatch) {
    if (must_succeed && !job_.Broken()) job_.Complain(Where(what) + "failed: " + text);
    bool explains = text.find("Mismatched collectives") == 0;
    size_t first = text.find("rank "), second = text.find(", rank ");
    bool both = first != std::string::npos && second != std::string::npos;
    if (explains && !both) job_.Complain(Where(what) + "names not both sides: " + text);
    return;
  }
  if (!job_.Broken()) job_.Complain(Where(what) + "failed without a reason: " + text);
  if (text.empty()) job_.Complain(Where(what) + "failed without a word");
  if (!failed_) {
    failed_at_ = job_.scheduler_.now();
    failure_ = text;
  }
  failed_ = true;
}

void Script::RunCall(const Item& item) {
  const Call& call = CallOf(item, rank_);
  Begun* begun = Add(item, call, kCallBucket);
  Completed(begun, set_->Run(begun->buffers.request()));
}

Begun* Script::AddNamed(const Item& item, const std::vector<Call>& calls, int index) {
  Begun* begun = Add(item, calls[index], index);
  begun->gradient = false;
  begun->must_succeed = NamedSucceeds(job_.program_, item, index);
  return begun;
}

// As TF1 sessions do: whatever is ready is begun, and only its result is waited for.
void Script::RunPosted(const Item& item) {
  plans_.push_back(BucketsOf(item, rank_));
  for (int index : item.order[rank_]) {
    Begun* begun = AddNamed(item, plans_.back(), index);
    auto operation = std::make_unique<smddp::Operation>();
    operation->request = begun->buffers.request();
    operation->request.matching = smddp::Matching::kByName;
    operation->done = [=](const Status& status) {
      Completed(begun, status);
      --posted_;
      job_.scheduler_.Wake(&posted_, 1);
    };
    ++posted_;
    set_->Post(std::move(operation));
    Compute();
  }
  if (item.waits) WaitForPosted();
}

void Script::WaitForPosted() {
  doing_ = "waits for what it posted";
  while (posted_ > 0) job_.scheduler_.Block(&posted_, -1, "waits for what it posted");
}

// Each thread has every other call, in the same order on all ranks.
void Script::RunThreads(const Item& item) {
  plans_.push_back(BucketsOf(item, rank_));
  const std::vector<Call>& calls = plans_.back();
  auto ended = std::make_shared<int>(0);
  auto run = [this, &item, &calls](size_t first) {
    for (size_t index = first; index < calls.size(); index += 2) {
      Compute();
      Begun* begun = AddNamed(item, calls, static_cast<int>(index));
      Completed(begun, set_->Run(begun->buffers.request()));
    }
  };
  job_.scheduler_.Spawn(rank_, "second script", false, [=] {
    run(1);
    *ended = 1;
    job_.scheduler_.Wake(ended.get(), 1);
  });
  run(0);
  while (*ended == 0) job_.scheduler_.Block(ended.get(), -1, "waits for its second thread");
}

void Script::RunPlan(const Item& item) {
  plans_.push_back(BucketsOf(item, rank_));
  const std::vector<Call>& buckets = plans_.back();
  auto info = std::make_shared<smddp::PlanInfo>();
  info->num_buckets = static_cast<int>(buckets.size());
  info->fingerprint = 1000u * (item.id + 1) + buckets.size();
  info->name = "plan" + std::to_string(item.id);
  info->text = std::make_shared<const std::string>(PlanText(buckets));
  int64_t run = 0;
  Status begun = set_->BeginPlan(info, &run);
  if (!begun.ok()) return CheckFailure("the begin of item " + std::to_string(item.id), begun, true);
  auto step = std::make_shared<Step>();
  job_.scheduler_.Spawn(rank_, "brings buckets", false,
                        [=, &buckets, &item] { SubmitBuckets(item, buckets, run, step); });
  if (!item.call.name.empty()) RunCall(item);
  doing_ = "waits for the buckets of item " + std::to_string(item.id);
  while (!step->over || step->completed < step->submitted) {
    job_.scheduler_.Block(step.get(), -1, "waits for its buckets");
  }
  doing_ = "ends item " + std::to_string(item.id);
  if (step->failed || item.stop_rank == rank_) return;
  bool ended = false;
  Status status;
  set_->EndPlan(run, [&](const Status& how) {
    status = how;
    ended = true;
    job_.scheduler_.Wake(step.get(), 1);
  });
  while (!ended) job_.scheduler_.Block(step.get(), -1, "waits for the end of a plan");
  bool must_succeed = FirstBadBucket(job_.program_, item) == kNoBucket;
  if (!status.ok()) CheckFailure(doing_, status, must_succeed);
  if (status.ok() && !must_succeed) job_.Complain(Where(doing_) + "OK, though the ranks differ");
}

// As TensorFlow does: in any order, on a thread of its own; after a failure none is begun that has
// not been ready before.
void Script::SubmitBuckets(const Item& item, const std::vector<Call>& buckets, int64_t run,
                           std::shared_ptr<Step> step) {
  Random& random = job_.scheduler_.random();
  int count = static_cast<int>(buckets.size());
  if (item.stop_rank == rank_) count = std::min(count, item.stop_after);
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  for (int i = count - 1; i > 0 && random.Chance(0.7); --i) {
    std::swap(order[i], order[random.Below(i + 1)]);
  }
  bool cancels = random.Chance(0.5);
  int latest = -1;
  for (int bucket : order) {
    if (random.Chance(0.4)) job_.scheduler_.Pause(random.Unit() * 300e-6, "computes gradients");
    if (step->failed && cancels && bucket > latest) continue;
    latest = std::max(latest, bucket);
    Begun* begun = Add(item, buckets[bucket], bucket);
    auto operation = std::make_unique<smddp::Operation>();
    operation->request = begun->buffers.request();
    operation->done = [=](const Status& status) {
      Completed(begun, status);
      step->failed |= !status.ok();
      ++step->completed;
      job_.scheduler_.Wake(step.get(), 1);
    };
    ++step->submitted;
    set_->SubmitBucket(run, bucket, std::move(operation));
  }
  step->over = true;
  job_.scheduler_.Wake(step.get(), 1);
}

void Script::RunJoin(const Item& item) {
  doing_ = "join() of item " + std::to_string(item.id);
  int last = -1;
  joins_ = true;
  Status status = set_->Join(&last);
  joins_ = false;
  if (!status.ok()) return CheckFailure(doing_, status, true);
  if (channel_failed_[0] || channel_failed_[1]) {
    job_.Complain(Where(doing_) + "returned OK after a failure of this rank");
  }
  job_.last_joined_[item.id][rank_] = last;
}

// As Communicator::Leave with MPI: a rank that ends in good order waits until the other nodes know
// and all end too, and passes on what it hears of failures meanwhile.
void Script::Shutdown() {
  doing_ = "shuts down";
  const bool broken = communicator_->failed();
  communicator_->Leave(failed_ || broken);
  if (broken || job_.program_.num_nodes == 1) return;
  if (failed_) {
    set_->AnnounceDeparture();
    return;
  }
  ending_ = true;
  double linger = -1;
  while (!set_->AnnounceDeparture() || !job_.AllEnd()) {
    job_.scheduler_.Pause(500e-6, "waits for the other ranks to end");
    if (linger < 0 && HearsOfFailure()) linger = job_.scheduler_.now() + kLinger;
    if (linger >= 0 && job_.scheduler_.now() > linger) break;
    if (job_.EndsAnyhow()) break;
  }
}

// What ShutdownWait looks at, in engine/communicator.cc.
bool Script::HearsOfFailure() {
  const smddp::ShmGroup& shm = *set_->shm();
  smddp::Alarm* alarm = set_->alarm();
  std::string text;
  int code = 0;
  if (alarm != nullptr && alarm->Heard(&code, &text)) shm.PostFailure(code, text);
  for (int p = 0; p < shm.size(); ++p) {
    if (p == shm.rank() || shm.Peer(p) != smddp::PeerState::kDead) continue;
    std::string died = "rank " + std::to_string(shm.cell(p).job_rank) + " died";
    shm.PostFailure(static_cast<int>(Code::kRemote), died);
  }
  code = shm.Failure(&text);
  if (code != 0) smddp::TellNodes(shm, alarm, code, text);
  return code != 0;
}

void Script::CheckEnd(std::vector<std::string>* complaints) const {
  for (const auto& begun : begun_) {
    std::string where = Where(begun->what);
    bool alive = !job_.scheduler_.dead(rank_);
    if (alive && begun->completions == 0) complaints->push_back(where + "never completed");
    std::string wrong = begun->buffers.CheckKept();
    if (wrong.empty()) wrong = begun->buffers.CheckGuards();
    if (!wrong.empty()) complaints->push_back(where + wrong);
  }
}

}  // namespace smddp_sim
