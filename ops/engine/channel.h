// Channel: an ordered stream of collectives over one set of ranks.
//
// Operations run in the order in which they were enqueued, one at a time; the same on every rank.
// Where a rank cannot know that order (TF1 sessions, several threads) it follows the first rank of
// its set, which runs them as they come: the header of that rank's first chunk has the key of the
// operation's name, and the others run theirs of that name next. Between nodes, the first rank of a
// node asks for the key in a header exchange (collective/header_exchange.h) before it begins. A
// rank that did not know that it has to follow learns it from a mismatch of names
// (Code::kOutOfTurn), and runs the operation again. If no rank knows of threads, it does so for
// kTurnSeconds only: then the ranks disagree. Whoever has time calls Pump(); the channel never
// makes a thread wait, except for its own lock when somebody else is pumping.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collective/collective.h"
#include "collective/selector.h"
#include "engine/trace/flight_recorder.h"
#include "engine/trace/timeline.h"

namespace smddp {

struct Operation {
  Request request;
  std::function<void(const Status&)> done;  // called exactly once, with no lock held
  // Operations that share a run_outcome: once one has failed, the later ones fail without any
  // exchange, on every rank alike. Read and written by the channel.
  std::shared_ptr<Status> run_outcome;

  // Whether the step stands still meanwhile: explicit collectives, and the last bucket of a
  // plan, which comes when the backward pass is over.
  bool awaited = true;
  double ready = 0;    // when it was enqueued
  double started = 0;  // when its turn came
  uint64_t sequence = 0;

  std::vector<char> memory;  // of the request's tensors, if they are nobody else's

  std::unique_ptr<Collective> collective;  // once its turn has come
  uint64_t record = 0;                     // in the flight recorder
  double waited = 0;                       // seconds, counted by the monitor
  bool warned = false;
};

struct ChannelStats {
  uint64_t operations = 0;
  uint64_t bytes = 0;
  double awaited_seconds = 0;  // from ready to done, of operations for which the step stood still
};

// What a rank that has joined learns from a channel.
struct JoinedChannel {
  uint64_t run = 0;   // the plan run of the operation that was enqueued, if it has one
  bool over = false;  // an owner's: the ranks of all nodes have joined
  int last = -1;      // then the last of them
  Status failure;     // the other nodes cannot be asked
};

class Channel {
 public:
  // `in_plan_order`: who enqueues has put the operations into order (engine/plan_runs.h), so that
  // several at once say nothing of threads. `broken`: told of the first failure other than a
  // mismatch of an operation of this rank, with no lock held. The ranks are out of step then: every
  // later operation fails with the same sentence.
  Channel(ChannelResources resources, const Selector* selector, FlightRecorder* recorder,
          Timeline* timeline, int track, bool in_plan_order,
          std::function<void(const Status&)> broken);

  // Never calls `done`; the caller pumps afterwards.
  void Enqueue(std::unique_ptr<Operation> operation);
  // Advances what can be advanced now. True if anything moved.
  bool Pump();
  bool Idle() const;
  // Unless OK, Pump() completes whatever there is with this.
  Status Failure() const;
  // Whether operations are matched by name, so that they have no order to those of other channels.
  bool MatchesByName() const;
  // For a rank that has joined, and waits until there are `tickets` (ShmGroup::TakeJoinTicket): if
  // others have begun an operation, enqueues our part in it and returns true.
  bool EnqueueJoined(uint64_t tickets, JoinedChannel* joined);
  // Completes every operation, now and from now on, with `failure`.
  void Fail(const Status& failure);
  // After Fail: whether the other nodes know that this rank takes part no more. Called until true.
  bool AnnounceDeparture();
  // After Fail, on all ranks in the same order: gives up the groups between nodes.
  void Disconnect();

  // For the monitor: adds `seconds` to the waiting time of the operation at the front and, if
  // there is one, calls look(operation, missing job ranks).
  void Inspect(double seconds,
               const std::function<void(Operation*, const std::vector<int>&)>& look);
  ChannelStats Stats() const;

 private:
  using Finished = std::vector<std::pair<std::unique_ptr<Operation>, Status>>;
  bool AdvanceFront(Finished* finished);
  // For who follows: whether the next operation is known and here; it is then at the front.
  bool FindTurn(Status* failure);
  bool WaitedForTurn();
  bool NextKey(uint64_t* key, Status* failure);
  bool AskFirstNode(uint64_t* key, Status* failure);
  void Activate(Operation* operation);
  Status Finish(Operation* operation);
  void Trace(const Operation& operation, bool failed, double now) const;
  void Complete(Finished* finished) const;
  uint32_t JoinRound(uint64_t tickets) const;
  bool FindBegun(uint64_t tickets, JoinedChannel* joined, SlotHeader* begun);

  ChannelResources resources_;
  const Selector* selector_;
  FlightRecorder* recorder_;
  Timeline* timeline_;
  int track_;  // in the timeline
  bool in_plan_order_;
  bool follows_ = false;
  double turn_awaited_ = 0;  // since when, in seconds; 0: no turn is awaited
  bool key_known_ = false;   // from the first node
  uint64_t known_key_ = 0;
  const std::function<void(const Status&)> broken_;
  uint64_t sequence_ = 0;
  double last_done_ = 0;
  mutable std::mutex mutex_;
  std::deque<std::unique_ptr<Operation>> queue_;
  Status failure_;
  ChannelStats stats_;
};

}  // namespace smddp
