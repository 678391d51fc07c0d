// What goes to a peer is a stream of messages, each a header and its bytes, in the order of the
// operations. The sockets are not blocking: Test() moves what can be moved at once. No message is
// sent for no bytes.
#include "transport/tcp/tcp_group.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <numeric>  // for accumulate
#include <string>
#include <system_error>
#include <utility>  // for move

namespace smddp {
namespace {

constexpr size_t kMostAtOnce = size_t{1}
                               << 20;  // moved to or from a peer, before others have a turn
constexpr size_t kRelayBytes = size_t{64} << 10;  // larger broadcasts go from rank to rank
constexpr uint32_t kEvents = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;

struct Operation {
  size_t unfinished = 0;  // messages
  size_t received = 0;    // bytes of a broadcast, which may be sent on
};

struct Header {
  uint64_t operation, bytes;
};

struct Message {
  Operation* operation;
  Header header;
  char* data;
  bool relays = false;  // only what has been received can be sent
  size_t moved = 0;     // bytes of the header and of the data

  bool done() const { return moved == sizeof(Header) + header.bytes; }
  // Up to two buffers that come next: what is left of a header at `head`, and data.
  int Next(Header* head, iovec* parts) const {
    int count = 0;
    size_t at = moved < sizeof(Header) ? 0 : moved - sizeof(Header);
    if (moved < sizeof(Header)) {
      parts[count++] = {reinterpret_cast<char*>(head) + moved, sizeof(Header) - moved};
    }
    size_t end = relays ? operation->received : header.bytes;
    if (end > at) parts[count++] = {data + at, std::min(end - at, kMostAtOnce)};
    return count;
  }
};

struct Link {
  explicit Link(Peer p) : peer(std::move(p)) {}
  Peer peer;
  // False from a call that had to wait until the kernel says that it need not.
  bool may_send = true, may_receive = true;
  std::deque<Message> out, in;
  Header head{};  // as it came
};

bool Overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const char *first = static_cast<const char*>(a), *second = static_cast<const char*>(b);
  return a_bytes > 0 && b_bytes > 0 && first < second + b_bytes && second < first + a_bytes;
}

Status KeepApart(const void* send, size_t sent, const void* recv, size_t received) {
  if (!Overlap(send, sent, recv, received)) return {};
  return {Code::kSystem, "an exchange would receive " + std::to_string(received) +
                             " bytes where bytes lie that it sends; this is a bug of smddp_tf"};
}

size_t Sum(const std::vector<size_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), size_t{0});
}

