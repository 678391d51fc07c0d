// The MPI that launched this process, opened at run time: one binary serves Open MPI and MPICH.
//
// Predefined handles come from symbols (Open MPI) or are MPICH's published ABI constants.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "core/status.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/bootstrap/launcher_env.h"
#include "transport/mpi/mpi_calls.h"

namespace smddp {

class MpiLibrary : public MpiCalls, public Bootstrap {
 public:
  // Opens the library, initializes MPI unless another library did (mpi4py), and checks that it
  // belongs to the launcher. Errors include their remedy. If a forced path cannot serve, sets
  // *problem and opens another library, through which the other ranks are informed.
  static Status Open(const LaunchInfo& launch, const std::string& forced_path, MpiLibrary* mpi,
                     std::string* problem);
  // Another library (mpi4py) has initialized MPI in this process.
  static bool IsRunning();

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }
  // If this library initialized MPI, it ends with the job and cannot begin again.
  bool CanFollow() const override;
  bool CanRetry() const override { return false; }

  Status Allgather(const void* send, int bytes, void* recv, const Problem& problem) const override;
  Status MeetToBegin(const Problem& problem, bool* ending) override;
  Status MeetStarted(const Problem& problem) const override;
  void TellFailure(const std::string& why) const override;
  std::string HeardFailure() const override;
  Status Restrict(int color, int key, const Problem& problem) override;
  Status BetweenNodes() const override;
  Status MakeGroup(int color, int key, const Problem& problem,
                   std::unique_ptr<PeerGroup>* group) const override;
  Status MakeAlarm(const std::vector<int>& firsts, int node, const Problem& problem,
                   std::unique_ptr<Alarm>* alarm) const override;
  // Finalizes MPI if this library initialized it. MPI_Finalize waits for all ranks; so does this,
  // unless `stop` returns true.
  void Finalize(const std::function<bool()>& stop) override;

 private:
  Status Load(const LaunchInfo& launch);
  bool multiple_threads() const {
    return thread_level_ >= 2;
  }  // MPI_THREAD_SERIALIZED is enough: we lock
  // Collective over all ranks; a rank with kNoColor gets no communicator. MPI has no call for it
  // that does not block, so a thread makes the call, and is left behind if there is a problem. An
  // MPI that was initialized for one thread only is called by that one, and has no limit.
  Status Split(int color, int key, MpiHandle* comm, const Problem& problem) const;
  Status LoadForced(const LaunchInfo& launch, const std::string& path);
  Status Resolve(void* library);
  Status Initialize(const LaunchInfo& launch);
  Status SplitAside(int color, int key, const Problem& problem, MpiHandle* comm) const;
  Status Wait(MpiHandle request, const Problem& problem) const;
  Status Meet(char purpose, const Problem& problem, std::string* purposes) const;
  Status CheckSize(const LaunchInfo& launch) const;

  int (*initialized_)(int*);
  int (*finalized_)(int*);
  int (*init_thread_)(int*, char***, int, int*);
  int (*query_thread_)(int*);
  int (*finalize_)();
  int (*comm_split_)(MpiHandle, int, int, MpiHandle*);
  int (*set_errhandler_)(MpiHandle, MpiHandle);
  int (*library_version_)(char*, int*);

  static constexpr uintptr_t kOne = 1;  // Open MPI's MPI_IN_PLACE; MPICH's is -1
  void* library_ = nullptr;
  bool open_mpi_ = false;
  bool all_began_ = false;  // this library initialized MPI on all ranks
  int thread_level_ = 0;
  int rank_ = 0, size_ = 1;
  MpiHandle world_ = 0, errors_return_ = 0;
  std::string name_;
};

}  // namespace smddp
