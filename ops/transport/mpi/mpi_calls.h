// What MpiGroup and MpiAlarm call of MPI: an MPI library's functions, or those of something that
// stands in for one (transport/inproc/mpi_part.h).
//
// Only functions whose C signatures agree in Open MPI and MPICH. Handles differ (Open MPI:
// addresses of objects; MPICH: integers), but both fit a register, so they are passed as uintptr_t.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "core/status.h"

namespace smddp {

using MpiHandle = uintptr_t;

class MpiCalls {
 public:
  virtual ~MpiCalls() = default;

  int (*iallgather)(const void*, int, MpiHandle, void*, int, MpiHandle, MpiHandle, MpiHandle*);
  int (*iallgatherv)(const void*, int, MpiHandle, void*, const int*, const int*, MpiHandle,
                     MpiHandle, MpiHandle*);
  int (*ialltoallv)(const void*, const int*, const int*, MpiHandle, void*, const int*, const int*,
                    MpiHandle, MpiHandle, MpiHandle*);
  int (*ibcast)(void*, int, MpiHandle, int, MpiHandle, MpiHandle*);
  int (*test)(MpiHandle*, int*, void*);
  int (*comm_rank)(MpiHandle, int*);
  int (*comm_size)(MpiHandle, int*);
  // For the alarm and the start alone, so nothing stands in for them.
  int (*isend)(const void*, int, MpiHandle, int, int, MpiHandle, MpiHandle*) = nullptr;
  int (*iprobe)(int, int, MpiHandle, int*, void*) = nullptr;
  int (*recv)(void*, int, MpiHandle, int, int, MpiHandle, void*) = nullptr;

  Status CheckError(int error, const char* what) const;
  void Free(MpiHandle comm) const;
  MpiHandle byte_type() const { return byte_; }
  const void* in_place() const { return in_place_; }
  int any_source() const { return any_source_; }
  // With MPI_THREAD_SERIALIZED only one thread may be inside MPI; otherwise the lock is
  // uncontended.
  std::mutex& mutex() const { return mutex_; }
  // Keeps what MPI may still use: until the process ends.
  virtual void LeaveBehind(std::shared_ptr<void> what) const;

 protected:
  int (*comm_free_)(MpiHandle*);
  int (*error_string_)(int, char*, int*);
  MpiHandle byte_ = 0;
  const void* in_place_ = nullptr;
  int any_source_ = 0;
  mutable std::mutex mutex_;
};

}  // namespace smddp
