// Vote: an allreduce of one integer by the host's algorithms, 1 from each rank that can let its
// device run the collective that Request::subject is. It carries that request's signature, so it
// also finds mismatches; and the sum is that of all ranks only if all can, and none has joined.
//
// The result arrives when it is the turn of this collective (LaunchTurn): the first rank of the set
// finishes the vote, and does so only then. By that time all ranks have voted, so whoever has the
// turn waits for nobody who is still to come.
#pragma once

#include "collective/host/allreduce.h"

namespace smddp {

template <typename Base>
class Vote : public Base {
 public:
  using Base::Base;

 protected:
  bool Combine(size_t i) override { return HasTurn() && Base::Combine(i); }

 private:
  bool HasTurn() const {
    bool counts = this->topo_.rank == 0 && !this->request_->has_joined();
    if (!counts || this->resources_->turn == nullptr) return true;
    ShmGroup* shm = this->shm_;
    return this->resources_->turn->Take(this->resources_, [shm] { shm->RingSelf(); });
  }
};

using VoteInNode = Vote<ShmAllreduce>;
using VoteAcrossNodes = Vote<HierarchicalAllreduce>;

}  // namespace smddp
