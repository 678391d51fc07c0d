// Channel: an ordered stream of collectives over one process set.
//
// Operations run one at a time, in the order in which they were enqueued, which must be the same on
// every rank. One that goes on in the background (Collective::InBackground: the devices run it)
// lets the next one begin. Several may be enqueued at once if the caller says that they are in
// program order (Matching::kSeveralInOrder). Where no such order exists (TF1 sessions, several
// threads), ranks match operations by name: the first rank of the set runs them as they arrive, and
// the header of its first chunk carries the key (a hash of the name) of the operation that the
// others run next. Between nodes, the first rank of each node gets the key in a header exchange
// (collective/header_exchange.h) beforehand. Who has joined leads no longer: the next rank that has
// not begins an operation, the first one copies it, and the others follow that copy. Once all ranks
// of the first node have joined, the next node leads.
//
// A rank that did not know that it has to follow finds out by a mismatch of names
// (Code::kOutOfTurn) and runs the operation again. If no rank is known to use threads, it waits for
// the named operation for kTurnSeconds only, after which the mismatch is an error.
//
// Any thread may call Pump(); the channel never blocks one. Nor does Enqueue(), while another
// thread pumps: operations wait in an inbox of their own, from which the thread that pumps takes
// them.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
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
  // Shared by the operations of a plan run: once one has failed, the later ones fail without
  // communicating, in the same way on every rank. Read and written by the channel.
  std::shared_ptr<Status> run_outcome;

  // Whether the training step is blocked on it: true of explicit collectives, and of the last
  // bucket of a plan, which arrives when the backward pass is over.
  bool awaited = true;
  bool any_will_do = false;  // whether one of the missing ranks is enough
  double ready = 0;          // when it was enqueued
  double started = 0;        // when its turn came
  uint64_t sequence = 0;

  std::vector<char> memory;  // owns the request's tensors where no caller does

  std::unique_ptr<Collective> collective;  // created when its turn comes
  uint64_t record = 0;                     // its number in the flight recorder
  uint64_t steps = 0;                      // how often it has made progress
  // For the monitor: seconds since it saw any, here or of a peer, and all it had seen by then.
  double waited = 0;
  uint64_t seen = 0;
  bool warned = false;
};

struct ChannelStats {
  uint64_t operations = 0;
  uint64_t bytes = 0;
  double awaited_seconds = 0;  // from ready to done, summed over awaited operations
};

// Completes operations that have failed. To be called once every channel and plan of this rank is
// marked as failed: a callback, or the thread that it wakes, may start the next operation at once.
using Endings = std::vector<std::function<void()>>;

// Marks every channel and plan of this rank as failed. Any thread that is about to complete an
// operation with a failure calls it; `first`: the failure is new, so the other ranks are told.
using Broken = std::function<void(const Status& failure, bool first)>;

// The state of a channel as a joined rank sees it.
struct JoinedChannel {
  uint64_t run = 0;   // the plan run of the enqueued operation; 0: not a bucket
  bool over = false;  // on an owner: all ranks of all nodes have joined
  int last = -1;      // if `over`: the last rank to join
  Status failure;     // why the exchange with the other nodes failed
};

class Channel {
 public:
  // `in_plan_order`: the caller enqueues operations in plan order (engine/bucket_scheduler.h), so
  // several operations in the queue do not imply several threads. `broken`: called, with no lock
  // held, before an operation is completed with a failure that is not a mismatch; `first` once
  // only, for the operation that failed. The ranks are then out of step, and every later operation
  // fails with the same message.
  Channel(ChannelResources resources, const Selector* selector, FlightRecorder* recorder,
          Timeline* timeline, int track, bool in_plan_order, Broken broken);

