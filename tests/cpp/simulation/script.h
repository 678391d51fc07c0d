// What one rank does: the program's items in order, as a training script would.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <vector>

#include "buffers.h"
#include "engine/communicator.h"
#include "job.h"

namespace smddp_sim {

// One operation that was begun.
struct Begun {
  Begun(Buffers&& b, std::string w) : buffers(std::move(b)), what(std::move(w)) {}
  Buffers buffers;
  std::string what;
  bool gradient = false;  // a bucket of a plan
  bool must_succeed = true;
  // Its channel had failed when it began. Of calls on several threads one may have completed before
  // another failed, and its thread hear of it afterwards; so these are judged by this alone.
  bool too_late = false;
  bool in_thread = false;
  double at = 0;
  int completions = 0;
};

class Script {
 public:
  Script(Job* job, int rank) : job_(*job), rank_(rank) {}
  // What a rank had that died, or hangs, is lost with its process.
  ~Script() {
    if (!finished_) static_cast<void>(communicator_.release());
  }
  Script(const Script&) = delete;

  void Main();
  bool finished() const { return finished_; }
  bool ending() const { return ending_ || finished_; }
  bool failed() const { return failed_; }
  // When all is over.
  void CheckEnd(std::vector<std::string>* complaints) const;
  double failed_at() const { return failed_at_; }
  const std::string& failure() const { return failure_; }
  // What this rank does now.
  const std::string& doing() const { return doing_; }
  bool joins() const { return joins_; }
  void LeaveSoon() { leaves_ = true; }

 private:
  void RunItem(const Item& item);
  void RunCall(const Item& item);
  void RunPlan(const Item& item);
  void RunJoin(const Item& item);
  void RunPosted(const Item& item);
  void RunThreads(const Item& item);
  void WaitForPosted();
  Begun* AddNamed(const Item& item, const std::vector<Call>& calls, int index);
  void SubmitBuckets(const Item& item, const std::vector<Call>& buckets, int64_t run,
                     std::shared_ptr<struct Step> step);
  Begun* Add(const Item& item, const Call& call, int bucket);
  void Completed(Begun* begun, const smddp::Status& status);
  void CheckFailure(const std::string& what, const smddp::Status& status, bool must_succeed);
  void Compute();
  void Shutdown();
  bool HearsOfFailure();
  std::string Where(const std::string& what) const;

  Job& job_;
  int rank_;
  std::unique_ptr<smddp::Communicator> communicator_;
  smddp::RankSet* set_ = nullptr;
  std::list<std::unique_ptr<Begun>> begun_;
  std::list<std::vector<Call>> plans_;  // what buckets refer to
  std::string doing_ = "starts";
  bool failed_ = false, finished_ = false, ending_ = false, leaves_ = false, joins_ = false;
  bool channel_failed_[2] = {false, false};
  int posted_ = 0;  // and not completed
  double failed_at_ = 0;
  std::string failure_;
};

}  // namespace smddp_sim
