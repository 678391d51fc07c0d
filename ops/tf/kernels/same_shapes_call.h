// SameShapesCall: a collective of a list of tensors, with outputs of the inputs' shapes.
#pragma once

#include "tf/runtime/op_call.h"

namespace smddp_tf {

template <int kKind>
class SameShapesCall : public OpCall {
  void Start() override {
    int count = static_cast<int>(attributes().num_tensors);
    if (!pairs_.Open(context_, 0, count, memory_)) return Finish();
    Post(MakeRequest(kKind, attributes(), pairs_.tensors()), [this] { Finish(); });
  }

  TensorPairs pairs_;
};

}  // namespace smddp_tf
