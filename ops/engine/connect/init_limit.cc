#include "engine/connect/init_limit.h"

#include <algorithm>
#include <string>

#include "core/c_numbers.h"
#include "core/deadline.h"

namespace smddp {
namespace {

// On a busy machine, processes launched together start seconds apart.
constexpr double kLeastSeconds = 10;
constexpr char kUnreachable[] =
    " some hosts cannot reach each other: python -m smddp_tf.doctor under the same launcher says "
    "what "
    "must be open";
constexpr char kRestart[] = "; the ranks of this job can no longer be connected: restart it";

bool given_up = false;

Status GiveUp(Code code, const std::string& text) {
  given_up = true;
  return {code, text + kRestart};
}

// Of another rank that fails alone.
Status Heard(const MpiLibrary& mpi) {
  const std::string why = mpi.HeardFailure();
  return why.empty() ? Status() : GiveUp(Code::kRemote, why);
}

}  // namespace

Status MeetAll(const Config& config, MpiLibrary* mpi, MpiLibrary::Problem* problem) {
  if (given_up) return GiveUp(Code::kTimeout, "an earlier init() of this process failed");
  const double limit = std::max(config.timeout_seconds, kLeastSeconds);
  const std::string within =
      " within " + FormatNumber(limit) + " s (SMDDP_TIMEOUT_SECONDS, but no less than 10)";
  const std::string size = std::to_string(mpi->size());
  bool ending = false;
  Deadline all_here(limit);
  Status met = mpi->MeetToBegin(
      [&] {
        if (!all_here.Passed()) return Heard(*mpi);
        return GiveUp(Code::kTimeout, "not all of the " + size + " ranks called init()" + within +
                                          ", or" + kUnreachable);
      },
      &ending);
  if (met.code() == Code::kSystem) {
    return FailAlone(*mpi, {met.code(), met.message() + "; perhaps" + kUnreachable});
  }
  if (!met.ok()) return met;
  if (ending) return GiveUp(Code::kRemote, "another rank ends instead of calling init()");
  Deadline connected(limit);
  *problem = [connected, within, size, mpi] {
    if (!connected.Passed()) return Heard(*mpi);
    return GiveUp(Code::kTimeout, "all " + size + " ranks called init(), but were not connected" +
                                      within + ": a rank was stopped meanwhile, or" + kUnreachable);
  };
  return {};
}

Status FailAlone(const MpiLibrary& mpi, const Status& own) {
  const std::string why = "rank " + std::to_string(mpi.rank()) + " cannot start: " + own.message();
  mpi.TellFailure(why);
  return GiveUp(own.code(), why);
}

}  // namespace smddp