  // Never calls `done`; the caller must call Pump() afterwards.
  void Enqueue(std::unique_ptr<Operation> operation);
  // Makes all progress that is possible without blocking. Returns true if there was any. *busy, if
  // given, says whether another thread holds the channel, so that there could be none.
  bool Pump(bool* busy = nullptr);
  // Whether there are no operations. Does not wait for a thread that pumps.
  bool Idle() const { return pending_.load(std::memory_order_acquire) == 0; }
  // For the monitor: as much as can be seen if nobody holds the channel for some 20 ms.
  struct Glance {
    bool seen = false, idle = false, by_name = false;
  };
  Glance Look() const;
  // Whether operations are matched by name and it is the turn of one that is not enqueued here: of
  // the one with this key, or of any if there is no key. As of the last Pump().
  bool Awaits(std::optional<uint64_t> key) const {
    uint64_t absent = absent_key_.load(std::memory_order_relaxed);
    return absent != 0 && (!key || absent == *key);
  }
  // Whether Pump() completes every operation with Failure(). Does not wait for a thread that pumps.
  bool IsBroken() const { return broken_now_.load(std::memory_order_acquire); }
  Status Failure() const;
  // For a joined rank, in the join round that ends at `tickets` (ShmGroup::TakeJoinTicket): if
  // peers have begun an operation, enqueues this rank's part in it and returns true.
  bool EnqueueJoined(uint64_t tickets, JoinedChannel* joined);
  // Fails every operation, pending or future; `endings` completes those that are pending.
  void Fail(const Status& failure, Endings* endings);
  // After Fail: announces to the other nodes that this rank has left. To be called until it returns
  // true.
  bool AnnounceDeparture();
  // After Fail, on all ranks in the same order: releases the groups between nodes.
  void Disconnect();

  // For the monitor: adds `seconds` to the waiting time of the operation at the front, if any, or
  // ends that if there was progress, and calls look(operation, missing job ranks). False if another
  // thread, at work on it or stuck inside MPI, did not let go of the channel within some 20 ms.
  bool Inspect(double seconds,
               const std::function<void(Operation*, const std::vector<int>&)>& look);
  ChannelStats Stats() const;

 private:
  using Finished = std::vector<std::pair<std::unique_ptr<Operation>, Status>>;
  using Queue = std::list<std::unique_ptr<Operation>>;  // to move one takes no memory
  bool PumpOnce(bool* busy);
  // To be called with the lock: appends what is in the inbox to the queue.
  void TakeIn();
  void ChooseMatching(const Operation& operation);
  // Moves the first operation of a queue to those that have ended.
  void Move(Queue* queue, const Status& outcome, Finished* finished);
  void RemoveFirst(Queue* queue);
  void SetFailure(Status failure);
  // These return whether there was progress.
  bool AdvanceBackground(Finished* finished);
  bool AdvanceFront(Finished* finished);
  bool MoveToBackground();
  void FailPending(Finished* finished);
  // For ranks that follow: moves the operation whose turn it is to the front; false if it is not
  // yet known or has not arrived.
  bool FindTurn(Status* failure);
  // Whether another operation of the same name is pending.
  bool HasOneLike(const Operation& operation) const;
  bool WaitedForTurn();
  bool NextKey(uint64_t* key, Status* failure);
  bool AskLeadingNode(uint64_t* key, Status* failure);
  bool LeadingNode(uint32_t round, SlotHeader* leader);
  bool Leads() const;
  bool NodeLeads() const;
  bool HasBegun(int p) const;
  bool IsAsked() const;
  int Leader() const;
  void Activate(Operation* operation);
  void EndTurn(double now);
  Status Finish(Operation* operation, double now);
  void BreakIn(const Operation& operation, Status* status);
  void Trace(const Operation& operation, bool failed, double now) const;
  void Complete(Finished* finished) const;
  void CountWait(double seconds, uint64_t progress, Operation* operation) const;
  uint32_t JoinRound(uint64_t tickets) const;
  bool FindBegun(uint64_t tickets, JoinedChannel* joined, SlotHeader* begun);

  ChannelResources resources_;
  const Selector* selector_;
  FlightRecorder* recorder_;
  Timeline* timeline_;
  int track_;  // of the timeline
  bool in_plan_order_;
  bool follows_ = false;
  double turn_awaited_ = 0;  // since when, in seconds; 0: not waiting for a turn
  bool key_known_ = false;   // whether the leading node has sent known_key_
  uint64_t known_key_ = 0;
  size_t leading_node_ = 0;  // in the last exchange in which this node asked
  const Broken broken_;
  uint64_t sequence_ = 0;
  double turn_ended_ = 0;   // that of the last operation, in seconds
  std::mutex inbox_mutex_;  // held for moments only, and last
  Queue inbox_;
  std::atomic<bool> has_mail_{false};
  std::atomic<int> pending_{0};  // operations in the inbox, the queue and the background
  std::atomic<bool> broken_now_{false};
  // Of the operation whose turn it is, if it has not arrived; 0: it has.
  std::atomic<uint64_t> absent_key_{0};
  mutable std::mutex mutex_;
  Queue queue_;
  Queue background_;  // begun before the front of the queue; they end in this order
  Status ambiguous_;  // not OK: two pending operations had one name
  Status failure_;
  ChannelStats stats_;
};

}  // namespace smddp
