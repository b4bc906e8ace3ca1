#include "worker/api/health/health_port.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/steady_time.h"
#include "worker/api/health/health_session.h"
#include "worker/server.h"

namespace orcd {
namespace {

// Interval between two checks for changes that watchers must learn of.
constexpr absl::Duration kLook = absl::Milliseconds(100);
constexpr int kEventsATime = 64;
constexpr size_t kBufferBytes = 16 << 10;

// Limits that leave room for some calls on every connection at once, and for connections that are
// ending.
constexpr int kMaxConnections = 1024;
constexpr int64_t kConnectionCharge = 32 << 10;
constexpr int64_t kStreamCharge = 8 << 10;
constexpr int64_t kMaxConnectionBytes = 256 << 10;
constexpr int64_t kMaxTotalBytes = int64_t{96} << 20;

guard::GuardOptions MakeGuardOptions(const HealthPort::Options& options) {
  guard::GuardOptions made;
  made.listen = options.listen;
  made.max_connections = kMaxConnections;
  // A new probe must get a connection even if unauthenticated clients hold all of them.
  made.oldest_makes_room = true;
  made.max_total_bytes = kMaxTotalBytes;
  made.filter.max_streams = HealthSession::kMaxCalls;
  made.filter.connection_charge = kConnectionCharge;
  made.filter.stream_charge = kStreamCharge;
  made.filter.max_connection_bytes = kMaxConnectionBytes;
  return made;
}

}  // namespace

struct HealthPort::Connection {
  Connection(guard::Descriptor the_socket, const HealthService& health)
      : socket(std::move(the_socket)), session(health) {}

  guard::Descriptor socket;
  HealthSession session;
  // Bytes that the socket has not taken yet.
  std::string out;
  // The epoll events that the socket is registered for.
  uint32_t events = EPOLLIN;
  // Its index in connections_.
  size_t index = 0;
};

absl::StatusOr<std::unique_ptr<HealthPort>> HealthPort::Start(const Options& options,
                                                              const HealthService& health) {
  std::unique_ptr<HealthPort> port(new HealthPort(health));
  if (!port->epoll_.valid() || !port->wake_.valid()) {
    return MakeError(absl::StatusCode::kUnavailable,
                     "no descriptor is left for the health port; raise the limit of open files",
                     {.reason = "CANNOT_LISTEN", .subject = options.listen});
  }
  port->guard_ = guard::ConnectionGuard::Create(MakeGuardOptions(options));
  if (port->guard_ == nullptr) return CannotListenError(options.listen, options.flag);
  port->thread_ = std::thread([port = port.get()] { port->Run(); });
  port->guard_->Start([port = port.get()](int fd) {
    {
      std::lock_guard lock(port->mutex_);
      port->new_sockets_.emplace_back(fd);
    }
    eventfd_write(port->wake_.get(), 1);
  });
  return port;
}

HealthPort::HealthPort(const HealthService& health)
    : health_(health),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  epoll_event event = {.events = EPOLLIN, .data = {.ptr = nullptr}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
}

HealthPort::~HealthPort() { Stop(); }

void HealthPort::Stop() {
  if (!thread_.joinable()) return;
  guard_->StopAccepting();
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  eventfd_write(wake_.get(), 1);
  thread_.join();
  guard_->Stop(absl::Seconds(1));
}

void HealthPort::Accept() {
  eventfd_t count = 0;
  eventfd_read(wake_.get(), &count);
  std::vector<guard::Descriptor> sockets;
  {
    std::lock_guard lock(mutex_);
    sockets.swap(new_sockets_);
  }
  for (guard::Descriptor& socket : sockets) {
    auto connection = std::make_unique<Connection>(std::move(socket), health_);
    connection->index = connections_.size();
    epoll_event event = {.events = connection->events, .data = {.ptr = connection.get()}};
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection->socket.get(), &event) != 0) continue;
    connections_.push_back(std::move(connection));
  }
}

bool HealthPort::Serve(Connection& connection) {
  // Read one buffer at a time, so that a client that floods gets no more turns than others. Do not
  // read from a client that does not read itself.
  if (connection.out.empty()) {
    std::array<uint8_t, kBufferBytes> buffer;
    const ssize_t got = recv(connection.socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got == 0) return false;
    if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return false;
    if (got > 0 && !connection.session.Receive({buffer.data(), static_cast<size_t>(got)})) {
      return false;
    }
  }
  return Write(connection);
}

bool HealthPort::Write(Connection& connection) {
  std::string& out = connection.out;
  while (true) {
    if (!connection.session.Send(kBufferBytes, out)) return false;
    if (out.empty()) break;
    const ssize_t sent =
        send(connection.socket.get(), out.data(), out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return false;
    if (sent < 0) break;
    out.erase(0, static_cast<size_t>(sent));
  }
  const uint32_t wanted = out.empty() ? EPOLLIN : EPOLLOUT;
  if (std::exchange(connection.events, wanted) != wanted) {
    epoll_event event = {.events = wanted, .data = {.ptr = &connection}};
    epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.socket.get(), &event);
  }
  return true;
}

void HealthPort::Run() {
  absl::Time next_look = SteadyNow();
  std::array<epoll_event, kEventsATime> events;
  while (true) {
    const bool has_watchers =
        std::any_of(connections_.begin(), connections_.end(),
                    [](const auto& connection) { return connection->session.has_watchers(); });
    const int count =
        epoll_wait(epoll_.get(), events.data(), kEventsATime,
                   has_watchers ? static_cast<int>(kLook / absl::Milliseconds(1)) : -1);
    const auto end_unless = [this](bool goes_on, const Connection& connection) {
      if (goes_on) return;
      // Closing the socket tells the guard that the connection is over.
      const size_t index = connection.index;
      connections_[index].swap(connections_.back());
      connections_[index]->index = index;
      connections_.pop_back();
    };
    bool woken = false;
    for (int i = 0; i < count; ++i) {
      auto* const connection = static_cast<Connection*>(events[i].data.ptr);
      if (connection == nullptr) {
        woken = true;
      } else {
        end_unless(Serve(*connection), *connection);
      }
    }
    if (woken) {
      Accept();
      std::lock_guard lock(mutex_);
      if (stopping_) break;
    }
    const absl::Time now = SteadyNow();
    if (!has_watchers || now < next_look) continue;
    next_look = now + kLook;
    for (size_t i = connections_.size(); i > 0; --i) {
      Connection& connection = *connections_[i - 1];
      if (!connection.session.has_watchers()) continue;
      connection.session.NotifyWatchers();
      end_unless(Write(connection), connection);
    }
  }
  // Watchers get their end if the service has shut down.
  for (const auto& connection : connections_) {
    connection->session.NotifyWatchers();
    Write(*connection);
  }
  connections_.clear();
  // Closed here, the sockets tell the guard that nobody will answer.
  std::lock_guard lock(mutex_);
  new_sockets_.clear();
}

}  // namespace orcd
