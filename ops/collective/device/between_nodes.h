// BetweenNodes: an allreduce of tensors on devices, whose groups are one in each node.
//
//   reduce     the node's devices reduce-scatter: each rank's host memory gets its slice of the sum
//   exchange   the host's groups allreduce each slice among its owners, one in each node
//   gather     the slices go back to the devices, which gather them
//
// A payload that is larger than a device packs at once takes these steps piece by piece. With B
// bytes on k ranks in each of m nodes, a rank moves 2 (k - 1) / k B between devices, B / k over
// PCIe each way, and 2 (m - 1) / m B / k over the network.
//
// The ranks have matched the request before, and run nothing else on their devices meanwhile.
#pragma once

#include <memory>
#include <vector>

#include "collective/collective.h"
#include "collective/device/pending_work.h"
#include "transport/device_group.h"

namespace smddp {

class BetweenNodes : public Collective {
 public:
  // Why the ranks of these nodes cannot; "" if they can.
  static std::string Cannot(const Topology& topo, const Request& request);

  BetweenNodes(ChannelResources* resources, const Request* request, DeviceCollective collective);
  ~BetweenNodes() override;

  Progress Advance() override;
  const Status& status() const override { return status_; }
  double met_at() const override { return 0; }
  std::vector<int> Missing() const override;
  bool MayWaitForOtherNodes() const override;
  void Abort() override;

 private:
  bool Step();
  void Submit(DeviceCollective::Part part);
  void StartExchange();
  bool Conclude(const Status& status);

  ChannelResources* resources_;
  const Request* request_;
  DeviceCollective collective_;
  DeviceSlices slices_;
  std::shared_ptr<char> memory_;  // of the largest slice
  Request host_request_;          // of the exchange
  std::unique_ptr<Collective> exchange_;
  std::shared_ptr<PendingWork> computed_, work_;  // of the device; null while it has none
  bool done_ = false;
  Status status_;
};

}  // namespace smddp