class TcpGroup : public PeerGroup {
 public:
  TcpGroup(int rank, std::vector<Peer> peers)
      : rank_(rank), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    if (!epoll_.is_open()) failed_ = FailedCall("epoll");
    for (Peer& peer : peers) {
      epoll_event event{kEvents, {}};
      event.data.u64 = links_.size();
      links_.emplace_back(std::move(peer));
      int fd = links_.back().peer.socket.fd();
      if (fd < 0 || !failed_.ok()) continue;
      if (::epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, fd, &event) != 0) failed_ = FailedCall("epoll");
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(links_.size()); }

  Status StartAllgather(const void* send, size_t bytes, void* recv) override {
    std::vector<size_t> all(links_.size(), bytes), offsets;
    for (size_t r = 0; r < links_.size(); ++r) offsets.push_back(r * bytes);
    return StartAllgatherV(send, recv, all, offsets);
  }

  Status StartAllgatherV(const void* send, void* recv, const std::vector<size_t>& bytes,
                         const std::vector<size_t>& offsets) override {
    char* to = static_cast<char*>(recv);
    const size_t own = bytes[Rank()];
    if (send != to + offsets[Rank()]) {
      Status status = KeepApart(send, own, recv, offsets.back() + bytes.back());
      if (!status.ok()) return status;
      std::memcpy(to + offsets[Rank()], send, own);
    }
    return Start([&](size_t peer, Operation* operation) {
      Send(peer, operation, send, own);
      Receive(peer, operation, to + offsets[peer], bytes[peer]);
    });
  }

  Status StartAlltoall(const void* send, size_t bytes, void* recv) override {
    const size_t all = bytes * links_.size();
    Status status = KeepApart(send, all, recv, all);
    if (!status.ok()) return status;
    return Start([&](size_t peer, Operation* operation) {
      Send(peer, operation, static_cast<const char*>(send) + peer * bytes, bytes);
      Receive(peer, operation, static_cast<char*>(recv) + peer * bytes, bytes);
    });
  }

  Status StartAlltoallV(const void* send, const std::vector<size_t>& send_bytes, void* recv,
                        const std::vector<size_t>& recv_bytes) override {
    Status status = KeepApart(send, Sum(send_bytes), recv, Sum(recv_bytes));
    if (!status.ok()) return status;
    const char* from = static_cast<const char*>(send);
    char* to = static_cast<char*>(recv);
    return Start([&](size_t peer, Operation* operation) {
      if (peer == Rank()) {
        std::memcpy(to, from, std::min(send_bytes[peer], recv_bytes[peer]));
      } else {
        Send(peer, operation, from, send_bytes[peer]);
        Receive(peer, operation, to, recv_bytes[peer]);
      }
      from += send_bytes[peer];
      to += recv_bytes[peer];
    });
  }

  // A large one goes from each rank to the next, while it comes: every link carries it once.
  Status StartBroadcast(void* buffer, size_t bytes, int root) override {
    const size_t count = links_.size(),
                 place = (Rank() + count - static_cast<size_t>(root)) % count;
    const bool relayed = bytes > kRelayBytes;
    const size_t source = relayed ? (Rank() + count - 1) % count : static_cast<size_t>(root);
    return Start([&](size_t peer, Operation* operation) {
      const size_t peer_place = (peer + count - static_cast<size_t>(root)) % count;
      if (place > 0 && peer == source) Receive(peer, operation, buffer, bytes);
      if (relayed ? peer_place == place + 1 : place == 0) {
        Send(peer, operation, buffer, bytes, /*relays=*/place > 0);
      }
    });
  }

  Status Test(bool* done) override {
    *done = false;
    if (failed_.ok()) failed_ = Move();
    if (!failed_.ok()) return failed_;
    *done = operations_.empty() || operations_.front().unfinished == 0;
    if (*done && !operations_.empty()) operations_.pop_front();
    return {};
  }

 private:
  size_t Rank() const { return static_cast<size_t>(rank_); }

  // each(peer, operation) adds the messages for every rank; this rank gets none.
  template <typename Each>
  Status Start(Each&& each) {
    if (!failed_.ok()) return failed_;
    operations_.emplace_back();
    ++started_;
    for (size_t peer = 0; peer < links_.size(); ++peer) each(peer, &operations_.back());
    for (Link& link : links_) {
      if (failed_.ok()) failed_ = MoveOut(&link);
    }
    return failed_;
  }

  void Send(size_t peer, Operation* operation, const void* data, size_t bytes,
            bool relays = false) {
    Add(peer, &links_[peer].out, {operation, {started_, bytes}, Bytes(data), relays});
  }

  void Receive(size_t peer, Operation* operation, void* data, size_t bytes) {
    Add(peer, &links_[peer].in, {operation, {started_, bytes}, static_cast<char*>(data)});
  }

  void Add(size_t peer, std::deque<Message>* queue, const Message& message) {
    if (peer == Rank() || message.header.bytes == 0) return;
    queue->push_back(message);
    ++message.operation->unfinished;
  }

  // What is sent is only read.
  static char* Bytes(const void* data) { return const_cast<char*>(static_cast<const char*>(data)); }

  // Moves what can be moved at once.
  Status Move() {
    epoll_event events[32];
    int count = ::epoll_wait(epoll_.fd(), events, 32, 0);
    for (int i = 0; i < count; ++i) {
      Link& link = links_[events[i].data.u64];
      link.may_send |= (events[i].events & ~EPOLLIN) != 0;
      link.may_receive |= (events[i].events & ~EPOLLOUT) != 0;
    }
    for (Link& link : links_) {
      Status status = MoveIn(&link);
      if (status.ok()) status = MoveOut(&link);
      if (!status.ok()) return status;
    }
    return {};
  }

  static Status MoveOut(Link* link) {
    iovec parts[2];
    for (size_t moved = 0; link->may_send && !link->out.empty() && moved < kMostAtOnce;) {
      Message& message = link->out.front();
      msghdr sent{};
      sent.msg_iov = parts;
      sent.msg_iovlen = static_cast<size_t>(message.Next(&message.header, parts));
      if (sent.msg_iovlen == 0) return {};  // it has not come yet
      ssize_t n = ::sendmsg(link->peer.socket.fd(), &sent, MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) link->may_send = false;
      if (n < 0) return link->may_send ? Lost(*link, errno) : Status();
      moved += static_cast<size_t>(n);
      message.moved += static_cast<size_t>(n);
      Finish(&link->out);
    }
    return {};
  }

  static Status MoveIn(Link* link) {
    iovec parts[2];
    for (size_t moved = 0; link->may_receive && !link->in.empty() && moved < kMostAtOnce;) {
      Message& message = link->in.front();
      int count = message.Next(&link->head, parts);
      ssize_t n = ::readv(link->peer.socket.fd(), parts, count);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) link->may_receive = false;
      if (n < 0) return link->may_receive ? Lost(*link, errno) : Status();
      if (n == 0) return LostPeer(link->peer.name, "it has closed the connection");
      moved += static_cast<size_t>(n);
      const size_t before = message.moved;
      message.moved += static_cast<size_t>(n);
      if (message.moved < sizeof(Header)) continue;
      if (before < sizeof(Header)) {
        Status status = Compare(*link, message.header);
        if (!status.ok()) return status;
      }
      message.operation->received = message.moved - sizeof(Header);
      Finish(&link->in);
    }
    return {};
  }

  static void Finish(std::deque<Message>* queue) {
    if (!queue->front().done()) return;
    --queue->front().operation->unfinished;
    queue->pop_front();
  }

  static Status Lost(const Link& link, int error) {
    return LostPeer(link.peer.name, std::system_category().message(error));
  }

  static Status Compare(const Link& link, const Header& wanted) {
    if (std::memcmp(&link.head, &wanted, sizeof wanted) == 0) return {};
    auto text = [](const Header& header) {
      return std::to_string(header.bytes) + " bytes as operation " +
             std::to_string(header.operation);
    };
    return {Code::kSystem, link.peer.name + " sends " + text(link.head) + ", and " + text(wanted) +
                               " were expected; this is a bug of smddp_tf"};
  }

  const int rank_;
  Descriptor epoll_;
  std::deque<Link> links_;
  std::deque<Operation> operations_;  // in flight, the oldest first
  uint64_t started_ = 0;
  Status failed_;
};

}  // namespace

std::unique_ptr<PeerGroup> MakeTcpGroup(int rank, std::vector<Peer> peers) {
  return std::make_unique<TcpGroup>(rank, std::move(peers));
}

}  // namespace smddp
