#include "program.h"

#include <algorithm>
#include <sstream>

namespace smddp_sim {
namespace {

using smddp::DType;
using smddp::Info;
using smddp::Kind;
using smddp::ReduceOp;

constexpr DType kReducible[] = {DType::kFloat32, DType::kFloat64, DType::kInt32,
                                DType::kInt64,   DType::kUint8,   DType::kInt8,
                                DType::kInt16,   DType::kFloat16, DType::kBfloat16};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kSum, ReduceOp::kAverage,
                             ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed * 2 + 1) { program_.seed = seed; }

  Program Make() {
    MakeJob();
    int count = 3 + random_.Below(8);
    for (int i = 0; i < count; ++i) AddItem();
    // A step that failed is given up when the next one begins.
    Add(Item::Type::kPlan);
    AddJoins();
    AddStops();
    MakeFaults();
    PlaceOnDevices();
    return std::move(program_);
  }

 private:
  void MakeJob() {
    program_.size = 1 + random_.Below(8);
    int nodes = random_.Chance(0.5) ? 1 : 1 + random_.Below(std::min(4, program_.size));
    program_.num_nodes = nodes;
    // Every node has a rank; the others go anywhere, or evenly.
    bool even = random_.Chance(0.4);
    for (int r = 0; r < program_.size; ++r) {
      program_.node_of.push_back(even || r < nodes ? r % nodes : random_.Below(nodes));
    }
    if (random_.Chance(0.5)) std::sort(program_.node_of.begin(), program_.node_of.end());
    const size_t chunks[] = {512, 1024, 4096};
    program_.chunk_bytes = chunks[random_.Below(3)];
    const char* algorithms[] = {"", "", "shm", "shm", "handback"};
    if (nodes == 1) program_.forced_allreduce = algorithms[random_.Below(5)];
    program_.disseminates = nodes > 1 && random_.Chance(0.4);
    program_.reads_peers = nodes == 1 && random_.Chance(0.2);
    const double preemptions[] = {0, 0.05, 0.3};
    program_.preemption = preemptions[random_.Below(3)];
    const double delays[] = {20e-6, 1e-3, 50e-3};
    program_.network.longest_delay = delays[random_.Below(3)];
    program_.goes_on_after_failure = random_.Chance(0.6);
    program_.by_name = random_.Chance(0.4);
    // Several that are under way at once wait for each other's meetings, all within the timeout.
    double& delay = program_.network.longest_delay;
    if (program_.by_name) delay = std::min(delay, 10e-3), program_.timeout = 4.0;
  }

  int64_t Elements(DType dtype) {
    auto chunk = static_cast<int>(program_.chunk_bytes / Info(dtype).size);
    switch (random_.Below(6)) {
      case 0:
        return random_.Below(4);
      case 1:
        return random_.Below(2 * program_.size + 1);
      case 2:
        return chunk - 1 + random_.Below(3);
      case 3:
        return random_.Below(chunk * 9);
      default:
        return random_.Below(chunk * 3);
    }
  }

  void MakeGather(Call* call) {
    size_t n = static_cast<size_t>(program_.size);
    bool alltoall = call->kind == Kind::kAlltoall;
    // Read from peer to peer, if large.
    int limit = program_.reads_peers && random_.Chance(0.5) ? 80000 / program_.size : 700;
    if (alltoall) limit /= program_.size;
    // Some alltoalls have mostly empty parts, and some have a few of many chunks.
    double empty = alltoall && random_.Chance(0.3) ? 0.8 : 0.2;
    double large = alltoall && random_.Chance(0.3) ? 1.5 / static_cast<double>(n) : 0;
    int chunks = static_cast<int>(7 * program_.chunk_bytes / Info(call->dtype).size);
    for (size_t i = 0; i < (alltoall ? n * n : n); ++i) {
      int most = random_.Chance(large) ? std::max(limit, chunks) : limit;
      call->gather.push_back(random_.Chance(empty) ? 0 : random_.Below(most + 1));
    }
    call->dims = {{}};  // differs by rank
  }

