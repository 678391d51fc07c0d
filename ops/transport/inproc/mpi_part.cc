#include "transport/inproc/mpi_part.h"

#include <algorithm>

namespace smddp {
namespace {

bool TakenInPlace(const void* send, const void* recv) {
  return send == MpiPart::InPlace() || send == recv;
}

size_t Bytes(int n) { return static_cast<size_t>(n); }

}  // namespace

MpiPart MpiPart::Allgather(const void* send, int count, void* recv, int rank, int size) {
  std::vector<int> counts(size, count), offsets;
  for (int r = 0; r < size; ++r) offsets.push_back(r * count);
  MpiPart part = AllgatherV(send, count, recv, counts.data(), offsets.data(), rank, size);
  part.call = "allgather " + std::to_string(count);
  return part;
}

MpiPart MpiPart::AllgatherV(const void* send, int count, void* recv, const int* counts,
                            const int* offsets, int rank, int size) {
  MpiPart part;
  part.call = "allgatherv";
  part.recv = static_cast<char*>(recv);
  bool in_place = TakenInPlace(send, recv);
  part.send = in_place ? part.recv + offsets[rank] : static_cast<const char*>(send);
  size_t own = Bytes(in_place ? counts[rank] : count);
  part.to.assign(size, {0, own});
  for (int r = 0; r < size; ++r) part.from.push_back({Bytes(offsets[r]), Bytes(counts[r])});
  if (in_place) {
    part.to[rank].bytes = part.from[rank].bytes = 0;
  } else {
    part.CheckOverlap();
  }
  return part;
}

MpiPart MpiPart::AlltoallV(const void* send, const int* send_counts, const int* send_offsets,
                           void* recv, const int* recv_counts, const int* recv_offsets, int size) {
  MpiPart part;
  part.call = "alltoallv";
  part.recv = static_cast<char*>(recv);
  // In place, a rank sends as much as it receives, from where it receives it.
  bool in_place = TakenInPlace(send, recv);
  part.send = in_place ? part.recv : static_cast<const char*>(send);
  const int* counts = in_place ? recv_counts : send_counts;
  const int* offsets = in_place ? recv_offsets : send_offsets;
  for (int r = 0; r < size; ++r) {
    part.to.push_back({Bytes(offsets[r]), Bytes(counts[r])});
    part.from.push_back({Bytes(recv_offsets[r]), Bytes(recv_counts[r])});
  }
  if (!in_place) part.CheckOverlap();
  return part;
}

MpiPart MpiPart::Broadcast(void* buffer, int count, int root, int rank, int size) {
  MpiPart part;
  part.call = "broadcast " + std::to_string(count) + " from " + std::to_string(root);
  part.root = root;
  part.send = part.recv = static_cast<char*>(buffer);
  part.to.resize(size);
  part.from.resize(size);
  for (int r = 0; r < size && rank == root; ++r) {
    if (r != root) part.to[r] = {0, Bytes(count)};
  }
  if (rank != root) part.from[root] = {0, Bytes(count)};
  return part;
}

std::string MpiPart::Differs(const MpiPart& source, int from_rank, const MpiPart& self, int rank) {
  size_t sent = source.to[rank].bytes, expected = self.from[from_rank].bytes;
  if (source.call != self.call) {
    return "rank " + std::to_string(from_rank) + " of the group called " + source.call +
           " where rank " + std::to_string(rank) + " called " + self.call;
  }
  if (sent == expected) return "";
  return "rank " + std::to_string(from_rank) + " of the group sends " + std::to_string(sent) +
         " bytes in " + self.call + " to rank " + std::to_string(rank) + ", which expects " +
         std::to_string(expected);
}

size_t MpiPart::Extent(const std::vector<MpiBlock>& blocks) {
  size_t extent = 0;
  for (const MpiBlock& block : blocks) {
    if (block.bytes > 0) extent = std::max(extent, block.at + block.bytes);
  }
  return extent;
}

void MpiPart::CheckOverlap() {
  for (const MpiBlock& sent : to) {
    for (const MpiBlock& received : from) {
      const char *a = send + sent.at, *b = recv + received.at;
      if (sent.bytes == 0 || received.bytes == 0) continue;
      if (a < b + received.bytes && b < a + sent.bytes) misuse = call + ": the buffers overlap";
    }
  }
}

}  // namespace smddp
