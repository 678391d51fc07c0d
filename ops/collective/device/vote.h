// Vote: an allreduce of one integer by the host's algorithms: 1 from each rank that can let its
// device run the collective that Request::subject is. It carries that request's signature, so it
// also finds mismatches; and the sum is that of all ranks only if all can, and none has joined.
//
// The first rank finishes the vote. By that time all ranks have voted, so nobody waits afterwards
// for a rank which is still to come. It adds a number to the sum, which tells all ranks in which
// order they start the collectives of both channels (KernelOrder).
#pragma once

#include <cstdint>

#include "collective/host/allreduce.h"

namespace smddp {

// The votes are in the low bits, the number above them; 0 if the first rank has joined.
inline constexpr int kVoteBits = 20;
inline int64_t VotesOf(int64_t sum) { return sum & ((int64_t{1} << kVoteBits) - 1); }
inline int64_t LaunchNumberOf(int64_t sum) { return sum >> kVoteBits; }

template <typename Base>
class Vote : public Base {
 public:
  using Base::Base;

 protected:
  bool Combine(size_t i) override {
    GiveNumber();
    return Base::Combine(i);
  }
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
  // Of this rank before, of all afterwards. The first rank reduces it, from its own tensor.
  int64_t* Sum() const { return static_cast<int64_t*>(this->request_->tensors[0].out); }

  // Combine() is called until it has combined.
  void GiveNumber() {
    if (numbered_ || this->request_->subject == nullptr || this->topo_.rank != 0) return;
    numbered_ = true;
    *Sum() += this->resources_->devices->order()->Give() << kVoteBits;
  }

  bool numbered_ = false;
};

using VoteInNode = Vote<ShmAllreduce>;
using VoteAcrossNodes = Vote<HierarchicalAllreduce>;

}  // namespace smddp
