// Alarm: how a failure crosses nodes, whatever collective is under way.
//
// Only the first rank of each node has one: the ranks of a node share their failures in memory.
#pragma once

#include <memory>
#include <string>

#include "transport/mpi/mpi_library.h"

namespace smddp {

class Alarm {
 public:
  virtual ~Alarm() = default;
  // Tells the other nodes, without waiting for them. Once.
  virtual void Raise(int code, const std::string& text) = 0;
  // Whether another node has told.
  virtual bool Heard(int* code, std::string* text) = 0;
};

// `comm` has the first rank of each node, and is used by the alarm alone.
std::unique_ptr<Alarm> MakeMpiAlarm(const MpiLibrary* mpi, MpiHandle comm);

}  // namespace smddp
