#include "collective/pipeline.h"

#include <cstring>

#include "collective/joined.h"
#include "core/deadline.h"
#include "core/subnormals.h"
#include "kernels/cpu/copy.h"

namespace smddp {
namespace {

// Per rank, when descriptions are exchanged between nodes.
constexpr size_t kCrossNodeDetailBytes = 8 << 10;

}  // namespace

Pipeline::Pipeline(ChannelResources* resources, const Request* request, size_t num_chunks,
                   bool one_hop)
    : resources_(resources),
      request_(request),
      shm_(resources->shm),
      topo_(*resources->topology),
      base_(resources->next_chunk),
      signature_(request->Signature()),
      num_chunks_(num_chunks),
      one_hop_(one_hop),
      kind_(StagingKind()) {}

template <std::atomic<uint64_t> ChannelCell::* kCounter>
bool Pipeline::AllReached(uint64_t value) const {
  for (int p = 0; p < shm_->size(); ++p) {
    const ChannelCell& cell = shm_->channel_cell(p, resources_->index);
    if ((cell.*kCounter).load(std::memory_order_acquire) < value) return false;
  }
  return true;
}

Progress Pipeline::Advance() {
  KeepSubnormals exact;
  bool moved = false;
  for (bool step = true; step;) {
    step = false;
    if (state_ == State::kRunning) {
      step = TryUnpack();
      step = TryCombine() || step;
      step = TryStage() || step;
      if (!status_.ok()) state_ = State::kDone;
      if (state_ == State::kRunning && unpacked_ == num_chunks_ &&
          (!lends_ || AllReached<&ChannelCell::unpacked>(base_ + num_chunks_))) {
        bool concluded = Conclude(&moved);
        if (concluded) {
          resources_->next_chunk = base_ + num_chunks_;
          resources_->exchange.Close();
          state_ = State::kDone;
        }
      }
    } else if (state_ != State::kDone) {
      step = AdvanceMismatch();
    }
    moved = moved || step || progressed_;
    progressed_ = false;
  }
  if (state_ == State::kDone) return Progress::kDone;
  return moved ? Progress::kSome : Progress::kNone;
}

void Pipeline::Publish(std::atomic<uint64_t>* counter, uint64_t value) {
  counter->store(value, std::memory_order_release);
  shm_->RingPeers();
}

// Any rank may have read what lies in the slots from an earlier operation, and the header of this
// one.
bool Pipeline::SlotFree(size_t i) const {
  uint64_t end = base_ + i + 1;
  if (end <= kSlots) return true;
  return AllReached<&ChannelCell::unpacked>(end - kSlots);
}

bool Pipeline::StagedByAll(size_t i) const {
  return AllReached<&ChannelCell::staged>(base_ + i + 1);
}

bool Pipeline::TryStage() {
  if (state_ != State::kRunning || staged_ == num_chunks_ || !SlotFree(staged_)) return false;
  if (staged_ == 0) {
    shm_->header(shm_->rank(), resources_->index, base_) = OwnHeader();
  }
  StageTimed(staged_);
  ++staged_;
  Publish(&shm_->channel_cell(shm_->rank(), resources_->index).staged, base_ + staged_);
  if (resources_->staging_choice.ChoosesNow(kind_)) ChooseStaging();
  return true;
}

SlotHeader Pipeline::OwnHeader() const {
  SlotHeader header{};
  header.signature = signature_;
  header.key = request_->Key();
  header.kind = static_cast<uint8_t>(request_->kind);
  header.dtype = static_cast<uint8_t>(request_->dtype);
  header.op = static_cast<uint8_t>(request_->op);
  header.root = request_->root;
  bool joined = request_->has_joined();
  header.presence = joined ? Presence::kJoined : Presence::kHere;
  header.join_round = request_->joined.round;
  header.count = request_->joined_count();
  header.num_chunks = num_chunks_;
  header.run = request_->run;
  header.scale = request_->prescale * request_->postscale;
  return header;
}

bool Pipeline::TryCombine() {
  if (state_ != State::kRunning || combined_ == num_chunks_ || !StagedByAll(combined_)) {
    return false;
  }
  if (!verified_ && !Verify()) return state_ != State::kRunning;
  if (!CombineTimed(combined_)) return false;
  if (Streams(combined_)) StreamFence();
  ++combined_;
  ChannelCell& self = shm_->channel_cell(shm_->rank(), resources_->index);
  if (one_hop_) {
    unpacked_ = combined_;
    self.combined.store(base_ + combined_, std::memory_order_release);
    Publish(&self.unpacked, base_ + unpacked_);
  } else {
    Publish(&self.combined, base_ + combined_);
  }
  return true;
}

bool Pipeline::TryUnpack() {
  if (one_hop_ || unpacked_ == num_chunks_ ||
      !AllReached<&ChannelCell::combined>(base_ + unpacked_ + 1)) {
    return false;
  }
  if (unpacked_ == 0 && AnyVerdict()) {
    state_ = State::kMismatchPost;
    return true;
  }
  bool timed = resources_->staging_choice.TimesReads(kind_);
  for (int owner = 0; owner < shm_->size(); ++owner) {
    if (owner != shm_->rank()) UnpackTimed(unpacked_, owner, timed);
  }
  ++unpacked_;
  Publish(&shm_->channel_cell(shm_->rank(), resources_->index).unpacked, base_ + unpacked_);
  return true;
}

bool Pipeline::ExchangeHasEnded() {
  bool ended = false;
  Status status = resources_->share_peers->Test(&ended);
  if (!status.ok()) Fail(status);
  return status.ok() && ended;
}

// Returns true once all signatures are known to be equal; a mismatch changes state_.
bool Pipeline::Verify() {
  local_mismatch_ = false;
  for (int p = 0; p < shm_->size(); ++p) {
    local_mismatch_ |= shm_->header(p, resources_->index, base_).signature != signature_;
  }
  if (resources_->share_peers != nullptr) {
    if (!CompareAcrossNodes()) return false;
  } else if (local_mismatch_) {
    state_ = State::kMismatchPost;
    return false;
  }
  verified_ = true;
  if (resources_->timed) met_at_ = NowSeconds();
  return true;
}

// True if equal on all nodes; false if not yet known, failed, or mismatched (see state_).
bool Pipeline::CompareAcrossNodes() {
  SlotHeader own = OwnHeader();
  own.presence = Presence::kHere;
  own.verdict = local_mismatch_;
  bool held = false;
  Status status = resources_->exchange.Poll(resources_->share_peers.get(), own, &held,
                                            [this](char* to) { SendWithHeader(to); });
  if (!status.ok()) Fail(status);
  if (!held) return false;

  bool mismatch = local_mismatch_, asked = false;
  for (const SlotHeader& node : resources_->exchange.headers()) {
    if (node.presence == Presence::kGone) Fail(GoneElsewhere(node.root, request_->Title()));
    bool joined = node.presence == Presence::kJoined;
    asked |= node.presence == Presence::kFollows;
    mismatch |= joined ? !ServedByJoinedNodes(*request_)
                       : node.signature != signature_ || node.verdict != 0;
  }
  if (!status_.ok()) return false;

  if (asked) {
    // That node knows the operation now; all nodes compare in another exchange.
    resources_->exchange.Close();
    return false;
  }
  resources_->exchange.Use();
  if (!mismatch) return true;
  shm_->header(shm_->rank(), resources_->index, base_).verdict = 1;
  Publish(&shm_->channel_cell(shm_->rank(), resources_->index).combined, base_ + 1);
  state_ = State::kMismatchPost;
  return false;
}

bool Pipeline::AnyVerdict() const {
  for (int p = 0; p < shm_->size(); ++p) {
    if (shm_->header(p, resources_->index, base_).verdict != 0) return true;
  }
  return false;
}

bool Pipeline::AdvanceMismatch() {
  return topo_.num_nodes > 1 ? MismatchAcrossNodes() : MismatchInNode();
}

bool Pipeline::MismatchInNode() {
  ChannelCell& self = shm_->channel_cell(shm_->rank(), resources_->index);
  uint64_t report = resources_->mismatches + 1;
  if (state_ == State::kMismatchPost) {
    // Peers may still be reading the text of the previous report.
    if (!AllReached<&ChannelCell::detail_read>(report - 1)) return false;
    char* detail = shm_->cell(shm_->rank()).detail[resources_->index];
    std::strncpy(detail, request_->Describe().c_str(), kDetailBytes - 1);
    shm_->cell(shm_->rank()).mismatches[resources_->index] = OwnReport();
    Publish(&self.detail_posted, report);
    state_ = State::kMismatchRead;
    return true;
  }

  if (!AllReached<&ChannelCell::detail_posted>(report)) return false;
  std::vector<int> ranks;
  std::vector<std::string> texts;
  std::vector<MismatchReport> reports;
  for (int p = 0; p < shm_->size(); ++p) {
    reports.push_back(shm_->cell(p).mismatches[resources_->index]);
    ranks.push_back(topo_.JobRank(p));
    texts.emplace_back(shm_->cell(p).detail[resources_->index]);
  }
  resources_->mismatches = report;
  self.detail_read.store(report, std::memory_order_release);
  Resume(reports, ranks, texts);
  return true;
}

bool Pipeline::MismatchAcrossNodes() {
  Status status;
  if (state_ == State::kMismatchPost) {
    texts_ = resources_->all_ranks->Memory(kCrossNodeDetailBytes * (topo_.size + 1));
    char* own = texts_ + kCrossNodeDetailBytes * topo_.size;
    std::memset(own, 0, kCrossNodeDetailBytes);
    MismatchReport report = OwnReport();
    std::memcpy(own, &report, sizeof report);
    std::strncpy(own + sizeof report, request_->Describe().c_str(),
                 kCrossNodeDetailBytes - sizeof report - 1);
    status = resources_->all_ranks->StartAllgather(own, kCrossNodeDetailBytes, texts_);
    state_ = State::kMismatchRead;
  }
  bool done = false;
  if (status.ok()) status = resources_->all_ranks->Test(&done);
  if (!status.ok()) {
    Fail(status);
    state_ = State::kDone;
    return true;
  }
  if (!done) return false;
  std::vector<std::string> texts;
  std::vector<MismatchReport> reports(topo_.size);
  for (int r = 0; r < topo_.size; ++r) {
    const char* detail = texts_ + kCrossNodeDetailBytes * r;
    std::memcpy(&reports[r], detail, sizeof reports[r]);
    texts.emplace_back(detail + sizeof reports[r]);
  }
  Resume(reports, topo_.job_ranks, texts);
  return true;
}

MismatchReport Pipeline::OwnReport() const {
  return {request_->Key(), resources_->threads, resources_->waited};
}

// Ends the mismatched operation and leaves the channel usable, in the same state on every rank.
void Pipeline::Resume(const std::vector<MismatchReport>& reports, const std::vector<int>& ranks,
                      const std::vector<std::string>& texts) {
  bool threads = false, waited = false, other_names = false;
  for (const MismatchReport& report : reports) {
    threads |= report.threads;
    waited |= report.waited;
    other_names |= report.key != reports[0].key;
  }
  resources_->threads |= threads;
  bool again = other_names && (threads || !waited);
  Fail({again ? Code::kOutOfTurn : Code::kMismatch, ExplainMismatch(ranks, texts)});

  uint64_t next = base_ + kSlots;
  ChannelCell& self = shm_->channel_cell(shm_->rank(), resources_->index);
  self.staged.store(next, std::memory_order_release);
  self.combined.store(next, std::memory_order_release);
  Publish(&self.unpacked, next);
  resources_->next_chunk = next;
  resources_->exchange.Close();
  state_ = State::kDone;
}

// The ranks whose report has not arrived. Those of other nodes arrive all at once.
std::vector<int> Pipeline::MissingInMismatch() const {
  std::vector<int> missing;
  for (int node = 0; node < topo_.num_nodes; ++node) {
    for (int r : topo_.nodes[node]) {
      if (node != topo_.node) missing.push_back(topo_.job_ranks[r]);
    }
  }
  for (int p = 0; p < shm_->size() && topo_.num_nodes == 1; ++p) {
    const ChannelCell& peer = shm_->channel_cell(p, resources_->index);
    bool late = state_ == State::kMismatchPost
                    ? peer.detail_read.load() < resources_->mismatches
                    : peer.detail_posted.load() <= resources_->mismatches;
    if (late && p != shm_->rank()) missing.push_back(topo_.JobRank(p));
  }
  return missing;
}

// Of the peers that have not reached a step for which this rank waits, those that could, or never
// will: the others wait for these too.
std::vector<int> Pipeline::Missing() const {
  if (state_ == State::kMismatchPost || state_ == State::kMismatchRead) return MissingInMismatch();
  const bool awaits_combined = !one_hop_ && unpacked_ < num_chunks_;
  const bool awaits_slot = staged_ < num_chunks_ && base_ + staged_ + 1 > kSlots;
  const uint64_t freed = awaits_slot ? base_ + staged_ + 1 - kSlots : 0;
  const bool can_combine = awaits_combined && StagedByAll(unpacked_);
  const bool can_free = awaits_slot && AllReached<&ChannelCell::staged>(freed) &&
                        (one_hop_ || AllReached<&ChannelCell::combined>(freed));
  std::vector<int> missing;
  for (int p = 0; p < shm_->size(); ++p) {
    if (p == shm_->rank()) continue;
    const ChannelCell& peer = shm_->channel_cell(p, resources_->index);
    const bool never = shm_->Peer(p) != PeerState::kAlive;
    bool late = false;
    if (combined_ < num_chunks_) late = peer.staged.load() <= base_ + combined_;
    if (awaits_combined && (can_combine || never)) {
      late |= peer.combined.load() <= base_ + unpacked_;
    }
    if (awaits_slot && (can_free || never)) late |= peer.unpacked.load() < freed;
    if (lends_ && unpacked_ == num_chunks_) late |= peer.unpacked.load() < base_ + num_chunks_;
    // All have staged their addresses, but one cannot be read: that process is gone.
    late |= lends_ && combined_ < num_chunks_ && StagedByAll(combined_);
    if (late) missing.push_back(topo_.JobRank(p));
  }
  return missing.empty() ? MissingOnOtherNodes() : missing;
}

// The owners of the same share for which this one waits: those whose headers have not come, and
// then those that an exchange under way is with.
std::vector<int> Pipeline::MissingOnOtherNodes() const {
  std::vector<int> missing;
  bool owner = topo_.num_nodes > 1 && shm_->rank() < topo_.owners;
  if (!owner || combined_ == num_chunks_ || !StagedByAll(combined_)) return missing;
  for (int node = 0; node < topo_.num_nodes; ++node) {
    bool late = verified_ ? AwaitsNode(node) : !resources_->exchange.Came(node);
    if (late && node != topo_.node) {
      missing.push_back(topo_.job_ranks[topo_.nodes[node][shm_->rank()]]);
    }
  }
  return missing;
}

bool Pipeline::MayWaitForOtherNodes() const {
  if (topo_.num_nodes == 1) return false;
  for (int p = 0; p < shm_->size() && state_ == State::kRunning; ++p) {
    // A rank stages as soon as it calls: one that has not is late itself.
    if (shm_->channel_cell(p, resources_->index).staged.load() <= base_) return false;
  }
  return true;
}

// ---- writing into slots through the cache or past it, and which is faster (staging.h)
// ------------

int Pipeline::StagingKind() const {
  // Nobody reads the slots of a node's only rank; a joined rank that stands by writes nothing.
  bool stands_by = request_->has_joined() && request_->tensors.empty();
  if (shm_->size() == 1 || stands_by) return -1;
  size_t bytes = request_->reduces() ? request_->bytes() : request_->moved_bytes();
  return StorePolicy::KindOf(bytes, num_chunks_, one_hop_);
}

void Pipeline::Write(size_t i, char* slot, const void* from, size_t bytes) {
  bytes_ += bytes;
  if (Streams(i)) {
    StreamBytes(slot, from, bytes);
  } else {
    std::memcpy(slot, from, bytes);
  }
}

Writing Pipeline::WrittenBy(int local_rank, size_t i) const {
  const ChannelCell& cell = shm_->channel_cell(local_rank, resources_->index);
  return Writing::Decode(cell.written[(base_ + i) % kSlots].load(std::memory_order_relaxed));
}

bool Pipeline::Streams(size_t i) const { return WrittenBy(shm_->rank(), i).streaming; }

void Pipeline::ChooseStaging() {
  // With n ranks, of n bytes that a rank writes, all others together read 2 (n - 1) in an
  // allreduce.
  float reads = 2.0f / static_cast<float>(shm_->size()), costs[kWritings] = {};
  for (int p = 0; p < shm_->size(); ++p) {
    if (p == shm_->rank()) continue;
    const auto& report = shm_->pull_report(p, resources_->index, shm_->rank()).cost[kind_];
    float cached = report[0].load(std::memory_order_relaxed);
    float streaming = report[1].load(std::memory_order_relaxed);
    if (cached == 0 || streaming == 0) continue;
    costs[0] += reads * cached;
    costs[1] += reads * streaming;
  }
  resources_->staging_choice.Choose(kind_, costs);
}

void Pipeline::StageTimed(size_t i) {
  StorePolicy& choice = resources_->staging_choice;
  ChannelCell& self = shm_->channel_cell(shm_->rank(), resources_->index);
  auto& written = self.written[(base_ + i) % kSlots];
  Writing writing = choice.Next(kind_);
  written.store(writing.Encode(), std::memory_order_relaxed);
  bool timed = choice.TimesWrite(kind_);
  double start = timed ? NowSeconds() : 0;
  bytes_ = 0;
  Stage(i);
  if (writing.streaming) StreamFence();
  if (timed) choice.Wrote(kind_, writing, bytes_, NowSeconds() - start);
  // From a broadcast's receivers, say, nobody reads.
  if (one_hop_ && bytes_ == 0) written.store(Writing().Encode(), std::memory_order_relaxed);
}

// A one-hop operation reads from all peers at once, so its time tells something only if all that
// wrote did so in the same way.
bool Pipeline::CombineTimed(size_t i) {
  bool timed = one_hop_ && resources_->staging_choice.TimesReads(kind_);
  Writing writing;
  bool alike = true;
  for (int p = 0; p < shm_->size() && one_hop_ && kind_ >= 0; ++p) {
    Writing one = WrittenBy(p, i);
    if (p == shm_->rank() || !one.chosen) continue;
    alike &= !writing.chosen || writing.Encode() == one.Encode();
    writing = one;
  }
  timed = writing.chosen && alike && (timed || writing.probe);
  if (!timed) return Combine(i);
  bytes_ = 0;
  double start = NowSeconds();
  if (!Combine(i)) return false;
  double seconds = NowSeconds() - start;
  for (int p = 0; p < shm_->size(); ++p) {
    if (p == shm_->rank()) continue;
    PullReport& report = shm_->pull_report(shm_->rank(), resources_->index, p);
    AddCost(&report.cost[kind_][writing.streaming], bytes_, seconds, writing.probe);
  }
  return true;
}

void Pipeline::UnpackTimed(size_t i, int owner, bool timed) {
  Writing writing = WrittenBy(owner, i);
  if (!timed && (!writing.probe || kind_ < 0)) {
    Unpack(i, owner);
    return;
  }
  bytes_ = 0;
  double start = NowSeconds();
  Unpack(i, owner);
  PullReport& report = shm_->pull_report(shm_->rank(), resources_->index, owner);
  AddCost(&report.cost[kind_][writing.streaming], bytes_, NowSeconds() - start, writing.probe);
}

}  // namespace smddp
