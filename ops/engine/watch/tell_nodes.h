// TellNodes: the first rank of a node that lives tells the other nodes of a failure.
#pragma once

#include <string>

#include "transport/alarm.h"
#include "transport/shm/shm_group.h"

namespace smddp {

// To be called again: while a thread stays inside MPI it cannot be done, and the rank that was to
// do it may die. What was heard from another node went to all nodes already; repeating it is
// harmless. `alarm` may be null.
inline void TellNodes(const ShmGroup& shm, Alarm* alarm, int code, const std::string& text) {
  if (alarm == nullptr || shm.NodesTold() || !shm.IsFirstAlive()) return;
  if (alarm->Raise(code, text)) shm.NoteNodesTold();
}

}  // namespace smddp
