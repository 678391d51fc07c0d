#include "tf/runtime/register.h"

#include "capi/smddp.h"

// TensorFlow calls this after it has loaded the library; the ops must be known before, so they are
// registered by the loader and nothing is left to do.
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
