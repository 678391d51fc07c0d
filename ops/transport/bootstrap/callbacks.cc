#include "transport/bootstrap/callbacks.h"

#include <unistd.h>

#include <vector>

namespace smddp {
namespace {

constexpr unsigned kNapMicroseconds = 200;

class CallbackBootstrap : public Bootstrap {
 public:
  explicit CallbackBootstrap(const BootstrapCallbacks& callbacks) : call_(callbacks) {}

  int rank() const override { return call_.rank; }
  int size() const override { return call_.size; }
  const std::string& name() const override { return name_; }
  bool CanFollow() const override { return true; }
  bool CanRetry() const override { return true; }

  Status Allgather(const void* send, int bytes, void* recv, const Problem& problem) const override {
    if (call_.start(call_.context, send, bytes) != 0) return Failure();
    for (;;) {
      int result = call_.test(call_.context, recv, int64_t{bytes} * size());
      if (result < 0) return Failure();
      if (result > 0) return {};
      Status status = problem();
      if (!status.ok()) return status;
      ::usleep(kNapMicroseconds);
    }
  }

  Status MeetToBegin(const Problem& problem, bool* ending) override {
    *ending = false;
    return MeetStarted(problem);
  }

  Status MeetStarted(const Problem& problem) const override {
    char own = 0;
    std::vector<char> all(static_cast<size_t>(size()));
    return Allgather(&own, 1, all.data(), problem);
  }

  void TellFailure(const std::string& why) const override {
    call_.fail(call_.context, why.c_str());
  }
  std::string HeardFailure() const override { return call_.why(call_.context); }

  Status Restrict(int, int, const Problem&) override {
    return {Code::kUsage,
            "init(comm=...) is not available in an elastic job, whose ranks come and go; leave it "
            "out"};
  }

  Status BetweenNodes() const override {
    return {Code::kSystem,
            "the ranks of an elastic job share no memory, and it has no way between nodes yet; "
            "start it on one host, and without SMDDP_NODES"};
  }
  Status MakeGroup(int, int, const Problem&, std::unique_ptr<PeerGroup>*) const override {
    return BetweenNodes();
  }
  Status MakeAlarm(int, int, const Problem&, std::unique_ptr<Alarm>*) const override {
    return BetweenNodes();
  }

  void Finalize(const std::function<bool()>&) override {}

 private:
  Status Failure() const {
    const std::string why = HeardFailure();
    return {Code::kRemote, why.empty() ? "the ranks cannot reach each other" : why};
  }

  const BootstrapCallbacks call_;
  const std::string name_ = "none";
};

}  // namespace

std::shared_ptr<Bootstrap> MakeCallbackBootstrap(const BootstrapCallbacks& callbacks) {
  return std::make_shared<CallbackBootstrap>(callbacks);
}

}  // namespace smddp
