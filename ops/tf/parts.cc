#include "tf/parts.h"

#include <algorithm>

namespace smddp_tf {

std::vector<int32_t> RanksOf(const Attributes& attributes) {
  int set = static_cast<int>(attributes.process_set);
  int size = std::max(1, smddp_process_set_ranks(set, nullptr, 0));
  std::vector<int32_t> ranks(static_cast<size_t>(size));
  smddp_process_set_ranks(set, ranks.data(), size);
  return ranks;
}

int ExchangeNumbers(const Attributes& attributes, const char* what, const std::vector<int64_t>& own,
                    size_t size, std::vector<std::vector<int64_t>>* all) {
  Attributes named = attributes;
  if (*what != '\0') named.name += std::string(" (") + what + ")";
  std::vector<int64_t> flat(own.size() * size);
  int64_t bytes = static_cast<int64_t>(own.size() * sizeof(int64_t));
  std::vector<int64_t> parts(size, bytes);
  smddp_tensor tensor{own.data(), flat.data(), 1, &bytes};
  smddp_request request = MakeRequest(SMDDP_ALLGATHER, named, {});
  request.root = SMDDP_NUMBERS;  // so a rank that has joined knows what to say
  request.num_tensors = 1;
  request.tensors = &tensor;
  request.gather_bytes = parts.data();
  int code = smddp_run(&request);
  for (size_t r = 0; r < size; ++r) {
    all->emplace_back(flat.begin() + r * own.size(), flat.begin() + (r + 1) * own.size());
  }
  return code;
}

}  // namespace smddp_tf
