// RaggedCall: a collective whose output's size depends on what the other ranks have.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tf/runtime/op_call.h"

namespace smddp_tf {

class RaggedCall : public OpCall {
 public:
  ~RaggedCall() override;

 protected:
  // Runs the collective of input 0, with output 0 as its result, and finishes the call. The splits
  // are an alltoall's.
  void PostRagged(int kind, const int32_t* splits, int num_splits);
  // Allocates the other outputs, given the rows that come from each rank. Returns false after a
  // failure, which it has reported to TensorFlow.
  virtual bool AllocateOthers(const int64_t* /*rows*/, int /*ranks*/) { return true; }

 private:
  static int Allocate(void* call, const int64_t* rows, int ranks, void** out);
  bool AllocateOutput(const int64_t* rows, int ranks);

  std::unique_ptr<Input> in_;
  std::vector<int64_t> dims_;
  TF_Tensor* out_ = nullptr;
};

}  // namespace smddp_tf
