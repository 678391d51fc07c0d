// The alarm as MPI messages. They are short, so MPI sends them eagerly, whether or not the
// receivers are inside MPI; receivers poll for them.
#include "transport/mpi/mpi_alarm.h"

#include <cstring>
#include <utility>  // for move
#include <vector>

#include "core/log.h"
#include "core/try_lock.h"
#include "transport/mpi/idle_waits.h"

namespace smddp {
namespace {

constexpr int kTag = 0;
constexpr size_t kTextBytes = 2048;  // below every MPI's limit for eager messages

struct Message {
  int code;
  char text[kTextBytes];
};

class MpiAlarm : public Alarm {
 public:
  MpiAlarm(const MpiCalls* mpi, MpiHandle comm, std::vector<int> firsts, int node)
      : mpi_(mpi), comm_(comm), firsts_(std::move(firsts)), node_(node) {
    int rank = 0;
    mpi_->comm_rank(comm_, &rank);
    mpi_->comm_size(comm_, &size_);
    listens_ = rank == firsts_[node_];
  }

  bool Raise(int code, const std::string& text) override {
    std::unique_lock<std::mutex> lock = TryLock(mpi_->mutex());
    if (!lock.owns_lock()) return false;
    if (requests_.empty()) {
      sent_.code = code;
      std::strncpy(sent_.text, text.c_str(), kTextBytes - 1);
      requests_.resize(firsts_.size());
      for (int node = 0; node < NumNodes(); ++node) {
        if (node != node_) Send(node);
      }
    }
    return AreOnTheirWay();
  }

  bool Heard(int* code, std::string* text) override {
    if (!listens_) return false;
    std::unique_lock<std::mutex> lock = TryLock(mpi_->mutex());
    if (!lock.owns_lock()) return false;
    IdleWaits none(IdleWaits::kLookOnly);
    Message message{};
    Found found = Receive(mpi_->any_source(), &message);
    if (found == Found::kRefused) found = ReceiveFromOne(&message);
    if (found != Found::kMessage) return false;
    *code = message.code;
    *text = message.text;
    return true;
  }

 private:
  enum class Found { kNothing, kMessage, kRefused };

  Found Receive(int source, Message* message) {
    // MPI_Status has 20 bytes in MPICH and 24 in Open MPI; it is never read.
    alignas(8) char status[64];
    int flag = 0;
    if (mpi_->iprobe(source, kTag, comm_, &flag, status) != 0) return Found::kRefused;
    if (!flag) return Found::kNothing;
    const int error =
        mpi_->recv(message, sizeof *message, mpi_->byte_type(), source, kTag, comm_, status);
    return error == 0 ? Found::kMessage : Found::kRefused;
  }

  // With its fault tolerance, MPI refuses to look for any rank's message once one has died.
  Found ReceiveFromOne(Message* message) {
    for (int rank = 0; rank < size_; ++rank) {
      if (Receive(rank, message) == Found::kMessage) return Found::kMessage;
    }
    return Found::kNothing;
  }

  int NumNodes() const { return static_cast<int>(firsts_.size()); }

  void Send(int node) {
    Status status = mpi_->CheckError(mpi_->isend(&sent_, sizeof sent_, mpi_->byte_type(),
                                                 firsts_[node], kTag, comm_, &requests_[node]),
                                     "MPI_Isend");
    if (status.ok()) return;
    requests_[node] = kNoRequest;
    LogWarning("cannot tell another node of the failure: " + status.message());
  }

  // MPI connects to a rank with its first message, for which it must be called until that is done.
  bool AreOnTheirWay() {
    IdleWaits none(IdleWaits::kLookOnly);
    bool all = true;
    for (MpiHandle& request : requests_) {
      alignas(8) char status[64];
      int done = 1;
      // A node that was lost need not hear it.
      if (request != kNoRequest && mpi_->test(&request, &done, status) != 0) done = 1;
      if (done) request = kNoRequest;
      all = all && done;
    }
    return all;
  }

  static constexpr MpiHandle kNoRequest = 0;
  const MpiCalls* mpi_;
  MpiHandle comm_;  // never freed: other ranks may not have received yet
  std::vector<int> firsts_;
  int node_, size_ = 1;
  bool listens_ = false;
  Message sent_{};
  std::vector<MpiHandle> requests_;  // of the sends, by node
};

}  // namespace

std::unique_ptr<Alarm> MakeMpiAlarm(const MpiCalls* mpi, MpiHandle comm, std::vector<int> firsts,
                                    int node) {
  return std::make_unique<MpiAlarm>(mpi, comm, std::move(firsts), node);
}

}  // namespace smddp
