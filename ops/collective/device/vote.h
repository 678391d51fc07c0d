// Vote: an allreduce of two integers by the host's algorithms. The first is 1 from each rank that
// can let its device run the collective that Request::subject is. It carries that request's
// signature, so it also finds mismatches; and the sum is that of all ranks only if all can, and
// none has joined. The second is 1 from each rank that knows of sets that are apart (LaunchTurn).
//
// The first rank of the set finishes the vote. By that time all ranks have voted, so nobody waits
// afterwards for a rank which is still to come. It adds a number to the sum, which tells all ranks
// in which order they start the collectives of both channels (LaunchOrder). If it does not know of
// sets that are apart, it finishes only when its process's groups are to begin collectives of this
// set (LaunchTurn).
#pragma once

#include <cstdint>

#include "collective/host/allreduce.h"

namespace smddp {

// The first integer: the votes in its low bits, the number above them; 0 if the first rank has
// joined.
inline constexpr int kVoteBits = 20;
inline int64_t VotesOf(int64_t sum) { return sum & ((int64_t{1} << kVoteBits) - 1); }
inline int64_t LaunchNumberOf(int64_t sum) { return sum >> kVoteBits; }

template <typename Base>
class Vote : public Base {
 public:
  using Base::Base;

 protected:
  bool Combine(size_t i) override { return TakeTurn() && Base::Combine(i); }
  // A rank that has joined starts nothing, but goes on with the others afterwards.
  bool Conclude(bool* moved) override {
    DeviceGroup* group = this->resources_->devices;
    if (this->request_->has_joined() && group != nullptr) {
      group->order()->Pass(LaunchNumberOf(*Sum()));
      this->shm_->RingSelf();
    }
    return Base::Conclude(moved);
  }

 private:
  // Of this rank before, of all afterwards. The first rank reduces them, from its own tensor: both
  // lie in one cache line, which has one owner.
  int64_t* Sum() const { return static_cast<int64_t*>(this->request_->tensors[0].out); }

  bool TakeTurn() {
    const Request* subject = this->request_->subject;
    if (has_turn_ || subject == nullptr || this->topo_.rank != 0) return true;
    DeviceGroup* group = this->resources_->devices;
    ShmGroup* shm = this->shm_;
    bool apart = Sum()[1] != 0;
    has_turn_ = apart || this->resources_->turn->Take(group, subject, [shm] { shm->RingSelf(); });
    if (has_turn_) *Sum() += group->order()->Give() << kVoteBits;
    return has_turn_;
  }

  bool has_turn_ = false;
};

using VoteInNode = Vote<ShmAllreduce>;
using VoteAcrossNodes = Vote<HierarchicalAllreduce>;

}  // namespace smddp
