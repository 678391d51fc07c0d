#include "tf/runtime/register.h"

#include "capi/smddp.h"

// TensorFlow calls this after loading the library, which is too late: the ops must be known
// earlier, so a static initializer registers them.
extern "C" SMDDP_EXPORT void TF_InitKernel() {}

namespace {

[[maybe_unused]] const bool registered = [] {
  smddp_tf::RegisterAllreduce();
  smddp_tf::RegisterBroadcast();
  smddp_tf::RegisterAllgather();
  smddp_tf::RegisterAlltoall();
  smddp_tf::RegisterReducescatter();
  smddp_tf::RegisterBarrier();
  smddp_tf::RegisterJoin();
  smddp_tf::RegisterPlanOps();
  smddp_tf::RegisterIteration();
  smddp_tf::RegisterQueryOps();
  smddp_tf::RegisterSelfTest();
  smddp_tf::RegisterInt8Ops();
  smddp_tf::RegisterTopkOps();
  return true;
}();

}  // namespace
