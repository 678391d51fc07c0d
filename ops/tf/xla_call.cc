// Collectives inside XLA programs (jit_compile=True), on the host.
//
// XLA runs no TensorFlow kernels; it calls a custom-call target. The target is registered through
// two symbols of the loaded TensorFlow, so no XLA header is needed and one binary serves all
// versions. The call's arguments arrive as text; smddp_tf/_xla.py writes it.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "capi/smddp.h"
#include "tf/register.h"

namespace {

constexpr const char* kTarget = "smddp_collective";

thread_local std::string register_error;

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

std::string Unescape(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      plain += static_cast<char>(std::strtol(text.substr(i + 1, 2).c_str(), nullptr, 16));
      i += 2;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

// "2x3" -> {2, 3}; "" -> {} (a scalar).
std::vector<int64_t> ParseShape(const std::string& text) {
  std::vector<int64_t> dims;
  if (text.empty()) return dims;
  for (const std::string& dim : Split(text, 'x')) dims.push_back(std::atoll(dim.c_str()));
  return dims;
}

std::map<std::string, std::string> ParseFields(const char* opaque, size_t length) {
  std::map<std::string, std::string> fields;
  for (const std::string& field : Split(std::string(opaque, length), ';')) {
    size_t equals = field.find('=');
    if (equals != std::string::npos) fields[field.substr(0, equals)] = field.substr(equals + 1);
  }
  return fields;
}

// Of allgather and alltoall: shapes are static, so all ranks have as much for each rank.
std::vector<int64_t> EvenParts(const smddp_request& request) {
  int size = smddp_process_set_ranks(request.process_set, nullptr, 0);
  size_t ranks = static_cast<size_t>(size < 1 ? 1 : size);
  int64_t bytes = static_cast<int64_t>(smddp_tf::SizeOf(request.dtype));
  const smddp_tensor& tensor = request.tensors[0];
  for (int i = 0; i < tensor.ndim; ++i) bytes *= tensor.dims[i];
  return request.kind == SMDDP_ALLGATHER
             ? std::vector<int64_t>(ranks, bytes)
             : std::vector<int64_t>(ranks * ranks, bytes / static_cast<int64_t>(ranks));
}

int RunFromXla(void* out, const void** in, const char* opaque, size_t length) {
  std::map<std::string, std::string> fields = ParseFields(opaque, length);
  std::vector<std::vector<int64_t>> dims;
  for (const std::string& shape : Split(fields["shapes"], ',')) dims.push_back(ParseShape(shape));
  std::vector<smddp_tensor> tensors;
  // The last operand and the last result are the token that orders the calls. There are always
  // several results, so `out` is a table.
  void** results = static_cast<void**>(out);
  for (size_t i = 0; i < dims.size(); ++i) {
    tensors.push_back({in[i], results[i], static_cast<int32_t>(dims[i].size()), dims[i].data()});
  }
  *static_cast<int32_t*>(results[dims.size()]) = 0;
  std::string name = Unescape(fields["name"]);
  smddp_request request = {};
  request.kind = std::atoi(fields["kind"].c_str());
  request.dtype = std::atoi(fields["dtype"].c_str());
  request.op = std::atoi(fields["op"].c_str());
  request.root = std::atoi(fields["root"].c_str());
  request.process_set = std::atoi(fields["process_set"].c_str());
  request.prescale = std::strtod(fields["prescale"].c_str(), nullptr);
  request.postscale = std::strtod(fields["postscale"].c_str(), nullptr);
  request.matching = std::atoi(fields["matching"].c_str());
  request.name = name.c_str();
  request.num_tensors = static_cast<int32_t>(tensors.size());
  request.tensors = tensors.data();
  std::vector<int64_t> parts = EvenParts(request);
  request.gather_bytes = parts.data();
  return smddp_run(&request);
}

}  // namespace

extern "C" {

// `status` is XLA's XlaCustomCallStatus, which has been a std::optional<std::string> since before
// TensorFlow 2.15; setting it makes the program fail with that message.
SMDDP_EXPORT void smddp_xla_call(void* out, const void** in, const char* opaque, size_t length,
                                 void* status) {
  int code = RunFromXla(out, in, opaque, length);
  if (code != SMDDP_OK) {
    *static_cast<std::optional<std::string>*>(status) = std::string(smddp_last_error());
  }
}

SMDDP_EXPORT const char* smddp_xla_error(void) { return register_error.c_str(); }

// 0, or 1 and smddp_xla_error(). `library` is the path of TensorFlow's libtensorflow_cc.so.2.
SMDDP_EXPORT int smddp_xla_register(const char* library) {
  static bool registered = false;
  if (registered) return 0;
  void* tensorflow = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  if (tensorflow == nullptr) {
    const char* why = dlerror();
    register_error = std::string(library) + " is not loaded: " + (why != nullptr ? why : "");
    return 1;
  }
  using Global = void* (*)();
  using Register = void (*)(void*, const std::string&, void*, const std::string&);
  auto global =
      reinterpret_cast<Global>(dlsym(tensorflow, "_ZN3xla24CustomCallTargetRegistry6GlobalEv"));
  auto add = reinterpret_cast<Register>(
      dlsym(tensorflow,
            "_ZN3xla24CustomCallTargetRegistry8RegisterERKNSt7__cxx1112basic_stringIcSt11char_"
            "traitsIcESaIcEEEPvS8_"));
  if (global == nullptr || add == nullptr) {
    register_error =
        "this TensorFlow does not show XLA's custom-call registry; compile with jit_compile=False";
    return 1;
  }
  add(global(), kTarget, reinterpret_cast<void*>(&smddp_xla_call), "Host");
  registered = true;
  return 0;
}

}  // extern "C"
