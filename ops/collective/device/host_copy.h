// HostCopy: a collective on tensors in the memory of a device, run by a host algorithm on copies in
// host memory.
//
//   copy in    the inputs to the host, once the device has computed them
//   run        the algorithm that the selector chooses for host memory
//   copy out   the outputs to the device; the tensors are complete when the collective is done
//
// The ranks are matched by the host algorithm, so a rank is late as long as its device is. Nothing
// is copied out after a mismatch: the tensors keep their values.
#pragma once

#include <functional>
#include <memory>
#include <utility>  // for pair
#include <vector>

#include "collective/collective.h"
#include "collective/device/pending_work.h"
#include "core/device.h"

namespace smddp {

class HostCopy : public Collective {
 public:
  // Makes the host algorithm for a request on host memory.
  using MakeHost = std::function<std::unique_ptr<Collective>(const Request*)>;

  HostCopy(ChannelResources* resources, const Request* request, MakeHost make_host);
  ~HostCopy() override;

  Progress Advance() override;
  const Status& status() const override { return status_; }
  double met_at() const override { return host_ != nullptr ? host_->met_at() : 0; }
  // This rank itself while its device is copying.
  std::vector<int> Missing() const override;
  bool MayWaitForOtherNodes() const override {
    return copy_ == nullptr && host_ != nullptr && host_->MayWaitForOtherNodes();
  }
  void Abort() override;

 private:
  void LayOut();
  Status Allocate();
  std::vector<DeviceCopy> Inputs() const;
  std::vector<DeviceCopy> Outputs() const;
  Progress Conclude(const Status& status);

  ChannelResources* resources_;
  const Request* request_;  // on the device
  MakeHost make_host_;
  Request staged_;                                  // the same on the host
  std::vector<std::pair<size_t, size_t>> offsets_;  // of each input and output
  size_t bytes_ = 0;                                // of all; 0: not laid out yet
  std::shared_ptr<char> memory_;
  std::shared_ptr<PendingWork> copy_;  // in flight; null between copies
  std::unique_ptr<Collective> host_;
  bool done_ = false;
  Status status_;
};

}  // namespace smddp
