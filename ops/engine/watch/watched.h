// What the monitor watches: the operations of this rank in every process set. The communicator is
// the one of a job.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/status.h"
#include "engine/trace/timeline.h"

namespace smddp {

struct Operation;

class Watched {
 public:
  virtual ~Watched() = default;

  // Calls look(operation, missing job ranks) for each operation that waits for peers.
  virtual void InspectAll(double seconds,
                          const std::function<void(Operation*, const std::vector<int>&)>& look) = 0;
  // Calls look(what is missing, for how long) for each step whose buckets have not all come.
  virtual void InspectPlans(
      double seconds,
      const std::function<void(const std::string& waiting, double waited)>& look) = 0;
  // An error if ranks of this node wait for each other in different channels.
  virtual Status InspectCycles(double seconds) = 0;
  // Everything pending and to come fails with this, or with what it failed with before.
  virtual void FailAll(const Status& failure) = 0;

  virtual Timeline* timeline() = 0;
  virtual std::string FlightRecord() const = 0;
};

}  // namespace smddp
