#include "transport/bootstrap/callbacks.h"

#include <unistd.h>

#include <algorithm>
#include <utility>  // for move
#include <vector>

#include "transport/tcp/mesh.h"
#include "transport/tcp/tcp_alarm.h"
#include "transport/tcp/tcp_group.h"

namespace smddp {
namespace {

constexpr unsigned kNapMicroseconds = 200;

// What a rank gathers of the others to connect with those of its color.
struct Place {
  int32_t color, key;
  Endpoint endpoint;
};

class CallbackBootstrap : public Bootstrap {
 public:
  explicit CallbackBootstrap(const BootstrapCallbacks& callbacks)
      : call_(callbacks), host_(callbacks.host) {}

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
            "a job that has no MPI cannot be divided; leave out init(comm=...), and unset "
            "SMDDP_SINGLE_PROCESS"};
  }

  Status BetweenNodes() const override { return {}; }

  Status MakeGroup(int color, int key, const Problem& problem,
                   std::unique_ptr<PeerGroup>* group) const override {
    std::vector<Peer> peers;
    int rank = 0;
    Status status = Connect(color, key, problem, &rank, &peers);
    if (status.ok() && color != kNoColor) *group = MakeTcpGroup(rank, std::move(peers));
    return status;
  }

  Status MakeAlarm(const std::vector<int>& firsts, int node, const Problem& problem,
                   std::unique_ptr<Alarm>* alarm) const override {
    std::vector<Peer> peers;
    int rank = 0, color = firsts[node] == this->rank() ? 0 : kNoColor;
    Status status = Connect(color, node, problem, &rank, &peers);
    if (status.ok() && color != kNoColor) *alarm = MakeTcpAlarm(std::move(peers));
    return status;
  }

  void Finalize(const std::function<bool()>&) override {}

 private:
  Status Failure() const {
    const std::string why = HeardFailure();
    return {Code::kRemote, why.empty() ? "the ranks cannot reach each other" : why};
  }

  // Connects the ranks of a color; called by all ranks.
  Status Connect(int color, int key, const Problem& problem, int* rank,
                 std::vector<Peer>* peers) const {
    Mesh mesh;
    Place own{color, key, {}};
    if (color != kNoColor) {
      Status status = mesh.Listen(host_, this->rank());
      if (!status.ok()) return status;
      own.endpoint = mesh.own();
    }
    std::vector<Place> places(static_cast<size_t>(size()));
    Status status = Allgather(&own, sizeof own, places.data(), problem);
    if (!status.ok() || color == kNoColor) return status;
    auto others = [color](const Place& place) { return place.color != color; };
    places.erase(std::remove_if(places.begin(), places.end(), others), places.end());
    std::sort(places.begin(), places.end(),
              [](const Place& a, const Place& b) { return a.key < b.key; });
    std::vector<Endpoint> endpoints;
    for (const Place& place : places) {
      if (place.key == key) *rank = static_cast<int>(endpoints.size());
      endpoints.push_back(place.endpoint);
    }
    const Sign sign = [this](const std::string& text) {
      Signature signature{};
      call_.sign(call_.context, text.data(), static_cast<int64_t>(text.size()), signature.data());
      return signature;
    };
    return mesh.Connect(*rank, endpoints, sign, problem, peers);
  }

  const BootstrapCallbacks call_;
  const std::string host_;
  const std::string name_ = "none";
};

}  // namespace

std::shared_ptr<Bootstrap> MakeCallbackBootstrap(const BootstrapCallbacks& callbacks) {
  return std::make_shared<CallbackBootstrap>(callbacks);
}

}  // namespace smddp
