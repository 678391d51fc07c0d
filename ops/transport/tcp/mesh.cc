#include "transport/tcp/mesh.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>  // for move

#include "core/deadline.h"

namespace smddp {
namespace {

constexpr unsigned kNapMicroseconds = 500;
constexpr double kRetrySeconds = 0.05;
constexpr size_t kMostStrangers = 64;  // beyond the ranks that are to come

// What a rank says first to the one that it connects to, which answers with a signature.
struct Hello {
  int32_t rank;
  unsigned char signature[kSignatureBytes];
};

struct Address {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

Status Resolve(const std::string& host, uint16_t port, Address* address) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  wanted.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found) != 0) {
    return {Code::kSystem, "'" + host + "' is not a numeric address of a host"};
  }
  std::memcpy(&address->storage, found->ai_addr, found->ai_addrlen);
  address->bytes = found->ai_addrlen;
  ::freeaddrinfo(found);
  return {};
}

Descriptor NewSocket(const Address& address) {
  return Descriptor(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

void SendAtOnce(int fd) {
  int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool MustWait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// Bytes that arrive bit by bit, and no byte more.
class Incoming {
 public:
  explicit Incoming(size_t bytes) : data_(bytes) {}
  // False once the connection is of no use.
  bool Receive(int fd) {
    while (got_ < data_.size()) {
      ssize_t n = ::recv(fd, data_.data() + got_, data_.size() - got_, 0);
      if (n <= 0) return n < 0 && MustWait();
      got_ += static_cast<size_t>(n);
    }
    return true;
  }
  bool complete() const { return got_ == data_.size(); }
  const unsigned char* data() const { return data_.data(); }

 private:
  std::vector<unsigned char> data_;
  size_t got_ = 0;
};

// A new connection takes so few bytes whole.
bool SendWhole(int fd, const void* data, size_t bytes) {
  return ::send(fd, data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
}

bool Equal(const unsigned char* given, const Signature& wanted) {
  unsigned char differs = 0;  // in a time that does not tell where
  for (size_t i = 0; i < wanted.size(); ++i) differs |= given[i] ^ wanted[i];
  return differs == 0;
}

// One rank's part in connecting.
class Connecting {
 public:
  Connecting(int rank, const std::vector<Endpoint>& all, const Sign& sign, int listener,
             std::vector<Peer>* peers)
      : rank_(rank), all_(all), sign_(sign), listener_(listener), peers_(peers) {
    for (int r = 0; r < rank; ++r) callees_.push_back(std::make_unique<Callee>(r));
  }

  Status UntilAll(const std::function<Status()>& problem) {
    for (;;) {
      Accept();
      for (auto& caller : callers_) Hear(caller.get());
      callers_.erase(std::remove_if(callers_.begin(), callers_.end(),
                                    [](const auto& one) { return !one->socket.is_open(); }),
                     callers_.end());
      for (auto& callee : callees_) {
        Status status = Call(callee.get());
        if (!status.ok()) return status;
      }
      if (connected_ + 1 == all_.size()) return {};
      Status status = problem();
      if (!status.ok()) return {status.code(), status.message() + Missing()};
      ::usleep(kNapMicroseconds);
    }
  }

 private:
  // Who has connected, and has not said yet who that is.
  struct Caller {
    Descriptor socket;
    Incoming hello{sizeof(Hello)};
  };
  struct Callee {
    explicit Callee(int r) : rank(r) {}
    int rank;
    Descriptor socket;
    bool greeted = false, connected = false;
    Incoming answer{kSignatureBytes};
    double try_at = 0;
    std::string why;  // the last attempt failed
  };

  Signature Proof(const char* from, int caller, int callee) const {
    std::string text = std::string("smddp mesh ") + from + " " + std::to_string(caller) + " " +
                       std::to_string(callee) + " ";
    for (int r : {caller, callee}) {
      const unsigned char* nonce = all_[static_cast<size_t>(r)].nonce;
      text.append(reinterpret_cast<const char*>(nonce), sizeof Endpoint::nonce);
    }
    return sign_(text);
  }

  void Take(int peer, Descriptor socket) {
    (*peers_)[static_cast<size_t>(peer)].socket = std::move(socket);
    ++connected_;
  }

  void Accept() {
    while (callers_.size() < all_.size() + kMostStrangers) {
      Descriptor socket(::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket.is_open()) return;
      SendAtOnce(socket.fd());
      callers_.push_back(std::make_unique<Caller>());
      callers_.back()->socket = std::move(socket);
    }
  }

  void Hear(Caller* caller) {
    if (!caller->hello.Receive(caller->socket.fd())) return caller->socket.Close();
    if (!caller->hello.complete()) return;
    Hello hello{};
    std::memcpy(&hello, caller->hello.data(), sizeof hello);
    Descriptor socket = std::move(caller->socket);
    if (hello.rank <= rank_ || hello.rank >= static_cast<int>(all_.size())) return;
    if (!Equal(hello.signature, Proof("calls", hello.rank, rank_))) return;
    Peer& peer = (*peers_)[static_cast<size_t>(hello.rank)];
    if (peer.socket.is_open()) return;
    Signature answer = Proof("answers", hello.rank, rank_);
    if (SendWhole(socket.fd(), answer.data(), answer.size())) Take(hello.rank, std::move(socket));
  }

  // An error is of this host; what the peer does is tried again.
  Status Call(Callee* callee) {
    if (callee->connected || NowSeconds() < callee->try_at) return {};
    if (!callee->socket.is_open()) return Begin(callee);
    if (!callee->greeted) Greet(callee);
    if (!callee->greeted) return {};
    if (!callee->answer.Receive(callee->socket.fd())) {
      Again(callee, "it has closed the connection");
    } else if (callee->answer.complete()) {
      if (!Equal(callee->answer.data(), Proof("answers", rank_, callee->rank))) {
        Again(callee, "who answers there is not of this job");
        return {};
      }
      callee->connected = true;
      Take(callee->rank, std::move(callee->socket));
    }
    return {};
  }

  Status Begin(Callee* callee) {
    const Endpoint& endpoint = all_[static_cast<size_t>(callee->rank)];
    Address address;
    Status status = Resolve(endpoint.host, endpoint.port, &address);
    if (!status.ok()) return status;
    callee->socket = NewSocket(address);
    if (!callee->socket.is_open()) return FailedCall("a socket");
    SendAtOnce(callee->socket.fd());
    callee->greeted = false;
    callee->answer = Incoming(kSignatureBytes);
    int error = ::connect(callee->socket.fd(), address.get(), address.bytes);
    if (error != 0 && errno != EINPROGRESS) Again(callee, std::system_category().message(errno));
    return {};
  }

  void Greet(Callee* callee) {
    int error = 0;
    socklen_t bytes = sizeof error;
    ::getsockopt(callee->socket.fd(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) return Again(callee, std::system_category().message(error));
    Hello hello{rank_, {}};
    Signature proof = Proof("calls", rank_, callee->rank);
    std::copy(proof.begin(), proof.end(), hello.signature);
    callee->greeted = SendWhole(callee->socket.fd(), &hello, sizeof hello);
    if (!callee->greeted && errno != ENOTCONN && !MustWait()) {
      Again(callee, std::system_category().message(errno));
    }
  }

  static void Again(Callee* callee, const std::string& why) {
    callee->socket.Close();
    callee->why = why;
    callee->try_at = NowSeconds() + kRetrySeconds;
  }

  std::string Missing() const {
    for (const auto& callee : callees_) {
      if (callee->connected) continue;
      const Peer& peer = (*peers_)[static_cast<size_t>(callee->rank)];
      return "; " + peer.name + " does not answer" +
             (callee->why.empty() ? "" : ": " + callee->why);
    }
    for (size_t r = static_cast<size_t>(rank_) + 1; r < all_.size(); ++r) {
      if (!(*peers_)[r].socket.is_open()) return "; " + (*peers_)[r].name + " has not connected";
    }
    return "";
  }

  const int rank_;
  const std::vector<Endpoint>& all_;
  const Sign& sign_;
  const int listener_;
  std::vector<Peer>* peers_;
  std::vector<std::unique_ptr<Caller>> callers_;
  std::vector<std::unique_ptr<Callee>> callees_;
  size_t connected_ = 0;
};

}  // namespace

Status Mesh::Listen(const std::string& host, int job_rank) {
  Address address;
  Status status = Resolve(host, 0, &address);
  if (!status.ok()) return status;
  listener_ = NewSocket(address);
  if (!listener_.is_open()) return FailedCall("a socket");
  address.bytes = sizeof address.storage;
  if (::bind(listener_.fd(), address.get(), address.bytes) != 0 ||
      ::listen(listener_.fd(), SOMAXCONN) != 0 ||
      ::getsockname(listener_.fd(), address.get(), &address.bytes) != 0) {
    return FailedCall("this rank cannot listen at " + host);
  }
  char port[16];
  ::getnameinfo(address.get(), address.bytes, nullptr, 0, port, sizeof port, NI_NUMERICSERV);
  std::strncpy(own_.host, host.c_str(), sizeof own_.host - 1);
  own_.port = static_cast<uint16_t>(std::stoi(port));
  own_.job_rank = job_rank;
  if (::getrandom(own_.nonce, sizeof own_.nonce, 0) != sizeof own_.nonce) {
    return FailedCall("random numbers");
  }
  return {};
}

Status Mesh::Connect(int rank, const std::vector<Endpoint>& all, const Sign& sign,
                     const std::function<Status()>& problem, std::vector<Peer>* peers) {
  peers->clear();
  for (const Endpoint& one : all) {
    peers->emplace_back();
    peers->back().name = "rank " + std::to_string(one.job_rank) + " at " + one.host;
  }
  Status status = Connecting(rank, all, sign, listener_.fd(), peers).UntilAll(problem);
  listener_.Close();
  return status;
}

Status LostPeer(const std::string& name, const std::string& why) {
  return {Code::kRemote, name + " was lost: " + why};
}

}  // namespace smddp