  Call MakeCall(bool bucket) {
    Call call;
    const Kind kinds[] = {Kind::kAllreduce,     Kind::kAllreduce, Kind::kAllreduce,
                          Kind::kBroadcast,     Kind::kAllgather, Kind::kAlltoall,
                          Kind::kReduceScatter, Kind::kBarrier};
    if (!bucket) call.kind = kinds[random_.Below(8)];
    call.name = "op" + std::to_string(names_++);
    call.dtype = kReducible[random_.Below(8)];
    if (call.kind == Kind::kBarrier) return call;
    bool reduces = call.kind == Kind::kAllreduce || call.kind == Kind::kReduceScatter;
    if (reduces)
      call.op = bucket && random_.Chance(0.8) ? ReduceOp::kAverage : kOps[random_.Below(6)];
    bool narrow = Info(call.dtype).size < 4;
    // A quotient of 16-bit floats would have to be rounded.
    if (call.op == ReduceOp::kAverage && Info(call.dtype).size == 2) call.op = ReduceOp::kSum;
    if (reduces && !narrow && call.op == ReduceOp::kSum && random_.Chance(0.2)) call.prescale = 2.0;
    if (call.kind == Kind::kBroadcast) call.root = random_.Below(program_.size);
    call.in_place = call.kind != Kind::kReduceScatter && random_.Chance(0.5);
    if (call.kind == Kind::kAllgather || call.kind == Kind::kAlltoall) {
      call.in_place = false;
      MakeGather(&call);
      return call;
    }
    int tensors = 1 + random_.Below(3);
    for (int t = 0; t < tensors; ++t) {
      int64_t n = Elements(call.dtype) / tensors;
      if (random_.Chance(0.3)) {
        call.dims.push_back({n / 3, 3});
      } else {
        call.dims.push_back({n});
      }
    }
    return call;
  }

  // The same call with something else in it.
  Call MakeOdd(Call call, bool bucket) {
    bool gathers = !call.gather.empty();
    switch (random_.Below(6)) {
      case 0:
        if (call.dims.empty() || gathers) break;
        call.dims[0][0] += 1 + random_.Below(400);
        return call;
      case 1:
        if (call.kind == Kind::kBarrier) break;
        call.dtype = call.dtype == DType::kInt32 ? DType::kFloat32 : DType::kInt32;
        return call;
      case 2:
        if (call.kind != Kind::kAllreduce && call.kind != Kind::kReduceScatter) break;
        call.op = call.op == ReduceOp::kSum ? ReduceOp::kMax : ReduceOp::kSum;
        return call;
      case 3:
        if (call.kind != Kind::kBroadcast) break;
        call.root = (call.root + 1) % program_.size;
        if (program_.size == 1) break;
        return call;
      case 4:
        if (bucket || gathers || call.kind == Kind::kBarrier) break;
        call.kind = call.kind == Kind::kAllreduce ? Kind::kBroadcast : Kind::kAllreduce;
        return call;
      default:
        break;
    }
    if (program_.by_name && !bucket) {
      // Of a name that only one rank has the others would never hear.
      if (call.kind == Kind::kBarrier) call.dims = {{3}};
      if (call.kind == Kind::kBarrier) call.kind = Kind::kAllreduce;
      call.dtype = call.dtype == DType::kInt32 ? DType::kFloat32 : DType::kInt32;
    } else if (bucket) {
      call.op = call.op == ReduceOp::kSum ? ReduceOp::kMax : ReduceOp::kSum;
    } else {
      call.name += "x";
    }
    return call;
  }

  Item& Add(Item::Type type) {
    program_.items.emplace_back();
    Item& item = program_.items.back();
    item.type = type;
    item.id = static_cast<int>(program_.items.size()) - 1;
    item.absent.assign(program_.size, 0);
    if (type == Item::Type::kCall) item.call = MakeCall(false);
    if (IsByName(item)) MakeNamed(&item);
    if (type == Item::Type::kPlan) {
      int buckets = random_.Chance(0.1) ? 0 : 1 + random_.Below(5);
      for (int b = 0; b < buckets; ++b) item.buckets.push_back(MakeCall(true));
      if (random_.Chance(0.5)) item.call = MakeCall(false);
    }
    return item;
  }

