#include "collective/device/on_device.h"

#include <atomic>
#include <cstring>
#include <utility>  // for move

#include "collective/device/device_collective.h"
#include "collective/device/vote.h"
#include "core/log.h"

namespace smddp {
namespace {

// Why the ranks cannot connect; the same text on all of them, and "" if they can.
std::string Objection(const std::vector<DeviceIntroduction>& all, const std::vector<int>& ranks) {
  auto rank = [&](size_t i) { return "rank " + std::to_string(ranks[i]); };
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].problem[0] != '\0') return rank(i) + ": " + all[i].problem;
  }
  for (size_t i = 1; i < all.size(); ++i) {
    if (all[i].version != all[0].version) {
      return rank(0) + " and " + rank(i) + " have different versions of it, " +
             std::to_string(all[0].version) + " and " + std::to_string(all[i].version);
    }
    for (size_t j = 0; j < i; ++j) {
      if (std::memcmp(all[i].device, all[j].device, sizeof all[i].device) != 0) continue;
      return rank(j) + " and " + rank(i) +
             " use the same GPU; start as many ranks on a node as it has GPUs, and call pin_gpu()";
    }
  }
  return "";
}

}  // namespace

std::string OnDevice::Cannot(const ChannelResources& resources, const Request& request) {
  if (resources.devices == nullptr) return "its ranks have no device group";
  std::string reason = CannotBeOnDevice(request);
  if (!reason.empty()) return reason;
  return resources.devices->Cannot(CollectiveOf(request, *resources.topology));
}

OnDevice::OnDevice(ChannelResources* resources, const Request* request,
                   HostCopy::MakeHost make_host)
    : resources_(resources), request_(request), make_host_(std::move(make_host)) {
  bool usable = resources_->devices->state() != DeviceGroup::State::kUnusable;
  if (usable) refusal_ = resources_->devices->Unavailable(request_->device);
  usable = usable && refusal_.empty();
  std::string lack = usable ? resources_->devices->Lacks(request_->device, Wanted()) : "";
  StartVote(usable && lack.empty(), request_);
  static std::atomic<bool> told{false}, told_lack{false};
  if (!refusal_.empty() && !told.exchange(true)) {
    LogWarning("NCCL is not used, so collectives of GPUs' tensors run on the host: " + refusal_);
  }
  if (!lack.empty() && !told_lack.exchange(true)) {
    LogWarning("Some collectives of GPUs' tensors run on the host, such as " + request_->Title() +
               ": " + lack);
  }
}

OnDevice::~OnDevice() { Abort(); }

void OnDevice::StartVote(bool yes, const Request* subject) {
  votes_ = yes ? 1 : 0;
  SetHostRequest(Kind::kVote, DType::kInt64);
  host_request_.run = subject != nullptr ? subject->run : 0;
  host_request_.subject = subject;
  host_request_.tensors = {{&votes_, &votes_, {1}}};
  host_ = make_host_(&host_request_);
}

void OnDevice::SetHostRequest(Kind kind, DType dtype) {
  host_request_ = Request();
  host_request_.kind = kind;
  host_request_.dtype = dtype;
  host_request_.op = ReduceOp::kSum;
  host_request_.process_set = request_->process_set;
  host_request_.name = "device group";
}

Progress OnDevice::Advance() {
  bool moved = false;
  for (bool step = true; step && step_ != Step::kDone;) {
    step = Poll();
    moved = moved || step;
  }
  if (step_ == Step::kDone) return Progress::kDone;
  return moved ? Progress::kSome : Progress::kNone;
}

bool OnDevice::Poll() {
  if (step_ == Step::kPrepare) return Prepare();
  Status status;
  if (host_ != nullptr) {
    Progress progress = host_->Advance();
    if (progress != Progress::kDone) return progress == Progress::kSome;
    status = host_->status();
    if (met_at_ == 0) met_at_ = host_->met_at();
    host_.reset();
  } else {
    if (!work_->Poll(&status)) return false;
    work_.reset();
  }

  switch (step_) {
    case Step::kVote:
      if (!status.ok()) return Conclude(status);
      CountVotes();
      return true;
    case Step::kIntroduce:
      if (!status.ok()) return Conclude(status);
      MeetAll();
      return true;
    case Step::kConnect:
      refusal_ = status.message();
      if (status.ok()) {
        refusal_ = resources_->devices->Lacks(request_->device, Wanted());
      }
      StartVote(refusal_.empty(), nullptr);
      step_ = Step::kConfirm;
      return true;
    case Step::kConfirm:
      if (!status.ok()) return Conclude(status);
      Confirm();
      return true;
    default:
      return Conclude(status);
  }
}

bool OnDevice::All() const { return VotesOf(votes_) == resources_->topology->size; }

