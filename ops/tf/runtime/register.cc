#include "tf/runtime/register.h"

#include "capi/smddp.h"

// TensorFlow calls this after loading the library, which is too late: the ops must be known
// earlier, so a static initializer registers them.
extern "C" SMDDP_EXPORT void TF_InitKernel() {}

namespace {

[[maybe_unused]] const bool registered = [] {
  smddp_tf::RegisterCollectiveOps();
  smddp_tf::RegisterExchangeOps();
  smddp_tf::RegisterPlanOps();
  smddp_tf::RegisterQueryOps();
  smddp_tf::RegisterSelfTest();
  return true;
}();

}  // namespace
