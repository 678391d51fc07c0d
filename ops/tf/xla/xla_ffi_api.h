// The part of XLA's typed FFI that the custom call uses, declared by hand.
//
// It is a C API whose structures contain their own size. It was tested with TensorFlow 2.18 to 2.21
// (versions 0.0 to 0.2 of the API) and a nightly build of 2.22 (0.4), and is documented in XLA's
// xla/ffi/api/c_api.h. Sizes are compared before anything is read, so a different layout is an
// error.
#pragma once

#include <cstddef>
#include <cstdint>

namespace smddp_tf::xla_ffi {

enum { kMetadataExtension = 1 };
enum { kScalarAttribute = 3, kStringAttribute = 4 };
enum { kInt64 = 5, kFloat64 = 12 };

struct Extension {
  size_t struct_size;
  int32_t type;
  Extension* next;
};

struct Text {
  const char* data;
  size_t size;
};

struct Version {
  size_t struct_size;
  Extension* extensions;
  int32_t major, minor;
};

struct Buffer {
  size_t struct_size;
  Extension* extensions;
  int32_t dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};

// Arguments or results.
struct Buffers {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  int32_t* kinds;
  Buffer** buffers;
};

struct Scalar {
  int32_t dtype;
  void* value;
};

struct CallAttributes {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  int32_t* kinds;
  Text** names;
  void** values;  // Scalar or Text
};

struct Api;

struct Call {
  size_t struct_size;
  Extension* extensions;
  const Api* api;
  void* context;
  int32_t stage;
  Buffers arguments;
  Buffers results;
  CallAttributes attributes;
};

struct Metadata {
  size_t struct_size;
  Version version;  // of the API that the handler was made for
  uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Error;
using Handler = Error*(Call*);

struct CreateErrorArguments {
  size_t struct_size;
  Extension* extensions;
  const char* message;
  int32_t code;  // a TF_Code
};

struct ErrorMessageArguments {
  size_t struct_size;
  Extension* extensions;
  Error* error;
  const char* message;
};

struct DestroyErrorArguments {
  size_t struct_size;
  Extension* extensions;
  Error* error;
};

struct RegisterArguments {
  size_t struct_size;
  Extension* extensions;
  Text name;
  Text platform;
  Handler* instantiate;
  Handler* prepare;
  Handler* initialize;
  Handler* execute;
  // Zeros: later versions have another handler here, and all have traits.
  void* zeros[8];
};

// Of a call on a GPU.
struct StreamArguments {
  size_t struct_size;
  Extension* extensions;
  void* context;  // the call's
  void* stream;   // the result: a CUstream
};

struct Api {
  size_t struct_size;
  Extension* extensions;
  Version version;  // of the API that the handler was built for
  const void* internal;
  Error* (*create_error)(CreateErrorArguments*);
  void (*error_message)(ErrorMessageArguments*);
  void (*destroy_error)(DestroyErrorArguments*);
  Error* (*register_handler)(RegisterArguments*);
  Error* (*get_stream)(StreamArguments*);
};

}  // namespace smddp_tf::xla_ffi
