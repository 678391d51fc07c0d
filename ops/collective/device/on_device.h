// OnDevice: a collective that the devices run themselves, in their own memory (DeviceGroup).
//
//   vote       the ranks match the request on the host, and find out whether all of them can
//   connect    at the first request of a set: the ranks introduce themselves, connect, and vote
//              again on whether all have
//   run        enqueued behind the work that computes the inputs; the host does not wait for that,
//              and the channel goes on to the next operation
//
// If some rank cannot, or has joined, all ranks let HostCopy take the request, or fail where a
// device group is required. The decisions are the same on all ranks, for each follows from a vote,
// or from the request alone.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collective/collective.h"
#include "collective/device/host_copy.h"
#include "collective/device/pending_work.h"
#include "transport/device_group.h"

namespace smddp {

class OnDevice : public Collective {
 public:
  // Why the request is not for a device group, on any rank; "" if it is.
  static std::string Cannot(const ChannelResources& resources, const Request& request);

  OnDevice(ChannelResources* resources, const Request* request, HostCopy::MakeHost make_host);
  ~OnDevice() override;

  Progress Advance() override;
  const Status& status() const override { return status_; }
  double met_at() const override { return met_at_; }
  std::vector<int> Missing() const override;
  bool MayWaitForOtherNodes() const override;
  bool InBackground() const override { return step_ == Step::kRun; }
  void Abort() override;

 private:
  enum class Step { kVote, kPrepare, kIntroduce, kConnect, kConfirm, kRun, kStaged, kDone };

  // These return whether there was progress.
  bool Poll();
  bool Prepare();
  bool Begin();
  void StartVote(bool yes, const Request* subject);
  void SetHostRequest(Kind kind, DType dtype);
  bool All() const;
  void CountVotes();
  void StartIntroduction();
  void MeetAll();
  void Confirm();
  DeviceCollective Wanted() const;
  void StartCollective();
  void PassTurn();
  void GiveUp(const std::string& why);
  void Stage();
  bool Conclude(const Status& status);

  ChannelResources* resources_;
  const Request* request_;
  HostCopy::MakeHost make_host_;
  Step step_ = Step::kVote;
  Request host_request_;  // of the step's collective on the host
  std::unique_ptr<Collective> host_;
  int64_t votes_ = 0;   // of all ranks, see vote.h; before, this rank's
  int64_t number_ = 0;  // of the collective, in the order in which all ranks start them
  DeviceIntroduction own_{};
  std::vector<DeviceIntroduction> all_;
  std::string refusal_;                    // why this rank cannot take part
  std::shared_ptr<PendingWork> computed_;  // the inputs, by whatever the device did before
  std::shared_ptr<PendingWork> work_;      // of the group; null between its steps
  double met_at_ = 0;
  Status status_;
};

}  // namespace smddp
