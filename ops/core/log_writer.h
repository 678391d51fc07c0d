// Where the log's lines go.
#pragma once

#include <string>

namespace smddp {

// Hands a line to the thread that writes to stderr.
void WriteToStderr(const std::string& line);

}  // namespace smddp
