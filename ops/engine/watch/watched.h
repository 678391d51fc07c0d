// Watched: the interface through which the monitor sees this rank's operations in every process
// set. The communicator implements it.
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

  // Calls look(operation, missing job ranks) for each operation that waits for peers. False if a
  // channel could not be looked at within some 20 ms, since another thread is at work on it.
  virtual bool InspectAll(double seconds,
                          const std::function<void(Operation*, const std::vector<int>&)>& look) = 0;
  // Calls look(missing bucket, seconds waited) once per process set, with "" if no step is waiting.
  virtual void InspectPlans(
      double seconds,
      const std::function<void(const std::string& waiting, double waited)>& look) = 0;
  // Since when this rank has waited in join(), in seconds of NowSeconds(); 0: it does not.
  virtual double JoiningSince() const { return 0; }
  // Returns an error if ranks of this node are deadlocked across channels.
  virtual Status InspectCycles(double seconds) = 0;
  // Fails all operations, pending or future, with this failure or, if there was one, an earlier
  // one.
  virtual void FailAll(const Status& failure) = 0;

  // Whether the ranks that are left go on in another job after a failure (elastic jobs).
  virtual bool CanGoOn() const { return false; }

  virtual Timeline* timeline() = 0;
  virtual std::string FlightRecord() const = 0;
};

}  // namespace smddp
