// Alltoalls for tests: who sends how much to whom, and what comes of it.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "collective/request.h"

namespace smddp_test {

using NodeOf = std::vector<int>;  // by rank

enum class Parts { kTiny, kEven, kEvenChunks, kUneven, kOneLarge, kNear, kNone, kSparse };
constexpr Parts kParts[] = {Parts::kTiny,     Parts::kEven, Parts::kEvenChunks, Parts::kUneven,
                            Parts::kOneLarge, Parts::kNear, Parts::kNone,       Parts::kSparse};

// Elements from rank r to rank p at [r * size + p].
inline std::vector<size_t> PartsOf(Parts kind, const NodeOf& nodes) {
  std::mt19937 random(static_cast<unsigned>(kind) * 31 + static_cast<unsigned>(nodes.size()));
  size_t n = nodes.size();
  std::vector<size_t> parts(n * n);
  for (size_t r = 0; r < n; ++r) {
    for (size_t p = 0; p < n; ++p) {
      size_t& part = parts[r * n + p];
      bool empty = r == 1 || p == n - 1 || random() % 4 == 0;  // a row, a column, and any
      if (kind == Parts::kTiny) part = 1 + (r + p) % 3;
      if (kind == Parts::kEven) part = 100;
      if (kind == Parts::kEvenChunks) part = 2500;
      if (kind == Parts::kUneven && !empty) part = random() % 1500;
      if (kind == Parts::kOneLarge) part = r == 0 && p == n - 1 ? 9001 : (r + p) % 2;
      if (kind == Parts::kSparse && random() % 4 == 0) part = random() % 30000;
      if (kind == Parts::kNear && nodes[r] == nodes[p]) part = 3000;
    }
  }
  return parts;
}

// One rank's part in an alltoall: what it sends, and what it has to receive.
struct Exchanged {
  smddp::Request request;
  std::vector<char> in, out, want;

  Exchanged(const std::vector<size_t>& parts, smddp::DType dtype, size_t self) {
    size_t element = smddp::Info(dtype).size, n = 1;
    while (n * n < parts.size()) ++n;
    request.kind = smddp::Kind::kAlltoall;
    request.dtype = dtype;
    request.name = "x";
    for (size_t elements : parts) request.part_bytes.push_back(elements * element);
    for (size_t p = 0; p < n; ++p) {
      Append(&in, self, p, request.part_bytes[self * n + p]);
      Append(&want, p, self, request.part_bytes[p * n + self]);
    }
    out.assign(want.size(), '?');
    int64_t count = static_cast<int64_t>(in.size() / element);
    request.tensors = {{in.data(), out.data(), {count}}};
  }

  // Has each part of both in memory of its own; then Join() them.
  void Divide(size_t self) {
    size_t n = 1, at = 0;
    while (n * n < request.part_bytes.size()) ++n;
    for (size_t p = 0; p < n; ++p) {
      size_t bytes = request.part_bytes[self * n + p];
      inputs.emplace_back(in.begin() + at, in.begin() + at + bytes);
      outputs.emplace_back(request.part_bytes[p * n + self], '?');
      at += bytes;
    }
    for (size_t p = 0; p < n; ++p) {
      request.part_inputs.push_back(inputs[p].data());
      request.part_outputs.push_back(outputs[p].data());
    }
  }
  void Join() {
    out.clear();
    for (const auto& part : outputs) out.insert(out.end(), part.begin(), part.end());
  }
  std::vector<std::vector<char>> inputs, outputs;

 private:
  static void Append(std::vector<char>* to, size_t from, size_t target, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) {
      to->push_back(static_cast<char>(i % 251 + from * 31 + target * 7));
    }
  }
};

inline std::string Name(const NodeOf& nodes, Parts kind) {
  std::string text = "parts " + std::to_string(static_cast<int>(kind)) + ", nodes";
  for (int node : nodes) text += " " + std::to_string(node);
  return text;
}

}  // namespace smddp_test
