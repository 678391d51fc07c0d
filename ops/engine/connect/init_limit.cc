#include "engine/connect/init_limit.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "core/c_numbers.h"
#include "core/deadline.h"

namespace smddp {
namespace {

// On a busy machine, processes launched together start seconds apart.
constexpr double kLeastSeconds = 10;
constexpr char kUnreachable[] =
    "some hosts cannot reach each other: python -m smddp_tf.doctor under the same launcher says "
    "what must be open";
// What MPI, its threads' stacks and shared memory need at once is of this order.
constexpr size_t kScarceBytes = size_t{512} << 20;
constexpr char kRestart[] = "; the ranks of this job can no longer be connected: restart it";

bool given_up = false;

Status GiveUp(const Bootstrap& ranks, Code code, const std::string& text) {
  if (ranks.CanRetry()) return {code, text};
  given_up = true;
  return {code, text + kRestart};
}

// What to say where a limit of this process's address space is nearly reached; else "". The calls
// that fail then report no more than a lack of memory, and MPI's not even that.
std::string ScarceAddresses() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  size_t used = pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  if (used + kScarceBytes < limit.rlim_cur) return "";
  return "this process uses " + std::to_string(used >> 20) + " MiB of the " +
         std::to_string(limit.rlim_cur >> 20) +
         " MiB of address space that it may have: raise that limit (ulimit -v, RLIMIT_AS)";
}

// Why ranks do not meet. Without addresses MPI has been seen to wait for ever.
std::string LikelyReason() {
  const std::string scarce = ScarceAddresses();
  return scarce.empty() ? kUnreachable : scarce;
}

// Of another rank that fails alone.
Status Heard(const Bootstrap& ranks) {
  const std::string why = ranks.HeardFailure();
  return why.empty() ? Status() : GiveUp(ranks, Code::kRemote, why);
}

}  // namespace

Status MeetAll(const Config& config, Bootstrap* ranks, Bootstrap::Problem* problem) {
  if (given_up) return GiveUp(*ranks, Code::kTimeout, "an earlier init() of this process failed");
  const double limit = std::max(config.timeout_seconds, kLeastSeconds);
  const std::string within =
      " within " + FormatNumber(limit) + " s (SMDDP_TIMEOUT_SECONDS, but no less than 10)";
  const std::string size = std::to_string(ranks->size());
  bool ending = false;
  Deadline all_here(limit);
  Status met = ranks->MeetToBegin(
      [&] {
        if (!all_here.Passed()) return Heard(*ranks);
        return GiveUp(
            *ranks, Code::kTimeout,
            "not all of the " + size + " ranks called init()" + within + ", or " + LikelyReason());
      },
      &ending);
  if (met.code() == Code::kSystem) {
    const bool scarce = !ScarceAddresses().empty();
    return FailAlone(
        *ranks, scarce ? met : Status(met.code(), met.message() + "; perhaps " + kUnreachable));
  }
  if (!met.ok()) return met;
  if (ending) return GiveUp(*ranks, Code::kRemote, "another rank ends instead of calling init()");
  Deadline connected(limit);
  *problem = [connected, within, size, ranks] {
    if (!connected.Passed()) return Heard(*ranks);
    return GiveUp(*ranks, Code::kTimeout,
                  "all " + size + " ranks called init(), but were not connected" + within +
                      ": a rank was stopped meanwhile, or " + LikelyReason());
  };
  return {};
}

Status FailAlone(const Bootstrap& ranks, const Status& own) {
  std::string why = "rank " + std::to_string(ranks.rank()) + " cannot start: " + own.message();
  if (const std::string scarce = ScarceAddresses(); !scarce.empty()) why += "; " + scarce;
  ranks.TellFailure(why);
  return GiveUp(ranks, own.code(), why);
}

}  // namespace smddp
