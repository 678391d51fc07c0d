#include "engine/part_sizes.h"

#include <algorithm>  // for min
#include <functional>
#include <string>
#include <utility>  // for move

#include "core/guarded.h"

namespace smddp {
namespace {

std::string Number(int64_t value) { return std::to_string(value); }

// A joined rank has no rows, of any shape.
bool HasJoined(const PartSizes& sizes) { return sizes[kNdim] == 0 && sizes[kRowElements] == 0; }

// Equal only for equal shapes of a row. The multiplier is that of Request's hashes.
int64_t HashOfRow(const std::vector<int64_t>& dims) {
  uint64_t hash = 0;
  for (size_t i = 1; i < dims.size(); ++i) {
    hash = (hash ^ static_cast<uint64_t>(dims[i])) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
  }
  return static_cast<int64_t>(hash);
}

bool SameRows(const PartSizes& a, const PartSizes& b) {
  return a[kNdim] == b[kNdim] && a[kRowElements] == b[kRowElements] && a[kRowHash] == b[kRowHash];
}

// "[3, 4, 5]".
std::string Shape(const PartSizes& sizes) {
  if (sizes[kNdim] == 0) return "[]";
  std::string text = "[" + Number(sizes[kRows]);
  size_t row_dims = static_cast<size_t>(sizes[kNdim]) - 1;
  for (size_t i = 0; i < std::min(row_dims, kShownRowDims); ++i) {
    text += ", " + Number(sizes[kFirstRowDim + i]);
  }
  if (row_dims > kShownRowDims) text += ", ... (" + Number(sizes[kNdim]) + " dimensions)";
  return text + "]";
}

// The error of two ranks whose rows have other shapes. `title` is how it begins.
Status OtherRows(const std::string& title, int job_rank_a, const PartSizes& a, int job_rank_b,
                 const PartSizes& b) {
  std::string text = title + ": rank " + Number(job_rank_a) + " has a tensor of shape " + Shape(a) +
                     ", rank " + Number(job_rank_b) + " one of " + Shape(b);
  return {Code::kMismatch, text + "; all dimensions but the first must agree"};
}

Status CheckAllgather(const std::vector<PartSizes>& all, const std::vector<int>& job_ranks,
                      const std::string& name) {
  size_t first = 0;  // of the ranks that have not joined
  while (first < all.size() && HasJoined(all[first])) ++first;
  for (size_t r = first + 1; r < all.size(); ++r) {
    if (HasJoined(all[r]) || SameRows(all[r], all[first])) continue;
    return OtherRows("Mismatched allgather '" + name + "'", job_ranks[first], all[first],
                     job_ranks[r], all[r]);
  }
  return {};
}

// The problem of a rank's splits, as the end of a sentence; "" if there is none.
std::string SplitsProblem(const PartSizes& sizes, int64_t ranks) {
  if (sizes[kGivenSplits] == 0 && sizes[kRows] % ranks != 0) {
    return Number(sizes[kRows]) + " rows, which " + Number(ranks) +
           " ranks do not divide; give splits";
  }
  if (sizes[kGivenSplits] != 0 && sizes[kGivenSplits] != ranks) {
    return Number(sizes[kGivenSplits]) + " splits for " + Number(ranks) +
           " ranks; give one for each";
  }
  int64_t sum = 0;
  for (size_t p = kFirstSplit; p < sizes.size(); ++p) {
    if (sizes[p] < 0) return "a split of " + Number(sizes[p]) + "; splits are not negative";
    sum += sizes[p];
  }
  if (sum == sizes[kRows]) return "";
  return "splits that sum to " + Number(sum) + " for " + Number(sizes[kRows]) +
         " rows; they must be equal";
}

Status CheckAlltoall(const std::vector<PartSizes>& all, const std::vector<int>& job_ranks,
                     const std::string& name) {
  for (size_t r = 0; r < all.size(); ++r) {
    const PartSizes& sizes = all[r];
    std::string who = "alltoall '" + name + "': rank " + Number(job_ranks[r]) + " has ";
    if (HasJoined(sizes)) return {Code::kUsage, who + "called join(), so it has nothing to send"};
    if (sizes[kNdim] == 0) {
      return {Code::kUsage, who + "a scalar; it takes tensors of at least one dimension"};
    }
    if (!SameRows(sizes, all[0])) {
      return OtherRows("Mismatched alltoall '" + name + "'", job_ranks[0], all[0], job_ranks[r],
                       sizes);
    }
    std::string problem = SplitsProblem(sizes, static_cast<int64_t>(all.size()));
    if (!problem.empty()) return {Code::kUsage, who + problem};
  }
  return {};
}

// One ragged collective: first its sizes are gathered, then it runs.
struct Ragged {
  std::shared_ptr<RankSet> set;
  std::unique_ptr<Operation> operation;  // the collective itself
  AllocateOutput allocate;
  PartSizes own;
  std::function<void(const Status&)> done;  // the operation's
  std::vector<int64_t> gathered;            // the sizes of all ranks, in their order

