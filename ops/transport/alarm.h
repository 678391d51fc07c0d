// Alarm: propagates a failure across nodes, whatever collective is in progress.
//
// Only the first rank of each node has one: the ranks of a node share failures in memory.
#pragma once

#include <memory>
#include <string>

#include "transport/mpi/mpi_library.h"

namespace smddp {

class Alarm {
 public:
  virtual ~Alarm() = default;
  // Notifies the other nodes, once. False where it cannot be done within 20 ms: call it again.
  virtual bool Raise(int code, const std::string& text) = 0;
  // Whether another node has raised its alarm. False too where it cannot be known within 20 ms: ask
  // again.
  virtual bool Heard(int* code, std::string* text) = 0;
};

// `comm` contains the first rank of each node, and is used by the alarm only.
std::unique_ptr<Alarm> MakeMpiAlarm(const MpiLibrary* mpi, MpiHandle comm);

}  // namespace smddp
