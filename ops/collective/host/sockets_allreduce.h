#pragma once

#include <memory>
#include <string>

#include "collective/host/allreduce.h"

namespace smddp {

// sockets: reduces on each socket, exchanges between sockets, gathers on each socket.
class SocketsAllreduce : public Pipeline {
 public:
  SocketsAllreduce(ChannelResources* resources, const Request* request);

  // Why it cannot serve, or should not since more than this share of the bytes would still cross
  // between sockets; "" if it can, or should.
  static std::string Cannot(const ChannelResources& resources, const Request& request);
  static std::string DoesNotPay(const ChannelResources& resources, const Request& request,
                                double share);

  // Bytes that this rank has read from slots of other sockets' ranks.
  size_t far_bytes() const { return far_bytes_; }

 protected:
  void Stage(size_t i) override;
  bool Combine(size_t i) override;
  void Unpack(size_t i, int owner) override;

 private:
  // How a chunk is divided, and where its parts lie in a slot.
  struct Layout {
    size_t element;        // bytes, in the tensor's type
    size_t partial;        // bytes of an element of a partial sum
    bool wide;             // partial sums are in the accumulator's type
    size_t chunk;          // elements
    size_t partial_bytes;  // of the largest part
    Layout(const ChannelResources& resources, const Request& request);
  };
  SocketsAllreduce(ChannelResources* resources, const Request* request, const Layout& layout);

  size_t ChunkBegin(size_t i) const { return i * layout_.chunk; }
  // Of owner j's share of chunk i, the part that is summed on socket t: a logical range, in
  // elements.
  Range Part(size_t i, int j, int t) const;
  Range Share(size_t i, int j) const;
  // Where a rank's slot has a range of chunk i: staged for the ranks of its socket, or a result.
  char* Near(int local_rank, size_t i, Range range) const;
  // Where it has, for another socket's rank, the partial sums of the part that is summed on socket
  // t; for its own socket the result.
  char* Far(int local_rank, size_t i, int t) const;
  // The owner of this rank's share on socket t.
  int Counterpart(int t) const { return topo_.sockets[t][topo_.socket_rank]; }
  bool CounterpartsAre(std::atomic<uint64_t> SocketCell::* counter, size_t i) const;

  // The steps of Combine; each returns false if it cannot be taken yet.
  bool TryReduce();
  bool TrySum();
  bool TryGather();
  void ReduceOnSocket(size_t i, Range part, char* to, bool streams);

  const Layout layout_;
  SpanList spans_;
  ReducePlan plan_;
  bool owner_;                       // of a share
  bool streams_;                     // what other sockets read is written past the cache
  std::unique_ptr<char[]> scratch_;  // for the partial sums of one part
  size_t reduced_ = 0, summed_ = 0, gathered_ = 0;  // chunks that have got so far
  size_t far_bytes_ = 0;
};

}  // namespace smddp
