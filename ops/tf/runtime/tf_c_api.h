// The part of TensorFlow's C API that the ops use, declared by hand.
//
// TensorFlow keeps this ABI stable (tested with 2.15 to 2.21), so one binary serves all versions
// and the build needs no TensorFlow: it makes a stub library from the names in this file. The
// functions are documented in TensorFlow's tensorflow/c/{ops,kernels,tf_tensor}.h.
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {

typedef struct TF_Status TF_Status;
typedef struct TF_Tensor TF_Tensor;
typedef struct TF_KernelBuilder TF_KernelBuilder;
typedef struct TF_OpKernelConstruction TF_OpKernelConstruction;
typedef struct TF_OpKernelContext TF_OpKernelContext;
typedef struct TF_AsyncOpKernelDoneCallback TF_AsyncOpKernelDoneCallback;
typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
typedef struct TF_ShapeHandle TF_ShapeHandle;
typedef struct TF_StringView {
  const char* data;
  size_t len;
} TF_StringView;

// TF_Code, TF_DataType and TF_Bool are plain integers in the ABI.
enum {
  kTfOk = 0,
  kTfUnknown = 2,
  kTfInvalidArgument = 3,
  kTfDeadlineExceeded = 4,
  kTfFailedPrecondition = 9,
  kTfInternal = 13,
};

TF_Status* TF_NewStatus(void);
void TF_DeleteStatus(TF_Status* status);
void TF_SetStatus(TF_Status* status, int code, const char* message);
int TF_GetCode(const TF_Status* status);
const char* TF_Message(const TF_Status* status);

void TF_DeleteTensor(TF_Tensor* tensor);
int TF_TensorType(const TF_Tensor* tensor);
int TF_NumDims(const TF_Tensor* tensor);
int64_t TF_Dim(const TF_Tensor* tensor, int index);
size_t TF_TensorByteSize(const TF_Tensor* tensor);
void* TF_TensorData(const TF_Tensor* tensor);
int64_t TF_TensorElementCount(const TF_Tensor* tensor);

TF_OpDefinitionBuilder* TF_NewOpDefinitionBuilder(const char* name);
void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder* builder, const char* spec);
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder* builder, const char* spec);
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder* builder, const char* spec);
// Makes the op stateful whatever the argument is; do not call it for a stateless op.
void TF_OpDefinitionBuilderSetIsStateful(TF_OpDefinitionBuilder* builder, bool stateful);
void TF_OpDefinitionBuilderSetShapeInferenceFunction(TF_OpDefinitionBuilder* builder,
                                                     void (*function)(TF_ShapeInferenceContext*,
                                                                      TF_Status*));
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder* builder, TF_Status* status);

int64_t TF_ShapeInferenceContextNumInputs(TF_ShapeInferenceContext* context);
TF_ShapeHandle* TF_NewShapeHandle(void);
void TF_DeleteShapeHandle(TF_ShapeHandle* handle);
void TF_ShapeInferenceContextGetInput(TF_ShapeInferenceContext* context, int index,
                                      TF_ShapeHandle* handle, TF_Status* status);
void TF_ShapeInferenceContextSetOutput(TF_ShapeInferenceContext* context, int index,
                                       TF_ShapeHandle* handle, TF_Status* status);
TF_ShapeHandle* TF_ShapeInferenceContextScalar(TF_ShapeInferenceContext* context);
void TF_ShapeInferenceContextSetUnknownShape(TF_ShapeInferenceContext* context, TF_Status* status);

TF_KernelBuilder* TF_NewKernelBuilder(const char* op, const char* device,
                                      void* (*create)(TF_OpKernelConstruction*),
                                      void (*compute)(void*, TF_OpKernelContext*),
                                      void (*destroy)(void*));
TF_KernelBuilder* TF_NewAsyncKernelBuilder(const char* op, const char* device,
                                           void* (*create)(TF_OpKernelConstruction*),
                                           void (*compute)(void*, TF_OpKernelContext*,
                                                           TF_AsyncOpKernelDoneCallback*),
                                           void (*destroy)(void*));
void TF_KernelBuilder_TypeConstraint(TF_KernelBuilder* builder, const char* attribute, int type,
                                     TF_Status* status);
void TF_KernelBuilder_HostMemory(TF_KernelBuilder* builder, const char* argument);
void TF_RegisterKernelBuilder(const char* name, TF_KernelBuilder* builder, TF_Status* status);
void TF_RunAsyncOpKernelDoneCallback(TF_AsyncOpKernelDoneCallback* done);

void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction* context, TF_Status* status);
void TF_OpKernelConstruction_GetAttrType(TF_OpKernelConstruction* context, const char* name,
                                         int* value, TF_Status* status);
void TF_OpKernelConstruction_GetAttrInt64(TF_OpKernelConstruction* context, const char* name,
                                          int64_t* value, TF_Status* status);
void TF_OpKernelConstruction_GetAttrSize(TF_OpKernelConstruction* context, const char* name,
                                         int32_t* list_size, int32_t* total_size,
                                         TF_Status* status);
void TF_OpKernelConstruction_GetAttrString(TF_OpKernelConstruction* context, const char* name,
                                           char* value, size_t max_length, TF_Status* status);

TF_StringView TF_OpKernelConstruction_GetName(TF_OpKernelConstruction* context);

int64_t TF_StepId(TF_OpKernelContext* context);
uint64_t TF_GetFrameId(TF_OpKernelContext* context);
int64_t TF_GetIterId(TF_OpKernelContext* context);
int TF_NumInputs(TF_OpKernelContext* context);
void TF_GetInput(TF_OpKernelContext* context, int index, TF_Tensor** tensor, TF_Status* status);
void TF_OpKernelContext_Failure(TF_OpKernelContext* context, TF_Status* status);
TF_Tensor* TF_AllocateOutput(TF_OpKernelContext* context, int index, int dtype, const int64_t* dims,
                             int num_dims, size_t bytes, TF_Status* status);
TF_Tensor* TF_ForwardInputOrAllocateOutput(TF_OpKernelContext* context, const int* candidate_inputs,
                                           int num_candidates, int output, const int64_t* dims,
                                           int num_dims, int* forwarded, TF_Status* status);

}  // extern "C"
