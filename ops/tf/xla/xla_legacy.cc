// XLA's older custom call, of TensorFlow 2.15 to 2.17. The registry is reached through two symbols
// of the loaded TensorFlow, and the call's arguments arrive as text.
#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <utility>  // for move

#include "core/c_numbers.h"
#include "core/guarded.h"
#include "tf/runtime/gnu_abi.h"
#include "tf/xla/xla_call.h"

namespace smddp_tf {
namespace {

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

// What the call's text says about its tensors.
struct Arguments {
  Arguments(const char* opaque, size_t length) : fields(ParseFields(opaque, length)) {
    for (const std::string& shape : Split(fields["shapes"], ',')) dims.push_back(ParseShape(shape));
  }
  std::map<std::string, std::string> fields;
  std::vector<std::vector<int64_t>> dims;
};

int RunFromXla(Arguments arguments, const void* const* in, void* const* results, int memory,
               void* stream) {
  auto& [fields, dims] = arguments;
  std::vector<smddp_tensor> tensors;
  for (size_t i = 0; i < dims.size(); ++i) {
    tensors.push_back({in[i], results[i], static_cast<int32_t>(dims[i].size()), dims[i].data()});
  }
  smddp::CNumbers as_in_c;
  std::string name = Unescape(fields["name"]), description = Unescape(fields["description"]);
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
  request.description = description.c_str();
  request.memory = memory;
  request.stream = stream;
  const int rank = std::atoi(fields["rank"].c_str()), size = std::atoi(fields["size"].c_str());
  return RunXlaRequest(request, tensors, rank, size, in[dims.size()], results[dims.size()]);
}

// `status` is XLA's XlaCustomCallStatus, which has been a std::optional<std::string> since before
// TensorFlow 2.15; setting it makes the program fail with that message, as an InternalError.
template <typename Fn>
void Report(void* status, Fn&& run) {
  auto* told = static_cast<GnuOptionalString*>(status);
  smddp::Guarded(
      [&] {
        if (run() != SMDDP_OK) told->Set(smddp_last_error());
      },
      [&](const smddp::Status& thrown) { told->Set(thrown.message().c_str()); });
}

// The token is a result too, so there is more than one, and `out` is an array.
void LegacyCall(void* out, const void** in, const char* opaque, size_t length, void* status) {
  void** results = static_cast<void**>(out);
  Report(status,
         [&] { return RunFromXla(Arguments(opaque, length), in, results, SMDDP_HOST, nullptr); });
}

// `buffers` are the operands, then the results.
void LegacyCudaCall(void* stream, void** buffers, const char* opaque, size_t length, void* status) {
  Report(status, [&] {
    Arguments arguments(opaque, length);
    void** results = buffers + arguments.dims.size() + 1;
    return RunFromXla(std::move(arguments), buffers, results, SMDDP_CUDA, stream);
  });
}

}  // namespace

std::string RegisterLegacyXlaCall(void* tensorflow) {
  static bool registered = false;
  if (registered) return "";
  using Global = void* (*)();
  using Register = void (*)(void*, const GnuString&, void*, const GnuString&);
  auto global =
      reinterpret_cast<Global>(dlsym(tensorflow, "_ZN3xla24CustomCallTargetRegistry6GlobalEv"));
  auto add = reinterpret_cast<Register>(
      dlsym(tensorflow,
            "_ZN3xla24CustomCallTargetRegistry8RegisterERKNSt7__cxx1112basic_stringIcSt11char_"
            "traitsIcESaIcEEEPvS8_"));
  if (global == nullptr || add == nullptr) {
    return "this TensorFlow does not show XLA's registry of custom calls";
  }
  add(global(), GnuString::View(kXlaTarget), reinterpret_cast<void*>(&LegacyCall),
      GnuString::View(kXlaHost));
  add(global(), GnuString::View(kXlaTarget), reinterpret_cast<void*>(&LegacyCudaCall),
      GnuString::View(kXlaCuda));
  registered = true;
  return "";
}

}  // namespace smddp_tf
