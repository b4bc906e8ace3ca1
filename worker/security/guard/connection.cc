#include "worker/security/guard/connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace orcd::guard {
namespace {

// The client is not read while this many bytes wait for it. Leaves room for the filter's own
// answers beside the bytes of a turn.
constexpr size_t kMaxWaiting = 128 << 10;
// A larger buffer is not kept once it is empty.
constexpr size_t kKeptBytes = 4096;
// Time in which a client can read the bytes sent before the end of the connection.
constexpr absl::Duration kFlushTime = absl::Seconds(5);
constexpr absl::Duration kLingerTime = absl::Seconds(1);
// A client that broke the rules gets less time.
constexpr absl::Duration kFailedTime = absl::Milliseconds(200);
// A local server is asked for this many bytes in a turn.
constexpr size_t kLocalBytes = 64 << 10;
constexpr size_t kMaxDiscarded = 256 << 10;

std::span<const uint8_t> Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

IoResult Failed() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? IoResult::kWantRead
                                                                   : IoResult::kClosed;
}

IoResult ReceiveSome(int fd, std::span<uint8_t> bytes, size_t& count) {
  const ssize_t received = recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
  count = received > 0 ? static_cast<size_t>(received) : 0;
  if (received > 0) return IoResult::kDone;
  return received == 0 ? IoResult::kClosed : Failed();
}

IoResult SendSome(int fd, std::span<const uint8_t> bytes, size_t& count) {
  const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  count = sent > 0 ? static_cast<size_t>(sent) : 0;
  return sent >= 0 ? IoResult::kDone : Failed();
}

// Keeps the bytes that are left of `waiting`, then `fresh`, after `count` of them were sent.
void Keep(std::string& waiting, std::string& fresh, size_t count) {
  if (waiting.empty()) {
    waiting.assign(fresh, count, std::string::npos);
  } else {
    waiting.erase(0, count);
  }
  fresh.clear();
  if (waiting.empty() && waiting.capacity() > kKeptBytes) waiting.shrink_to_fit();
}

}  // namespace

Connection::Connection(const GuardOptions& options, const ServerSide& server,
                       TransportBudget& total, ServerProgress& progress, Descriptor client,
                       absl::Time now)
    : server_side_(server),
      client_(std::move(client)),
      filter_(options.filter, total, &progress),
      deadline_(now + options.handshake_timeout),
      idle_since_(now) {
  if (options.tls) {
    phase_ = Phase::kHandshake;
    std::shared_ptr<SSL_CTX> context = options.tls();
    if (context == nullptr) {
      phase_ = Phase::kClosed;
    } else {
      tls_ = std::make_unique<TlsSession>(std::move(context), client_.get());
    }
  }
}

std::optional<absl::Time> Connection::idle_since() const {
  if (!active() || filter_.calls_in_use() > 0) return std::nullopt;
  return idle_since_;
}

bool Connection::MayReadClient() const {
  // A local server takes everything at once. Its answers must not pile up before a client that does
  // not read them.
  if (local_ != nullptr && (local_more_ || !to_client_.empty())) return false;
  // Before the first SETTINGS have arrived there is no server; bytes for it wait.
  return (phase_ == Phase::kPreface || (phase_ == Phase::kOpen && to_server_.empty())) &&
         to_client_.size() < kMaxWaiting && filter_.accepting();
}

bool Connection::wants_turn() const {
  if (phase_ == Phase::kOpen && (server_gone_ || local_more_) && to_client_.empty()) return true;
  return MayReadClient() && (!held_.empty() || tls_more_);
}

uint32_t Connection::client_events() const {
  uint32_t events = 0;
  if (phase_ == Phase::kHandshake || phase_ == Phase::kLinger ||
      (MayReadClient() && held_.empty())) {
    events |= EPOLLIN;
  }
  const bool reads = phase_ == Phase::kHandshake || MayReadClient();
  if (!to_client_.empty() || (tls_wants_write_ && reads)) events |= EPOLLOUT;
  return events;
}

uint32_t Connection::server_events() const {
  uint32_t events = 0;
  if (to_client_.empty()) events |= EPOLLIN;
  if (!to_server_.empty()) events |= EPOLLOUT;
  return events;
}

