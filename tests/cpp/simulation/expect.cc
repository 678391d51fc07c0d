// Which operations of a program must succeed.
#include "program.h"

namespace smddp_sim {
namespace {

using smddp::Kind;
using smddp::ReduceOp;

bool OneHasJoined(const Program& program, const Item& item) {
  for (int r = 0; r < program.size; ++r) {
    if (item.absent[r]) return true;
  }
  return false;
}

int Participants(const Program& program, const Item& item) {
  int count = 0;
  for (int r = 0; r < program.size; ++r) count += !item.absent[r];
  return count;
}

// Ranks that have joined take part with zeros, or in what they only receive.
bool ServedByJoined(const Program& program, const Item& item, const Call& call) {
  if (!OneHasJoined(program, item) || call.kind == Kind::kBarrier) return true;
  bool sums = call.op == ReduceOp::kSum || call.op == ReduceOp::kAverage;
  if (call.kind == Kind::kAllreduce) return sums;
  if (program.num_nodes > 1) return false;
  if (call.kind == Kind::kBroadcast) return !item.absent[call.root];
  if (call.kind != Kind::kAllgather) return false;
  for (int64_t n : call.gather) {
    if (n == 0) return true;
  }
  return false;
}

bool OddOneTakesPart(const Program& program, const Item& item) {
  return item.odd.rank >= 0 && !item.absent[item.odd.rank] && Participants(program, item) > 1;
}

// What is asked for when all that take part agree.
int Speaker(const Program& program, const Item& item) {
  for (int r = 0; r < program.size; ++r) {
    if (!item.absent[r]) return r;
  }
  return 0;
}

}  // namespace

const Call& CallOf(const Item& item, int rank) {
  bool odd = item.type == Item::Type::kCall && item.odd.rank == rank;
  return odd ? item.odd.call : item.call;
}

std::vector<Call> BucketsOf(const Item& item, int rank) {
  std::vector<Call> buckets = item.buckets;
  if (item.odd.rank != rank || item.type == Item::Type::kCall) return buckets;
  if (item.odd.more_buckets < 0) {
    buckets.pop_back();
  } else if (item.odd.more_buckets > 0) {
    Call more;
    more.dims = {{5}};
    buckets.push_back(buckets.empty() ? more : buckets.back());
  } else {
    buckets[item.odd.bucket] = item.odd.call;
  }
  return buckets;
}

bool IsByName(const Item& item) {
  return item.type == Item::Type::kPosted || item.type == Item::Type::kThreads;
}

bool NamedSucceeds(const Program& program, const Item& item, int index) {
  if (OddOneTakesPart(program, item) && item.odd.bucket == index) return false;
  return ServedByJoined(program, item, BucketsOf(item, Speaker(program, item))[index]);
}

bool CallSucceeds(const Program& program, const Item& item) {
  if (item.type == Item::Type::kCall && OddOneTakesPart(program, item)) return false;
  return ServedByJoined(program, item, CallOf(item, Speaker(program, item)));
}

int FirstBadBucket(const Program& program, const Item& item) {
  int bad = kNoBucket;
  if (OddOneTakesPart(program, item)) bad = item.odd.more_buckets != 0 ? 0 : item.odd.bucket;
  std::vector<Call> buckets = BucketsOf(item, Speaker(program, item));
  int count = static_cast<int>(buckets.size());
  if (item.stop_rank >= 0 && item.stop_after < count) bad = std::min(bad, item.stop_after);
  for (int b = 0; b < count && b < bad; ++b) {
    if (!ServedByJoined(program, item, buckets[b])) bad = b;
  }
  return bad;
}

}  // namespace smddp_sim
