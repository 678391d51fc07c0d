// Alarm: propagates a failure across nodes, whatever collective is in progress.
//
// The first rank of each node listens: the ranks of a node share failures in memory. Over MPI the
// others have an alarm too, to raise it if the first has died. Over TCP its connections tell that.
#pragma once

#include <string>

namespace smddp {

class Alarm {
 public:
  virtual ~Alarm() = default;
  // Notifies the other nodes, once. False where it is not done within 20 ms: call it again.
  virtual bool Raise(int code, const std::string& text) = 0;
  // Whether another node has raised its alarm. False too where it cannot be known within 20 ms: ask
  // again.
  virtual bool Heard(int* code, std::string* text) = 0;
};

}  // namespace smddp