void OnDevice::CountVotes() {
  number_ = LaunchNumberOf(votes_);
  if (All()) {
    step_ = Step::kPrepare;
  } else if (resources_->devices->required() && !refusal_.empty()) {
    Conclude({Code::kSystem, "SMDDP_NCCL=required, but it cannot be used: " + refusal_});
  } else {
    Stage();
  }
}

// Whatever state the group is in, it is in on all ranks: those before have connected it, or failed
// to, everywhere. So one of the other channel, with a larger number, waits while this one connects.
bool OnDevice::Prepare() {
  if (!resources_->devices->order()->IsTurnOf(number_)) return false;
  return Begin();
}

bool OnDevice::Begin() {
  switch (resources_->devices->state()) {
    case DeviceGroup::State::kNew:
      StartIntroduction();
      return true;
    case DeviceGroup::State::kReady:
      StartCollective();
      return true;
    default:
      Stage();
      return true;
  }
}

void OnDevice::StartIntroduction() {
  size_t size = static_cast<size_t>(resources_->topology->size);
  int rank = resources_->topology->rank;
  own_ = resources_->devices->Introduce(request_->device, rank == 0);
  all_.resize(size);
  SetHostRequest(Kind::kAllgather, DType::kUint8);
  host_request_.part_bytes.assign(size, sizeof own_);
  host_request_.tensors = {{&own_, all_.data(), {static_cast<int64_t>(sizeof own_)}}};
  host_ = make_host_(&host_request_);
  step_ = Step::kIntroduce;
}

void OnDevice::MeetAll() {
  std::string objection = Objection(all_, resources_->topology->job_ranks);
  if (!objection.empty()) return GiveUp(objection);
  work_ = std::make_shared<PendingWork>(resources_->shm, nullptr);
  step_ = Step::kConnect;
  resources_->devices->Connect(request_->device, resources_->topology->rank, all_,
                               [work = work_](const Status& status) { work->Finish(status); });
}

void OnDevice::Confirm() {
  if (!All()) return GiveUp(refusal_.empty() ? "it failed on another rank" : refusal_);
  resources_->devices->set_state(DeviceGroup::State::kReady);
  StartCollective();
}

DeviceCollective OnDevice::Wanted() const { return CollectiveOf(*request_, *resources_->topology); }

void OnDevice::StartCollective() {
  computed_ = std::make_shared<PendingWork>(resources_->shm, nullptr);
  work_ = std::make_shared<PendingWork>(resources_->shm, nullptr);
  step_ = Step::kRun;
  resources_->devices->Submit(
      Wanted(), [work = computed_] { work->Finish({}); },
      [work = work_](const Status& status) { work->Finish(status); });
  PassTurn();
}

// Lets this rank start those with larger numbers.
void OnDevice::PassTurn() {
  resources_->devices->order()->Pass(number_);
  resources_->shm->RingSelf();
}

// On all ranks: the group is given up for good.
void OnDevice::GiveUp(const std::string& why) {
  resources_->devices->set_state(DeviceGroup::State::kUnusable);
  resources_->devices->Abort();
  if (resources_->devices->required()) {
    Conclude({Code::kSystem, "SMDDP_NCCL=required, but NCCL cannot connect the ranks: " + why});
    return;
  }
  if (resources_->topology->rank == 0 || !refusal_.empty()) {
    LogWarning("NCCL cannot connect the ranks, so collectives of GPUs' tensors run on the host: " +
               why);
  }
  Stage();
}

void OnDevice::Stage() {
  PassTurn();
  host_ = std::make_unique<HostCopy>(resources_, request_, make_host_);
  step_ = Step::kStaged;
}

bool OnDevice::Conclude(const Status& status) {
  PassTurn();
  status_ = status;
  step_ = Step::kDone;
  return true;
}

std::vector<int> OnDevice::Missing() const {
  if (host_ != nullptr) return host_->Missing();
  const Topology& topo = *resources_->topology;
  Status ignored;
  bool own = topo.size == 1 || (step_ == Step::kRun && !computed_->Poll(&ignored));
  std::vector<int> missing;
  for (int r = 0; r < topo.size; ++r) {
    if ((r == topo.rank) == own) missing.push_back(topo.job_ranks[r]);
  }
  return missing;
}

bool OnDevice::MayWaitForOtherNodes() const {
  if (host_ != nullptr) return host_->MayWaitForOtherNodes();
  return resources_->topology->num_nodes > 1;
}

void OnDevice::Abort() {
  if (host_ != nullptr) host_->Abort();
  if (work_ == nullptr) return;
  resources_->devices->Abort();  // which has a limit of time
  static_cast<void>(work_->Abandon(0));
  static_cast<void>(computed_ == nullptr || computed_->Abandon(0));
  work_.reset();
}

}  // namespace smddp
