// Allgather and alltoall of parts whose sizes differ: a rank knows the size of its own part only.
//
// The ranks gather a few integers from each other first (Kind::kPartSizes). Then each one knows how
// much it receives, has its caller allocate the output, and runs the collective itself. All ranks
// check the same sizes, so arguments that do not fit are the same error on all of them, and none is
// left waiting.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/rank_set.h"

namespace smddp {

// What a rank tells the others about its tensor. All ranks must agree on the shape of a row, the
// dimensions behind the first. Of those, its hash is compared, and the first few are shown in
// messages, since a rank cannot know how many its peers have. An alltoall adds the number of splits
// that its caller gave (0: even ones), and then the rows for each rank of the set.
using PartSizes = std::vector<int64_t>;
constexpr size_t kShownRowDims = 7;
enum PartSizesField : size_t {
  kNdim,
  kRows,
  kRowElements,
  kRowHash,
  kFirstRowDim,
  kGivenSplits = kFirstRowDim + kShownRowDims,
  kFirstSplit
};

// This rank's sizes, in a set of `ranks` ranks. `kind` is allgather or alltoall. A scalar counts as
// one row of an allgather.
PartSizes OwnPartSizes(Kind kind, const std::vector<int64_t>& dims,
                       const std::vector<int32_t>& splits, int ranks);

// Whether the ranks' sizes are valid and fit together; the same on every rank. all[r] is told by
// job rank job_ranks[r]; zeros stand for a rank that has joined.
Status CheckPartSizes(Kind kind, const std::vector<PartSizes>& all,
                      const std::vector<int>& job_ranks, const std::string& name);

// The rows that rank `self` receives from each rank.
std::vector<int64_t> RowsReceived(Kind kind, const std::vector<PartSizes>& all, int self);

// Request::part_bytes.
std::vector<size_t> PartBytes(Kind kind, const std::vector<PartSizes>& all, size_t element_size);

// Allocates the output, given the rows that come from each rank of the set. Called at most once, on
// any thread; not called if the collective fails before.
using AllocateOutput = std::function<Status(const std::vector<int64_t>& rows, void** out)>;

// Runs the operation, an allgather or alltoall of one tensor, whose part_bytes and output are
// still open. Otherwise like RankSet::Post.
void PostRagged(std::shared_ptr<RankSet> set, std::unique_ptr<Operation> operation,
                const std::vector<int32_t>& splits, AllocateOutput allocate);

}  // namespace smddp