  std::vector<PartSizes> All() const {
    std::vector<PartSizes> all;
    for (auto at = gathered.begin(); at != gathered.end(); at += own.size()) {
      all.emplace_back(at, at + own.size());
    }
    return all;
  }
};

std::unique_ptr<Operation> GatherSizes(Ragged* ragged) {
  const Request& of = ragged->operation->request;
  size_t ranks = static_cast<size_t>(ragged->set->topology().size), width = ragged->own.size();
  ragged->gathered.resize(ranks * width);
  auto operation = std::make_unique<Operation>();
  Request& request = operation->request;
  request.kind = Kind::kPartSizes;
  request.dtype = DType::kInt64;
  request.process_set = of.process_set;
  request.matching = of.matching;
  request.plan_text = of.plan_text;
  request.timeout_seconds = of.timeout_seconds;
  request.name = of.kind == Kind::kAlltoall ? of.name + " (splits)" : of.name;
  request.tensors = {{ragged->own.data(), ragged->gathered.data(), {static_cast<int64_t>(width)}}};
  request.part_bytes.assign(ranks, width * sizeof(int64_t));
  return operation;
}

// Completes the collective's request with what the ranks have told.
Status Complete(Ragged* ragged) {
  const Topology& topo = ragged->set->topology();
  Request& request = ragged->operation->request;
  std::vector<PartSizes> all = ragged->All();
  Status status = CheckPartSizes(request.kind, all, topo.job_ranks, request.name);
  if (!status.ok()) return status;
  request.part_bytes = PartBytes(request.kind, all, Info(request.dtype).size);
  return ragged->allocate(RowsReceived(request.kind, all, topo.rank), &request.tensors[0].out);
}

}  // namespace

PartSizes OwnPartSizes(Kind kind, const std::vector<int64_t>& dims,
                       const std::vector<int32_t>& splits, int ranks) {
  bool alltoall = kind == Kind::kAlltoall;
  int64_t row = 1;
  for (size_t i = 1; i < dims.size(); ++i) row *= dims[i];
  int64_t rows = !dims.empty() ? dims[0] : alltoall ? 0 : 1;
  PartSizes own{static_cast<int64_t>(dims.size()), rows, row, HashOfRow(dims)};
  for (size_t i = 1; i <= kShownRowDims; ++i) own.push_back(i < dims.size() ? dims[i] : 0);
  if (!alltoall) return own;

  own.push_back(static_cast<int64_t>(splits.size()));
  for (size_t p = 0; p < static_cast<size_t>(ranks); ++p) {
    // Too few splits are found by CheckPartSizes, on all ranks.
    own.push_back(splits.empty() ? rows / ranks : p < splits.size() ? splits[p] : 0);
  }
  return own;
}

Status CheckPartSizes(Kind kind, const std::vector<PartSizes>& all,
                      const std::vector<int>& job_ranks, const std::string& name) {
  return kind == Kind::kAlltoall ? CheckAlltoall(all, job_ranks, name)
                                 : CheckAllgather(all, job_ranks, name);
}

std::vector<int64_t> RowsReceived(Kind kind, const std::vector<PartSizes>& all, int self) {
  size_t field = kind == Kind::kAlltoall ? kFirstSplit + static_cast<size_t>(self) : kRows;
  std::vector<int64_t> rows;
  for (const PartSizes& sizes : all) rows.push_back(sizes[field]);
  return rows;
}

std::vector<size_t> PartBytes(Kind kind, const std::vector<PartSizes>& all, size_t element_size) {
  std::vector<size_t> bytes;
  for (const PartSizes& sizes : all) {
    size_t row = static_cast<size_t>(sizes[kRowElements]) * element_size;
    if (kind != Kind::kAlltoall) {
      bytes.push_back(static_cast<size_t>(sizes[kRows]) * row);
      continue;
    }
    for (size_t p = kFirstSplit; p < sizes.size(); ++p) {
      bytes.push_back(static_cast<size_t>(sizes[p]) * row);
    }
  }
  return bytes;
}

void PostRagged(std::shared_ptr<RankSet> set, std::unique_ptr<Operation> operation,
                const std::vector<int32_t>& splits, AllocateOutput allocate) {
  const Request& request = operation->request;
  PartSizes own = OwnPartSizes(request.kind, request.tensors[0].dims, splits, set->topology().size);
  auto told = operation->done;
  auto ragged = std::make_shared<Ragged>(Ragged{std::move(set),
                                                std::move(operation),
                                                std::move(allocate),
                                                std::move(own),
                                                std::move(told),
                                                {}});
  std::unique_ptr<Operation> sizes = GatherSizes(ragged.get());
  sizes->done = [ragged](const Status& gathered) {
    auto run = [&] {
      Status status = gathered.ok() ? Complete(ragged.get()) : gathered;
      if (!status.ok()) return ragged->done(status);
      ragged->set->Post(std::move(ragged->operation));
    };
    Guarded(run, [&](const Status& thrown) {
      ragged->set->Break(thrown);
      ragged->done(thrown);
    });
  };
  ragged->set->Post(std::move(sizes));
}

}  // namespace smddp
