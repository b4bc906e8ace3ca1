#include "worker/security/guard/connection_guard.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/steady_time.h"

namespace orcd::guard {
namespace {

constexpr std::chrono::milliseconds kLook(5);
// Limit of relay threads. One serves some 20,000 new connections a second.
constexpr int kMaxThreads = 4;

// Sets options that connections inherit from the socket that accepts them.
void SetClientOptions(int listening, absl::Duration peer_timeout) {
  const auto set = [listening](int level, int option, int value) {
    setsockopt(listening, level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  // A client that vanished while nothing was sent to it is found out.
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 60);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 20);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(absl::ToInt64Milliseconds(peer_timeout)));
}

}  // namespace

std::unique_ptr<ConnectionGuard> ConnectionGuard::Create(GuardOptions options) {
  std::optional<ListenSockets> sockets = Listen(options.listen);
  if (!sockets) return nullptr;
  std::unique_ptr<ConnectionGuard> guard(new ConnectionGuard);
  const std::string host = options.listen.substr(0, options.listen.rfind(':'));
  guard->address_ = absl::StrCat(host, ":", sockets->port);
  guard->sockets_ = *std::move(sockets);
  for (const Descriptor& socket : guard->sockets_.sockets) {
    SetClientOptions(socket.get(), options.peer_timeout);
  }
  guard->options_ = std::move(options);
  return guard;
}

ConnectionGuard::~ConnectionGuard() { Stop(absl::ZeroDuration()); }

bool ConnectionGuard::Start(ServerSide server) {
  shared_ = std::make_unique<LoopShared>(options_, std::move(server));
  const int threads =
      std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
  for (int i = 0; i < threads; ++i) {
    auto loop = std::make_unique<ConnectionLoop>(*shared_, sockets_.sockets);
    if (!loop->valid()) break;
    loop->Start();
    loops_.push_back(std::move(loop));
  }
  return !loops_.empty();
}

void ConnectionGuard::StopAccepting() {
  if (shared_ == nullptr || !shared_->StopAccepting()) return;
  // Clients that connect from now on are refused at once, whatever the loops do.
  for (const Descriptor& socket : sockets_.sockets) shutdown(socket.get(), SHUT_RDWR);
  for (const auto& loop : loops_) loop->Wake();
}

void ConnectionGuard::Stop(absl::Duration grace) {
  StopAccepting();
  const absl::Time deadline = SteadyNow() + grace;
  const auto is_open = [](const std::unique_ptr<ConnectionLoop>& loop) { return loop->open() > 0; };
  while (SteadyNow() < deadline && std::any_of(loops_.begin(), loops_.end(), is_open)) {
    std::this_thread::sleep_for(kLook);
  }
  loops_.clear();
  sockets_.sockets.clear();
}

int ConnectionGuard::connections() const {
  return shared_ == nullptr ? 0 : shared_->connections.load();
}

int64_t ConnectionGuard::charged_bytes() const {
  return shared_ == nullptr ? 0 : shared_->budget.used();
}

}  // namespace orcd::guard