  void MakeNamed(Item* item) {
    int count = 2 + random_.Below(4);
    std::vector<int> order;
    for (int i = 0; i < count; ++i) {
      item->buckets.push_back(MakeCall(false));
      order.push_back(i);
    }
    for (int r = 0; r < program_.size; ++r) {
      for (int i = count - 1; i > 0; --i) std::swap(order[i], order[random_.Below(i + 1)]);
      item->order.push_back(order);
    }
    item->waits = random_.Chance(0.5);
  }

  Item::Type NextType(double kind) {
    if (program_.by_name && random_.Chance(0.4)) {
      return random_.Chance(0.6) ? Item::Type::kPosted : Item::Type::kThreads;
    }
    return kind < 0.55 ? Item::Type::kCall : Item::Type::kPlan;
  }

  void AddItem() {
    double kind = random_.Unit();
    if (kind < 0.1) {
      Add(Item::Type::kJoin);
      return;
    }
    Item& item = Add(NextType(kind));
    if (!random_.Chance(0.2)) return;
    item.odd.rank = random_.Below(program_.size);
    bool named = IsByName(item);
    if (item.type == Item::Type::kCall) {
      item.odd.call = MakeOdd(item.call, false);
    } else if (!named && (item.buckets.empty() || random_.Chance(0.3))) {
      item.odd.more_buckets = item.buckets.empty() || random_.Chance(0.5) ? 1 : -1;
    } else {
      item.odd.bucket = random_.Below(static_cast<int>(item.buckets.size()));
      item.odd.call = MakeOdd(item.buckets[item.odd.bucket], !named);
    }
  }

  bool LeadsNode(int rank) const {
    const auto& nodes = program_.node_of;
    return std::find(nodes.begin(), nodes.end(), nodes[rank]) - nodes.begin() == rank;
  }

  // Some ranks have no data for the last items before a join.
  void AddJoins() {
    auto& items = program_.items;
    for (size_t j = 0; j < items.size(); ++j) {
      if (items[j].type != Item::Type::kJoin) continue;
      for (int r = 0; r < program_.size; ++r) {
        int early = random_.Chance(0.5) ? random_.Below(4) : 0;
        for (size_t i = j; early-- > 0 && i-- > 0 && items[i].type != Item::Type::kJoin;) {
          items[i].absent[r] = 1;
          // The sizes that the ranks tell each other before say so.
          if (items[i].call.kind == Kind::kAllgather) items[i].call.gather[r] = 0;
          for (Call& call : items[i].buckets) {
            if (call.kind == Kind::kAllgather) call.gather[r] = 0;
          }
          if (items[i].odd.call.kind == Kind::kAllgather) items[i].odd.call.gather[r] = 0;
        }
      }
    }
  }

  void AddStops() {
    auto& items = program_.items;
    for (size_t i = 0; i + 1 < items.size(); ++i) {
      bool told = items[i + 1].type == Item::Type::kPlan || items[i + 1].type == Item::Type::kJoin;
      bool plans = items[i].type == Item::Type::kPlan && told;
      if (!plans || !random_.Chance(0.2)) continue;
      int rank = random_.Below(program_.size);
      if (items[i].absent[rank] || items[i + 1].absent[rank]) continue;
      items[i].stop_rank = rank;
      items[i].stop_after = random_.Below(static_cast<int>(items[i].buckets.size()) + 1);
    }
  }

  void MakeFaults() {
    int count = random_.Chance(0.45) ? 0 : random_.Chance(0.8) ? 1 : 2;
    for (int i = 0; i < count; ++i) {
      Fault fault;
      const FaultKind kinds[] = {FaultKind::kPause, FaultKind::kStop,    FaultKind::kDie,
                                 FaultKind::kDie,   FaultKind::kNetwork, FaultKind::kLeave};
      fault.kind = kinds[random_.Below(6)];
      if (fault.kind == FaultKind::kNetwork && program_.num_nodes == 1)
        fault.kind = FaultKind::kDie;
      fault.rank = random_.Below(program_.size);
      fault.item = random_.Below(static_cast<int>(program_.items.size()));
      fault.delay = random_.Unit() * (random_.Chance(0.7) ? 300e-6 : 5e-3);
      bool stop = fault.kind == FaultKind::kStop;
      // A thread whose operation comes later than half a second is taken for none.
      double pause = program_.by_name ? 0.1 : 0.3;
      fault.seconds = program_.timeout * (stop ? 1.5 + random_.Unit() : pause * random_.Unit());
      program_.faults.push_back(fault);
    }
  }

