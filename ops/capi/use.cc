#include "capi/use.h"

namespace smddp {

std::atomic<Communicator*> communicator{nullptr};
std::atomic<int> inside{0};

Status NotInitialized() {
  return {Code::kNotInitialized,
          "smddp_tf has not been initialized; call smddp_tf.init() before any collective"};
}

std::shared_ptr<RankSet> FindSet(const Use& comm, int number, Status* why) {
  if (comm) return comm->Find(number, why);
  *why = NotInitialized();
  return nullptr;
}

}  // namespace smddp