IoResult Connection::Receive(std::span<uint8_t> bytes, size_t& count) {
  if (tls_ == nullptr) return ReceiveSome(client_.get(), bytes, count);
  const IoResult result = tls_->Read(bytes, count);
  tls_wants_write_ = result == IoResult::kWantWrite;
  tls_more_ = result == IoResult::kDone;
  return result;
}

IoResult Connection::SendClient(std::span<const uint8_t> bytes, size_t& count) {
  return tls_ == nullptr ? SendSome(client_.get(), bytes, count) : tls_->Write(bytes, count);
}

void Connection::Turn(const Ready& ready, absl::Time now, Scratch& scratch) {
  if (phase_ == Phase::kHandshake) Handshake();
  std::string none;
  if (ready.client_out && !to_client_.empty()) ToClient(none);
  if (phase_ == Phase::kOpen && ready.server_out && !to_server_.empty()) ToServer(none);
  const bool pending = !held_.empty() || tls_ != nullptr;
  if (MayReadClient() && (ready.client_in || pending)) ReadClient(now, scratch);
  if (phase_ == Phase::kOpen && (ready.server_in || server_gone_ || local_ != nullptr) &&
      to_client_.empty()) {
    ReadServer(now, scratch);
  }
  if (phase_ == Phase::kFlush) Flush(now);
  if (phase_ == Phase::kLinger && ready.client_in) Linger(scratch);
}

void Connection::Handshake() {
  const IoResult result = tls_->Handshake();
  tls_wants_write_ = result == IoResult::kWantWrite;
  if (result == IoResult::kDone) {
    phase_ = Phase::kPreface;
    filter_.SetPeerNames(tls_->PeerNames());
  } else if (result == IoResult::kClosed) {
    phase_ = Phase::kClosed;
  }
}

void Connection::ReadClient(absl::Time now, Scratch& scratch) {
  if (!held_.empty()) {
    const std::string held = std::exchange(held_, {});
    return Feed(Bytes(held), now, scratch);
  }
  size_t count = 0;
  const IoResult result = Receive(scratch.input, count);
  if (count > 0) Feed(std::span(scratch.input).first(count), now, scratch);
  // Without its client the server has nobody to answer.
  if (result == IoResult::kClosed) phase_ = Phase::kClosed;
}

void Connection::Feed(std::span<const uint8_t> bytes, absl::Time now, Scratch& scratch) {
  const bool in_use = filter_.calls_in_use() > 0;
  const size_t taken = filter_.FromClient(bytes, now, scratch.output);
  if (in_use || filter_.calls_in_use() > 0) idle_since_ = now;
  if (taken < bytes.size() && !filter_.failed()) {
    held_.assign(reinterpret_cast<const char*>(bytes.data()) + taken, bytes.size() - taken);
  }
  if (phase_ == Phase::kPreface && filter_.established() && !filter_.failed()) OpenServer();
  ToServer(scratch.output.to_server);
  ToClient(scratch.output.to_client);
  if (filter_.failed() && active()) BeginFlush(now, kFailedTime);
}

IoResult Connection::ReceiveServer(Scratch& scratch, std::span<const uint8_t>& bytes) {
  if (local_ == nullptr) {
    size_t count = 0;
    const IoResult result = ReceiveSome(server_.get(), scratch.input, count);
    bytes = std::span(scratch.input).first(count);
    return result;
  }
  scratch.from_local.clear();
  const bool goes_on = local_->Send(kLocalBytes, scratch.from_local) && !server_gone_;
  bytes = Bytes(scratch.from_local);
  local_more_ = goes_on && bytes.size() >= kLocalBytes;
  return goes_on ? IoResult::kDone : IoResult::kClosed;
}

void Connection::ReadServer(absl::Time now, Scratch& scratch) {
  std::span<const uint8_t> bytes;
  const IoResult result = ReceiveServer(scratch, bytes);
  if (!bytes.empty()) {
    const bool in_use = filter_.calls_in_use() > 0;
    filter_.FromServer(bytes, now, scratch.output);
    if (in_use) idle_since_ = now;
    ToServer(scratch.output.to_server);
    ToClient(scratch.output.to_client);
  }
  if (result == IoResult::kClosed && active()) BeginFlush(now, kFlushTime);
}