  // With numbers of its own, so that the rest of a seed's program is the same without devices.
  void PlaceOnDevices() {
    Random random(program_.seed ^ 0xde51ce5);
    program_.on_devices = random.Chance(0.35);
    if (random.Chance(0.1)) program_.without_device = random.Below(program_.size);
    if (random.Chance(0.1)) program_.cannot_connect = random.Below(program_.size);
  }

  Random random_;
  Program program_;
  int names_ = 0;
};

void DescribeCall(const Call& call, std::ostream& out) {
  out << smddp::KindName(call.kind) << " '" << call.name << "' " << Info(call.dtype).name << " "
      << smddp::ReduceOpName(call.op) << " root " << call.root;
  for (const auto& dims : call.dims) {
    out << " [";
    for (size_t i = 0; i < dims.size(); ++i) out << (i ? "," : "") << dims[i];
    out << "]";
  }
  for (int64_t n : call.gather) out << " " << n;
}

}  // namespace

Program MakeProgram(uint64_t seed) { return Generator(seed).Make(); }

smddp::Request RequestOf(const Call& call, int size) {
  smddp::Request request;
  request.kind = call.kind;
  request.dtype = call.dtype;
  request.op = call.op;
  request.root = call.root;
  request.prescale = call.prescale;
  request.name = call.name;
  for (const auto& dims : call.dims) request.tensors.push_back({nullptr, nullptr, dims});
  for (int64_t n : call.gather) {
    request.part_bytes.push_back(static_cast<size_t>(n) * Info(call.dtype).size);
  }
  static_cast<void>(size);
  return request;
}

const char* FaultName(FaultKind kind) {
  constexpr const char* kNames[] = {"pauses", "is stopped", "dies", "loses its network", "leaves"};
  return kNames[static_cast<int>(kind)];
}

std::string Program::Describe() const {
  std::ostringstream out;
  out << size << " ranks on nodes";
  for (int node : node_of) out << " " << node;
  out << ", chunks of " << chunk_bytes << ", allreduce '" << forced_allreduce << "'"
      << (disseminates ? ", disseminates" : "") << (reads_peers ? ", single copy" : "")
      << (on_devices ? ", on devices" : "") << ", preemption " << preemption << ", delays to "
      << network.longest_delay << (goes_on_after_failure ? ", goes on" : ", leaves")
      << " after a failure\n";
  for (const Item& item : items) {
    out << "  item " << item.id << ": ";
    if (item.type == Item::Type::kJoin) out << "join";
    if (item.type == Item::Type::kThreads) out << "on two threads";
    if (item.type == Item::Type::kPosted) {
      out << "posted" << (item.waits ? ", waits;" : ";");
      for (const auto& order : item.order) {
        for (int i : order) out << " " << i;
        out << ";";
      }
    }
    if (!item.call.name.empty()) DescribeCall(item.call, out);
    for (const Call& bucket : item.buckets) {
      out << "\n    bucket: ";
      DescribeCall(bucket, out);
    }
    if (item.odd.rank >= 0) {
      out << "\n    rank " << item.odd.rank << " has instead, in bucket " << item.odd.bucket
          << " and with " << item.odd.more_buckets << " more: ";
      DescribeCall(item.odd.call, out);
    }
    if (item.stop_rank >= 0) {
      out << "\n    rank " << item.stop_rank << " fails after " << item.stop_after << " buckets";
    }
    for (int r = 0; r < size; ++r) {
      if (item.absent[r]) out << "\n    rank " << r << " has joined";
    }
    out << "\n";
  }
  for (const Fault& fault : faults) {
    out << "  rank " << fault.rank << " " << FaultName(fault.kind) << " " << fault.delay
        << " s after it began item " << fault.item << ", for " << fault.seconds << " s\n";
  }
  return out.str();
}

}  // namespace smddp_sim
