#include "transport/mpi/mpi_calls.h"

#include <cstring>
#include <string>
#include <utility>  // for move
#include <vector>

#include "core/log.h"

namespace smddp {

Status MpiCalls::CheckError(int error, const char* what) const {
  if (error == 0) return {};
  constexpr int kMaxErrorString = 1024;
  char text[kMaxErrorString] = "";
  int length = 0;
  error_string_(error, text, &length);
  bool died = std::strstr(text, "PROC_FAILED") != nullptr;
  return {Code::kSystem,
          std::string(what) + " failed: " + text +
              (died ? "; a rank on another node has died: see the launcher's output" : "")};
}

void MpiCalls::Free(MpiHandle comm) const {
  std::lock_guard<std::mutex> lock(mutex_);
  Status status = CheckError(comm_free_(&comm), "MPI_Comm_free");
  if (!status.ok()) LogWarning(status.message());
}

void MpiCalls::LeaveBehind(std::shared_ptr<void> what) const {
  static std::mutex mutex;
  static auto* all = new std::vector<std::shared_ptr<void>>;
  std::lock_guard<std::mutex> lock(mutex);
  all->push_back(std::move(what));
}

}  // namespace smddp
