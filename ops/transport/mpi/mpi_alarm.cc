// The alarm as MPI messages. They are short, so MPI sends them eagerly, whether or not the
// receivers are inside MPI; receivers poll for them.
#include "transport/mpi/mpi_alarm.h"

#include <cstring>
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
  MpiAlarm(const MpiCalls* mpi, MpiHandle comm) : mpi_(mpi), comm_(comm) {
    mpi_->comm_rank(comm_, &rank_);
    mpi_->comm_size(comm_, &size_);
  }

  bool Raise(int code, const std::string& text) override {
    if (!requests_.empty()) return true;
    std::unique_lock<std::mutex> lock = TryLock(mpi_->mutex());
    if (!lock.owns_lock()) return false;
    sent_.code = code;
    std::strncpy(sent_.text, text.c_str(), kTextBytes - 1);
    requests_.resize(size_);
    for (int node = 0; node < size_; ++node) {
      if (node == rank_) continue;
      Status status = mpi_->CheckError(
          mpi_->isend(&sent_, sizeof sent_, mpi_->byte_type(), node, kTag, comm_, &requests_[node]),
          "MPI_Isend");
      if (!status.ok()) LogWarning("cannot tell another node of the failure: " + status.message());
    }
    return true;
  }

  bool Heard(int* code, std::string* text) override {
    std::unique_lock<std::mutex> lock = TryLock(mpi_->mutex());
    if (!lock.owns_lock()) return false;
    IdleWaits none(IdleWaits::kLookOnly);
    for (int node = 0; node < size_; ++node) {
      // MPI_Status has 20 bytes in MPICH and 24 in Open MPI; it is never read.
      alignas(8) char status[64];
      int flag = 0;
      if (node == rank_ || mpi_->iprobe(node, kTag, comm_, &flag, status) != 0 || !flag) continue;
      Message message{};
      int error =
          mpi_->recv(&message, sizeof message, mpi_->byte_type(), node, kTag, comm_, status);
      if (error != 0) continue;
      *code = message.code;
      *text = message.text;
      return true;
    }
    return false;
  }

 private:
  const MpiCalls* mpi_;
  MpiHandle comm_;  // never freed: other ranks may not have received yet
  int rank_ = 0, size_ = 1;
  Message sent_{};
  std::vector<MpiHandle> requests_;  // of the sends
};

}  // namespace

std::unique_ptr<Alarm> MakeMpiAlarm(const MpiCalls* mpi, MpiHandle comm) {
  return std::make_unique<MpiAlarm>(mpi, comm);
}

}  // namespace smddp
