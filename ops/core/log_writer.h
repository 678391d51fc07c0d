// Where the log's lines go.
#pragma once

#include <cstddef>
#include <string>

namespace smddp {

// Hands a line to the thread that writes to stderr.
void WriteToStderr(const std::string& line);
// How many lines were dropped since the last call, once there is room again; else 0.
size_t TakeLostLines();
// Waits for that thread, but not for long.
void FlushStderr();

}  // namespace smddp
