// The message of each thread's last failure in the C API.
#pragma once

#include "core/status.h"

namespace smddp {

// Keeps the message of a failure for smddp_last_error(). Returns the code, of smddp_code.
int Return(const Status& status);

}  // namespace smddp