void Connection::OpenServer() {
  if (server_side_.make_local) {
    local_ = server_side_.make_local();
    phase_ = Phase::kOpen;
    return;
  }
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) {
    phase_ = Phase::kClosed;
    return;
  }
  server_ = Descriptor(pair[0]);
  phase_ = Phase::kOpen;
  server_side_.connect(pair[1]);
}

void Connection::ToClient(std::string& fresh) {
  if (phase_ == Phase::kClosed) return fresh.clear();
  if (!to_client_.empty()) to_client_.append(fresh);
  const std::string& all = to_client_.empty() ? fresh : to_client_;
  size_t count = 0;
  if (!all.empty() && SendClient(Bytes(all), count) == IoResult::kClosed) phase_ = Phase::kClosed;
  Keep(to_client_, fresh, count);
}

void Connection::ToServer(std::string& fresh) {
  // Nothing is sent before there is a server and after it has gone.
  if (!has_server()) {
    to_server_.append(fresh);
    fresh.clear();
    return;
  }
  if (!to_server_.empty()) to_server_.append(fresh);
  const std::string& all = to_server_.empty() ? fresh : to_server_;
  size_t count = 0;
  if (!all.empty() && SendServer(Bytes(all), count) == IoResult::kClosed) {
    // The bytes that the server wrote before are still read.
    server_gone_ = true;
    count = all.size();
  }
  Keep(to_server_, fresh, count);
}

IoResult Connection::SendServer(std::span<const uint8_t> bytes, size_t& count) {
  if (local_ == nullptr) return SendSome(server_.get(), bytes, count);
  count = bytes.size();
  return local_->Receive(bytes) ? IoResult::kDone : IoResult::kClosed;
}

void Connection::EndLocalServer(absl::Time now, Scratch& scratch) {
  if (phase_ != Phase::kOpen || local_ == nullptr) return;
  local_->OnTick();
  if (to_client_.empty()) ReadServer(now, scratch);
  if (active()) BeginFlush(now, kFlushTime);
}

void Connection::BeginFlush(absl::Time now, absl::Duration limit) {
  server_.Close();
  local_.reset();
  to_server_.clear();
  held_.clear();
  phase_ = Phase::kFlush;
  deadline_ = now + limit;
  Flush(now);
}

void Connection::Flush(absl::Time now) {
  std::string none;
  ToClient(none);
  if (phase_ == Phase::kClosed || !to_client_.empty()) return;
  if (tls_ != nullptr) tls_->SendCloseNotify();
  // An immediate close would discard bytes that the client has not read yet, if the client is still
  // sending.
  shutdown(client_.get(), SHUT_WR);
  phase_ = Phase::kLinger;
  deadline_ = std::min(now + kLingerTime, std::max(deadline_, now));
}

void Connection::Linger(Scratch& scratch) {
  size_t count = 0;
  const IoResult result = ReceiveSome(client_.get(), scratch.input, count);
  discarded_ += count;
  if (result == IoResult::kClosed || discarded_ > kMaxDiscarded) phase_ = Phase::kClosed;
}

void Connection::Dismiss(absl::Time now, Scratch& scratch) {
  filter_.Dismiss(scratch.output);
  ToClient(scratch.output.to_client);
  if (active()) BeginFlush(now, kFailedTime);
}

void Connection::Close() {
  phase_ = Phase::kClosed;
  server_.Close();
  local_.reset();
  client_.Close();
}

void Connection::Tick(absl::Time now, Scratch& scratch) {
  filter_.Tick(now, scratch.output);
  if (phase_ == Phase::kOpen) ToServer(scratch.output.to_server);
  scratch.output.to_server.clear();
  if (phase_ == Phase::kOpen && local_ != nullptr) {
    local_->OnTick();
    Turn({}, now, scratch);
  }
  if (phase_ != Phase::kOpen && now > deadline_) phase_ = Phase::kClosed;
}

}  // namespace orcd::guard
