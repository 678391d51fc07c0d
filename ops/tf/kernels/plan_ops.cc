// The three ops of a gradient plan; see engine/bucket_scheduler.h for their semantics.
//
// Begin and End are stateful, so they keep program order. The buckets between them are not: each
// starts when its gradients exist, and overlaps the rest of the backward pass. The run number that
// Begin passes to each bucket keeps TensorFlow from folding, merging or reusing them, and the
// tokens that End consumes keep it from pruning them.
#include <utility>  // for move

#include "tf/runtime/op_call.h"
#include "tf/runtime/register.h"

namespace smddp_tf {
namespace {

// ---- begin --------------------------------------------------------------------------------------

void* CreateBegin(TF_OpKernelConstruction* context) {
  std::string name, text;
  int64_t fingerprint = 0, buckets = 0, process_set = 0;
  if (!ReadString(context, "plan_name", &name) || !ReadString(context, "description", &text) ||
      !ReadInt(context, "fingerprint", &fingerprint) ||
      !ReadInt(context, "num_buckets", &buckets) ||
      !ReadInt(context, "process_set", &process_set)) {
    return nullptr;
  }
  smddp_plan* plan = smddp_plan_new(fingerprint, name.c_str(), text.c_str(),
                                    static_cast<int>(buckets), static_cast<int>(process_set));
  if (plan == nullptr) {
    ScopedStatus status;
    TF_SetStatus(status, kTfInternal, smddp_last_error());
    TF_OpKernelConstruction_Failure(context, status);
  }
  return plan;
}

void DestroyBegin(void* kernel) { smddp_plan_delete(static_cast<smddp_plan*>(kernel)); }

void ComputeBegin(void* kernel, TF_OpKernelContext* context) {
  int64_t run = 0;
  int code = smddp_plan_begin(static_cast<smddp_plan*>(kernel), &run);
  if (code != SMDDP_OK) return FailOp(context, code, smddp_last_error());
  ScopedStatus status;
  TF_Tensor* out = TF_AllocateOutput(context, 0, SMDDP_INT64, nullptr, 0, sizeof run, status);
  if (!status.ok()) return TF_OpKernelContext_Failure(context, status);
  *static_cast<int64_t*>(TF_TensorData(out)) = run;
  TF_DeleteTensor(out);
}

// ---- bucket -------------------------------------------------------------------------------------

struct Bucket {
  Attributes attributes;
  int64_t index = 0;
};

void* CreateBucket(TF_OpKernelConstruction* context) {
  auto* bucket = new Bucket();
  if (ReadAttributes(context, kHasType | kHasReduce | kHasList, &bucket->attributes) &&
      ReadInt(context, "bucket", &bucket->index)) {
    return bucket;
  }
  delete bucket;
  return nullptr;
}

void DestroyBucket(void* kernel) { delete static_cast<Bucket*>(kernel); }

bool SetScalar(TF_OpKernelContext* context, int output, int64_t value) {
  ScopedStatus status;
  TF_Tensor* out =
      TF_AllocateOutput(context, output, SMDDP_INT64, nullptr, 0, sizeof value, status);
  if (!status.ok()) {
    TF_OpKernelContext_Failure(context, status);
    return false;
  }
  *static_cast<int64_t*>(TF_TensorData(out)) = value;
  TF_DeleteTensor(out);
  return true;
}

class BucketCall : public OpCall {
  void Start() override {
    const Bucket& bucket = *static_cast<const Bucket*>(kernel_);
    int count = static_cast<int>(bucket.attributes.num_tensors);
    int64_t run = 0;
    if (!ReadScalar(context_, 0, &run) || !pairs_.Open(context_, 1, count, memory_) ||
        !SetScalar(context_, count, run)) {
      return Finish();
    }
    smddp_request request = MakeRequest(SMDDP_ALLREDUCE, bucket.attributes, pairs_.tensors());
    Place(&request);
    next_ = [this] { Finish(); };
    smddp_plan_bucket(run, static_cast<int>(bucket.index), &request, Done, this);
  }

  TensorPairs pairs_;
};

// Output i has the shape of input i + 1 (input 0 is the run number); the last output is the token.
void BucketShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* handle = TF_NewShapeHandle();
  int count = static_cast<int>(TF_ShapeInferenceContextNumInputs(context)) - 1;
  for (int i = 0; i < count; ++i) {
    TF_ShapeInferenceContextGetInput(context, i + 1, handle, status);
    if (TF_GetCode(status) == kTfOk) TF_ShapeInferenceContextSetOutput(context, i, handle, status);
    if (TF_GetCode(status) != kTfOk) break;
  }
  TF_DeleteShapeHandle(handle);
  if (TF_GetCode(status) != kTfOk) return;
  TF_ShapeHandle* scalar = TF_ShapeInferenceContextScalar(context);
  TF_ShapeInferenceContextSetOutput(context, count, scalar, status);
  TF_DeleteShapeHandle(scalar);
}

// ---- end ----------------------------------------------------------------------------------------

void* CreateEnd(TF_OpKernelConstruction* context) {
  auto* process_set = new int64_t(0);
  if (ReadInt(context, "process_set", process_set)) return process_set;
  delete process_set;
  return nullptr;
}

void DestroyEnd(void* kernel) { delete static_cast<int64_t*>(kernel); }

class EndCall : public OpCall {
  void Start() override {
    int64_t run = 0;
    if (!ReadScalar(context_, 0, &run)) return Finish();
    next_ = [this] { Finish(); };
    smddp_plan_end(static_cast<int>(*static_cast<const int64_t*>(kernel_)), run, Done, this);
  }
};

}  // namespace

void RegisterPlanOps() {
  OpSpec begin{"SmddpPlanBegin",
               {},
               {"run: int64"},
               {"plan_name: string", "fingerprint: int", "description: string",
                "num_buckets: int >= 0", kSetAttr},
               true,
               ScalarShape};
  RegisterOp(begin);
  RegisterKernels(begin, [](const char* op, const char* device, int) {
    return TF_NewKernelBuilder(op, device, CreateBegin, ComputeBegin, DestroyBegin);
  });
  RegisterAsync<BucketCall, CreateBucket, DestroyBucket>(
      {"SmddpPlanBucket",
       {"run: int64", "tensors: N * T"},
       {"outputs: N * T", "token: int64"},
       {kTypeAttr, "N: int >= 1", "bucket: int", "reduce_op: int", kPrescaleAttr, kPostscaleAttr,
        "tensor_name: string", kSetAttr, kMatchingAttr},
       false,
       BucketShapes});
  RegisterAsync<EndCall, CreateEnd, DestroyEnd>({"SmddpPlanEnd",
                                                 {"run: int64", "tokens: K * int64"},
                                                 {},
                                                 {"K: int >= 0", kSetAttr},
                                                 true,
                                                 NoOutputs});
}

}  // namespace smddp_tf
