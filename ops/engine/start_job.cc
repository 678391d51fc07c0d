#include "engine/start_job.h"

#include <exception>
#include <string>
#include <utility>  // for move

#include "core/log.h"
#include "engine/connect/connect.h"
#include "engine/connect/init_limit.h"

namespace smddp {
namespace {

// What has been made of a job so far.
struct Beginning {
  std::unique_ptr<JobContext> context = std::make_unique<JobContext>();
  std::unique_ptr<Connection> everybody;
  std::unique_ptr<Communicator> communicator;
  // Of the context, which the communicator takes.
  std::shared_ptr<Bootstrap> bootstrap;
  Bootstrap::Problem problem;
  bool fails_alone = false;
};

Status Begin(const Config& config, const std::vector<int>& ranks, const SharedSettings& terms,
             const std::shared_ptr<Bootstrap>& bootstrap, Beginning* begun) {
  begun->context->bootstrap = bootstrap;
  Status status = ConnectJob(config, ranks, terms, begun->context.get(), &begun->everybody);
  if (!status.ok()) return status;
  begun->bootstrap = begun->context->bootstrap;
  begun->problem = begun->context->problem;
  begun->fails_alone = begun->context->fails_alone;
  const Topology& topology = begun->everybody->topology;
  SetLogRank(topology.size > 1 ? topology.rank : -1);
  if (topology.rank == 0) {
    for (const std::string& sentence : config.removed) LogWarning(sentence);
  }
  begun->communicator =
      std::make_unique<Communicator>(std::move(begun->context), std::move(begun->everybody));
  return begun->communicator->Start([begun] {
    return begun->bootstrap != nullptr ? begun->bootstrap->MeetStarted(begun->problem) : Status();
  });
}

}  // namespace

Status StartJob(const Config& config, const std::vector<int>& ranks, const SharedSettings& terms,
                const std::shared_ptr<Bootstrap>& bootstrap, std::unique_ptr<Communicator>* out) {
  auto begun = std::make_unique<Beginning>();
  Status status;
  std::string lacks;
  try {
    status = Begin(config, ranks, terms, bootstrap, begun.get());
  } catch (const std::exception& error) {
    lacks = std::string("it has no memory or threads left: ") + error.what();
    status = {Code::kSystem, "this rank cannot start: " + lacks};
  }
  if (begun->context != nullptr) {
    begun->bootstrap = begun->context->bootstrap;
    begun->fails_alone = begun->context->fails_alone;
  }
  if (status.ok()) *out = std::move(begun->communicator);
  const bool told = status.code() == Code::kTimeout || status.code() == Code::kRemote;
  const bool alone = status.code() == Code::kSystem && begun->fails_alone;
  if (alone)
    status = FailAlone(*begun->bootstrap, lacks.empty() ? status : Status(Code::kSystem, lacks));
  // MPI may still be at work in that memory, and a group ends only with its other ranks.
  const bool at_work = begun->bootstrap != nullptr && !begun->bootstrap->CanRetry();
  if ((told || alone) && at_work) static_cast<void>(begun.release());
  return status;
}

}  // namespace smddp
