// BetweenNodes: an allreduce of tensors on devices, whose groups are one in each node.
//
//   reduce     the node's devices reduce-scatter: each rank's host memory gets its slice of the sum
//   exchange   the host's groups allreduce each slice among its owners, one in each node
//   gather     the slices go back to the devices, which gather them
//
// A large payload takes these steps piece by piece, as in a pipeline: while one is exchanged, the
// devices gather those before and reduce those behind. All ranks of a node submit to their devices
// in one order: whenever a piece has been exchanged, it is gathered, and then the next one reduced
// whose place in the device's memory that leaves free.
//
// With B bytes on k ranks in each of m nodes, a rank moves 2 (k - 1) / k B between devices, B / k
// over PCIe each way, and 2 (m - 1) / m B / k over the network.
//
// The ranks have matched the request before, and run nothing else on their devices meanwhile.
#pragma once

#include <deque>
#include <memory>
#include <string>
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
  bool Collect();
  void Submit(DeviceCollective::Part part, size_t piece);
  void SubmitNext();
  void StartExchange();
  bool Conclude(const Status& status);
  char* SliceOf(size_t piece) const;

  ChannelResources* resources_;
  const Request* request_;
  DeviceCollective collective_;
  DeviceSlices slices_;
  size_t slice_bytes_ = 0;        // of the largest one
  std::shared_ptr<char> memory_;  // of as many slices as are under way at a time
  Request host_request_;          // of the exchange
  std::unique_ptr<Collective> exchange_;
  std::shared_ptr<PendingWork> computed_;           // the inputs
  std::deque<std::shared_ptr<PendingWork>> works_;  // of the device, which ends them in this order
  std::deque<DeviceCollective::Part> parts_;        // what they are
  // Pieces: of those whose reduction was submitted, has ended, and that have been exchanged.
  size_t submitted_ = 0, reduced_ = 0, exchanged_ = 0;
  bool done_ = false;
  Status status_;
};

}  // namespace smddp
