// XLA's typed custom call, of TensorFlow 2.18 and later. Failures keep their error code.
#include <dlfcn.h>

#include <atomic>
#include <cstring>

#include "core/guarded.h"
#include "tf/runtime/op_kernel.h"
#include "tf/xla/xla_call.h"
#include "tf/xla/xla_ffi_api.h"

namespace smddp_tf {
namespace {

using namespace xla_ffi;

// The API of the loaded XLA, which runs handlers of its own version and of the older ones that it
// lists; the parts used here are the same in all of them.
std::atomic<const Api*> loaded{nullptr};

Error* Failure(const Api* api, int code, const char* message) {
  CreateErrorArguments error = {};
  error.struct_size = sizeof error;
  error.message = message;
  error.code = TensorFlowCode(code);
  return api->create_error(&error);
}

// The call's attributes, as named by smddp_tf/_src/graph/xla.py.
struct Reader {
  const CallAttributes& attributes;
  bool complete = true;

  const void* Find(const char* name, int kind) {
    for (int64_t i = 0; i < attributes.size; ++i) {
      const Text& known = *attributes.names[i];
      if (attributes.kinds[i] == kind && known.size == std::strlen(name) &&
          std::memcmp(known.data, name, known.size) == 0) {
        return attributes.values[i];
      }
    }
    complete = false;
    return nullptr;
  }

  template <typename T>
  T Number(const char* name, int dtype) {
    auto* scalar = static_cast<const Scalar*>(Find(name, kScalarAttribute));
    T value = 0;
    if (scalar != nullptr && scalar->dtype == dtype) {
      std::memcpy(&value, scalar->value, sizeof value);
    } else {
      complete = false;
    }
    return value;
  }
  int32_t Int(const char* name) { return static_cast<int32_t>(Number<int64_t>(name, kInt64)); }

  std::string String(const char* name) {
    auto* text = static_cast<const Text*>(Find(name, kStringAttribute));
    return text == nullptr ? "" : std::string(text->data, text->size);
  }
};

bool KnownLayout(const Call& call) {
  return call.arguments.struct_size == sizeof(Buffers) &&
         call.results.struct_size == sizeof(Buffers) &&
         call.attributes.struct_size == sizeof(CallAttributes) && call.arguments.size >= 2 &&
         call.results.size == call.arguments.size &&
         call.arguments.buffers[0]->struct_size == sizeof(Buffer);
}

// Sets where the tensors are.
Error* SetMemory(const Call& call, int memory, smddp_request* request) {
  request->memory = memory;
  if (memory == SMDDP_HOST) return nullptr;
  StreamArguments arguments = {};
  arguments.struct_size = sizeof arguments;
  arguments.context = call.context;
  Error* error = loaded.load()->get_stream(&arguments);
  request->stream = arguments.stream;
  return error;
}

Error* Run(Call* call, int memory) {
  const Extension* extension = call->extensions;
  if (extension != nullptr && extension->type == kMetadataExtension) {
    Metadata* metadata = reinterpret_cast<MetadataExtension*>(call->extensions)->metadata;
    const Version& version = loaded.load()->version;
    metadata->version.major = version.major;
    metadata->version.minor = version.minor;
    metadata->traits = 0;
    return nullptr;
  }

  const Api* api = loaded.load();
  if (!KnownLayout(*call)) {
    return Failure(api, SMDDP_SYSTEM,
                   "XLA passes the arguments of custom calls in a layout that is not known here; "
                   "compile with jit_compile=False");
  }

  Reader reader{call->attributes};
  smddp_request request = {};
  request.kind = reader.Int("kind");
  request.dtype = reader.Int("dtype");
  request.op = reader.Int("op");
  request.root = reader.Int("root");
  request.process_set = reader.Int("process_set");
  request.prescale = reader.Number<double>("prescale", kFloat64);
  request.postscale = reader.Number<double>("postscale", kFloat64);
  request.matching = reader.Int("matching");
  const int rank = reader.Int("rank"), size = reader.Int("size");
  std::string name = reader.String("name");
  std::string description = reader.String("description");
  request.name = name.c_str();
  request.description = description.c_str();

  if (Error* error = SetMemory(*call, memory, &request); error != nullptr) return error;

  if (!reader.complete) {
    return Failure(api, SMDDP_SYSTEM, "an argument of a collective is missing in XLA's program");
  }
  std::vector<smddp_tensor> tensors;
  int64_t count = call->arguments.size - 1;
  for (int64_t i = 0; i < count; ++i) {
    const Buffer& in = *call->arguments.buffers[i];
    tensors.push_back(
        {in.data, call->results.buffers[i]->data, static_cast<int32_t>(in.rank), in.dims});
  }
  int code = RunXlaRequest(request, tensors, rank, size, call->arguments.buffers[count]->data,
                           call->results.buffers[count]->data);
  return code == SMDDP_OK ? nullptr : Failure(api, code, smddp_last_error());
}

template <int kMemory>
Error* TypedCall(Call* call) {
  return smddp::Guarded([&] { return Run(call, kMemory); },
                        [](const smddp::Status& thrown) {
                          return Failure(loaded, SMDDP_SYSTEM, thrown.message().c_str());
                        });
}

// Returns "", or XLA's error message.
std::string Register(const Api* api, const char* platform, Handler* handler) {
  RegisterArguments arguments = {};
  arguments.struct_size = sizeof arguments;
  arguments.name = {kXlaTarget, std::strlen(kXlaTarget)};
  arguments.platform = {platform, std::strlen(platform)};
  arguments.execute = handler;
  Error* error = api->register_handler(&arguments);
  if (error == nullptr) return "";
  ErrorMessageArguments message = {};
  message.struct_size = sizeof message;
  message.error = error;
  api->error_message(&message);
  std::string text = std::string("XLA refuses the custom call: ") + message.message;
  DestroyErrorArguments destroy = {};
  destroy.struct_size = sizeof destroy;
  destroy.error = error;
  api->destroy_error(&destroy);
  return text;
}

}  // namespace

std::string RegisterTypedXlaCall(void* tensorflow) {
  static bool registered = false;
  if (registered) return "";
  using Get = const Api* (*)();
  auto get = reinterpret_cast<Get>(dlsym(tensorflow, "_ZN3xla3ffi12GetXlaFfiApiEv"));
  if (get == nullptr) return "this TensorFlow does not show XLA's typed custom calls";
  const Api* api = get();
  // TensorFlow 2.17 has an earlier draft, without a version.
  if (api->struct_size < sizeof(Api) || api->version.struct_size != sizeof(Version) ||
      api->version.major != 0) {
    return "XLA's typed custom calls have another layout in this TensorFlow";
  }
  loaded = api;
  std::string problem = Register(api, kXlaHost, TypedCall<SMDDP_HOST>);
  if (problem.empty()) problem = Register(api, kXlaCuda, TypedCall<SMDDP_CUDA>);
  registered = problem.empty();
  return problem;
}

}  // namespace smddp_tf
