// The log: one line per message on stderr, "smddp_tf[rank 1] warning: ...".
//
// Nobody who logs waits for stderr: whoever should read it may have stopped, such as a pager.
#pragma once

#include <string>

namespace smddp {

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

void SetLogLevel(const std::string& name);
void SetLogRank(int rank);
bool LogEnabled(LogLevel level);
// The line that Log writes, with its newline.
std::string LogLine(LogLevel level, const std::string& text);
// Has the line written with a single write(2), so that lines of several ranks do not interleave, by
// a thread of its own.
void Log(LogLevel level, const std::string& text);
// Waits for that thread, but not for long: before a process may end, or Python writes to stderr.
void FlushLog();

inline void LogDebug(const std::string& text) { Log(LogLevel::kDebug, text); }
inline void LogInfo(const std::string& text) { Log(LogLevel::kInfo, text); }
inline void LogWarning(const std::string& text) { Log(LogLevel::kWarning, text); }
inline void LogError(const std::string& text) { Log(LogLevel::kError, text); }

}  // namespace smddp
