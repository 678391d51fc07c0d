#include "collective/request.h"

#include <algorithm>
#include <cstring>
#include <numeric>  // for accumulate
#include <sstream>

#include "core/c_numbers.h"

namespace smddp {
namespace {

// FNV-1a over the bytes of simple values, with a final mix (from the public-domain reference).
class Hash {
 public:
  void Bytes(const void* data, size_t n) {
    const auto* at = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < n; ++i) value_ = (value_ ^ at[i]) * 0x100000001b3ull;
  }
  template <typename T>
  void Add(T value) {
    // A word at a time, because a list of gradients has a thousand dimensions.
    uint64_t word = 0;
    std::memcpy(&word, &value, sizeof value);
    value_ = (value_ ^ word) * 0x9e3779b97f4a7c15ull;
    value_ ^= value_ >> 29;
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325ull;
};

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

size_t TensorArg::count() const {
  size_t n = 1;
  for (int64_t dim : dims) n *= static_cast<size_t>(dim);
  return n;
}

size_t Request::count() const {
  size_t n = 0;
  for (const TensorArg& tensor : tensors) n += tensor.count();
  return n;
}

size_t Request::joined_count() const {
  if (kind == Kind::kAllreduce || kind == Kind::kVote) return count();
  return part_bytes.empty() ? 0 : *std::min_element(part_bytes.begin(), part_bytes.end());
}

size_t Request::moved_bytes() const {
  if (!gathers()) return bytes();
  return std::accumulate(part_bytes.begin(), part_bytes.end(), size_t{0});
}

SpanList Request::Spans() const {
  std::vector<Span> spans;
  spans.reserve(tensors.size());
  for (const TensorArg& tensor : tensors) {
    spans.push_back(
        {static_cast<const char*>(tensor.in), static_cast<char*>(tensor.out), tensor.count()});
  }
  return SpanList(std::move(spans), Info(dtype).size);
}

std::vector<char*> Request::PartOutputs(int rank, int size) const {
  if (!part_outputs.empty() || tensors.empty()) return part_outputs;
  std::vector<char*> outputs;
  char* next = static_cast<char*>(tensors[0].out);
  for (int r = 0; r < size; ++r) {
    outputs.push_back(next);
    next += PartBytes(r, rank, size);
  }
  return outputs;
}

std::vector<const char*> Request::PartInputs(int rank, int size) const {
  if (!part_inputs.empty() || tensors.empty()) return part_inputs;
  std::vector<const char*> inputs;
  const char* next = static_cast<const char*>(tensors[0].in);
  for (int r = 0; r < size; ++r) {
    inputs.push_back(next);
    if (kind == Kind::kAlltoall) next += PartBytes(rank, r, size);
  }
  return inputs;
}

uint64_t Request::Key() const {
  if (has_joined()) return joined.key;
  if (subject != nullptr) return subject->Key();
  // The sizes gathered before an allgather are sent under the same name.
  return KeyOf(name, kind == Kind::kPartSizes);
}

uint64_t Request::KeyOf(const std::string& name, bool gathers_sizes) {
  Hash hash;
  hash.Bytes(name.data(), name.size());
  hash.Add(gathers_sizes);
  return hash.value();
}

uint64_t Request::Signature() const {
  if (has_joined()) return joined.signature;
  Hash hash;
  hash.Add(static_cast<int>(kind));
  if (subject != nullptr) {
    hash.Add(subject->Signature());
    return hash.value();
  }
  hash.Add(static_cast<int>(dtype));
  hash.Add(static_cast<int>(op));
  hash.Add(root);
  hash.Add(prescale);
  hash.Add(postscale);
  hash.Add(plan);
  hash.Add(run);
  hash.Add(bucket);
  hash.Bytes(name.data(), name.size());
  hash.Bytes(memory.data(), memory.size());
  if (plan == 0 && plan_text != nullptr) hash.Bytes(plan_text->data(), plan_text->size());
  for (size_t bytes : part_bytes) hash.Add(bytes);
  for (const TensorArg& tensor : tensors) {
    hash.Add(tensor.dims.size());
    // How many rows each rank has is in part_bytes.
    size_t first = gathers() ? 1 : 0;
    for (size_t i = first; i < tensor.dims.size(); ++i) hash.Add(tensor.dims[i]);
  }
  return hash.value();
}

// Called for every operation, so it avoids a stream, which costs as much as a small collective.
std::string Request::Title() const {
  if (has_joined()) return "join(): no more data, so only sums and averages are served";
  if (subject != nullptr) return subject->Title();
  std::string title;
  if (plan != 0) {
    title.append("gradient bucket ").append(std::to_string(bucket)).append(" of '").append(name);
    title.append("' (step ").append(std::to_string(run)).append(")");
  } else {
    title.append(KindName(kind)).append(" '").append(name).append("'");
  }
  if (process_set != 0) title.append(" of process set ").append(std::to_string(process_set));
  return title;
}

std::string Request::Describe() const {
  if (subject != nullptr) return subject->Describe();
  std::ostringstream out;
  out << Title();
  if (has_joined()) return out.str() + "\n";
  if (reduces()) {
    out << " op=" << ReduceOpName(op);
    if (prescale != 1.0) out << " prescale=" << ExactNumber(prescale);
    if (postscale != 1.0) out << " postscale=" << ExactNumber(postscale);
  }
  if (kind == Kind::kBroadcast) out << " root_rank=" << root;
  if (memory != "host") out << " in " << memory << " memory";
  bool words = plan_text != nullptr && plan_text->find('\n') == std::string::npos;
  if (words) out << " " << *plan_text;
  out << "\n";
  if (plan_text != nullptr && !words) out << *plan_text;
  // The text of a plan has all shapes; the sizes of parts, and messages, have none of their own.
  const bool message = kind == Kind::kSend || kind == Kind::kReceive;
  if (plan != 0 || kind == Kind::kPartSizes || message) return out.str();
  for (const TensorArg& tensor : tensors) {
    out << Info(dtype).name << " [";
    for (size_t i = 0; i < tensor.dims.size(); ++i) out << (i ? ", " : "") << tensor.dims[i];
    out << "]\n";
  }
  return out.str();
}

const char* KindName(Kind kind) {
  constexpr const char* kNames[] = {"allreduce", "broadcast",     "allgather", "barrier",
                                    "alltoall",  "reducescatter", "allgather", "vote",
                                    "send",      "recv"};
  return kNames[static_cast<int>(kind)];
}

const char* ReduceOpName(ReduceOp op) {
  constexpr const char* kNames[] = {"Average", "Sum", "Adasum", "Min", "Max", "Product"};
  return kNames[static_cast<int>(op)];
}

std::string ExplainMismatch(const std::vector<int>& ranks, const std::vector<std::string>& texts) {
  // Compares texts[0] with the first one that differs; two sides are enough for a message.
  size_t other = 0;
  for (size_t i = 1; i < texts.size() && other == 0; ++i) {
    if (texts[i] != texts[0]) other = i;
  }
  std::vector<std::string> a = Lines(texts[0]), b = Lines(texts[other]);
  std::ostringstream out;
  out << "Mismatched collectives: the ranks requested different collectives.";
  auto side = [&](size_t i) { return "rank " + std::to_string(ranks[i]) + " has "; };
  auto line = [](const std::vector<std::string>& lines, size_t i) {
    return i < lines.size() ? "[" + lines[i] + "]" : std::string("nothing");
  };
  const std::string& what_a = a.empty() ? texts[0] : a[0];
  const std::string& what_b = b.empty() ? texts[other] : b[0];
  if (what_a != what_b) {
    out << " " << side(0) << "[" << what_a << "], " << side(other) << "[" << what_b << "].";
  } else {
    out << " In [" << what_a << "]:";
  }
  int shown = 0;
  for (size_t i = 1; i < std::max(a.size(), b.size()) && shown < 4; ++i) {
    if (line(a, i) == line(b, i)) continue;
    out << " tensor " << i - 1 << ": " << side(0) << line(a, i) << ", " << side(other) << line(b, i)
        << ".";
    ++shown;
  }
  if (a.size() != b.size()) {
    out << " " << side(0) << (a.empty() ? 0 : a.size() - 1) << " tensors, " << side(other)
        << (b.empty() ? 0 : b.size() - 1) << ".";
  }
  out << " Every rank must call the same collectives, in the same order, with the same shapes, "
         "dtypes and options. Nothing was reduced; the job can go on.";
  return out.str();
}

}  // namespace smddp
