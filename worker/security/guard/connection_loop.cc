#include "worker/security/guard/connection_loop.h"

#include <malloc.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "runtime/base/steady_time.h"

namespace orcd::guard {
namespace {

constexpr int kEventsATime = 64;
constexpr int kAcceptsATime = 16;
constexpr absl::Duration kTick = absl::Milliseconds(200);
constexpr absl::Duration kListenAgain = absl::Milliseconds(100);
// A connection has at least this long to make its first or next call, however many others come.
constexpr absl::Duration kMinIdle = absl::Seconds(1);
// glibc keeps freed memory. After this many freed bytes it is told to return them, but not too
// often.
constexpr int64_t kTrimBytes = 16 << 20;
constexpr absl::Duration kTrimAfter = absl::Milliseconds(1500);
constexpr int kTrims = 3;

// Tags of epoll events: the address of a Slot (plus 1 for its server's side), or one of these.
constexpr uint64_t kWakeTag = 0;
constexpr uint64_t kListenTag = 2;
constexpr uint64_t kProbeTag = 4;

uint64_t TagOf(const void* slot, bool server) {
  return reinterpret_cast<uint64_t>(slot) | (server ? 1 : 0);
}

}  // namespace

bool LoopShared::StopAccepting() {
  const std::lock_guard<std::mutex> lock(connecting_);
  return accepting.exchange(false);
}

void LoopShared::Connect(const std::function<void(int fd)>& connect, int fd) {
  Descriptor owned(fd);
  const std::lock_guard<std::mutex> lock(connecting_);
  if (accepting) connect(owned.Release());
}

ConnectionLoop::ConnectionLoop(LoopShared& shared, const std::vector<Descriptor>& sockets)
    : shared_(shared),
      sockets_(sockets),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      probe_(progress_) {}

ConnectionLoop::~ConnectionLoop() {
  if (!thread_.joinable()) return;
  shared_.stopping = true;
  Wake();
  thread_.join();
  for (const Linger& linger : lingering_) shared_.budget.Release(linger.charge);
}

void ConnectionLoop::Start() {
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = kWakeTag}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
  Listen(true);
  thread_ = std::thread([this] { Run(); });
}

void ConnectionLoop::Wake() {
  const uint64_t one = 1;
  // The write fails only if the counter is full, and then the loop wakes anyway.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

void ConnectionLoop::Listen(bool on) {
  if (listening_ == on) return;
  listening_ = on;
  for (size_t i = 0; i < sockets_.size(); ++i) {
    epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE,
                         .data = {.u64 = kListenTag + (uint64_t{i} << 2)}};
    // A slot's address is never this small.
    epoll_ctl(epoll_.get(), on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, sockets_[i].get(), &event);
  }
}

int ConnectionLoop::WaitMilliseconds() const {
  if (!queued_.empty()) return 0;
  const bool must_tick = !slots_.empty() || !lingering_.empty() ||
                         (!listening_ && shared_.accepting) ||
                         progress_.freed_bytes >= kTrimBytes || trim_at_ != absl::InfiniteFuture();
  return must_tick ? static_cast<int>(absl::ToInt64Milliseconds(kTick)) : -1;
}

void ConnectionLoop::Run() {
  std::array<epoll_event, kEventsATime> events;
  while (!shared_.stopping) {
    const int count = epoll_wait(epoll_.get(), events.data(), kEventsATime, WaitMilliseconds());
    const absl::Time now = SteadyNow();
    std::vector<Slot*> queued = std::exchange(queued_, {});
    for (int i = 0; i < count; ++i) {
      const uint64_t tag = events[i].data.u64;
      if (tag == kWakeTag) {
        uint64_t ignored = 0;
        [[maybe_unused]] const ssize_t got = read(wake_.get(), &ignored, sizeof(ignored));
      } else if (tag == kProbeTag) {
        OnProbe(now);
      } else if ((tag & 3) == kListenTag && (tag >> 2) < sockets_.size()) {
        Accept(sockets_[tag >> 2].get(), now);
      } else {
        OnEvent(*reinterpret_cast<Slot*>(tag & ~uint64_t{1}), (tag & 1) != 0, events[i].events,
                now);
      }
    }
    for (Slot* slot : queued) {
      slot->queued = false;
      if (slot->connection->phase() == Connection::Phase::kClosed) continue;
      slot->connection->Turn({}, now, scratch_);
      Settle(*slot, now);
    }
    if (!shared_.accepting && listening_) {
      Listen(false);
      next_tick_ = now;
    }
    Probe(now);
    if (now >= next_tick_) Tick(now);
    removed_.clear();
  }
  while (!slots_.empty()) Remove(*slots_.back(), SteadyNow());
  removed_.clear();
}

void ConnectionLoop::Probe(absl::Time now) {
  if (shared_.server.make_local) {
    // A local server has finished with everything it was given.
    progress_.ConfirmAll();
    return ReleaseLingering(now);
  }
  if ((!progress_.MustProbe() && lingering_.empty()) || progress_.unknown) return;
  if (probe_.fd() < 0) {
    const int server = probe_.Connect().Release();
    if (server < 0) return;
    epoll_event event = {.events = EPOLLIN, .data = {.u64 = kProbeTag}};
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, probe_.fd(), &event);
    shared_.server.connect(server);
  }
  probe_.Send();
}

void ConnectionLoop::OnProbe(absl::Time now) {
  const uint64_t answered = progress_.answered;
  probe_.Receive();
  if (progress_.answered == answered && !progress_.unknown) return;
  ReleaseLingering(now);
  for (size_t i = slots_.size(); i > 0; --i) {
    Slot& slot = *slots_[i - 1];
    if (!slot.connection->filter().lingers()) continue;
    slot.connection->Tick(now, scratch_);
    Settle(slot, now);
  }
}

void ConnectionLoop::ReleaseLingering(absl::Time now) {
  while (!lingering_.empty()) {
    const Linger& first = lingering_.front();
    if (progress_.unknown ? first.until > now : first.fence > progress_.answered) return;
    shared_.budget.Release(first.charge);
    lingering_.pop_front();
  }
}

void ConnectionLoop::Accept(int socket, absl::Time now) {
  for (int i = 0; i < kAcceptsATime && shared_.accepting; ++i) {
    Descriptor client(accept4(socket, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (client.valid()) {
      Add(std::move(client), now);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      MakeRoom(now);
      Listen(false);
      listen_again_ = now + kListenAgain;
      return;
    } else if (errno != ECONNABORTED && errno != EINTR) {
      return;
    }
  }
}

void ConnectionLoop::Add(Descriptor client, absl::Time now) {
  const auto refuse = [&](std::string_view reason) {
    if (shared_.options.on_connection_ended) shared_.options.on_connection_ended(reason);
  };
  if (shared_.connections >= shared_.options.max_connections && !MakeRoom(now)) {
    shared_.room_wanted = true;
    // If any connection may make room, another loop will soon dismiss one of its own.
    if (!shared_.options.oldest_makes_room) return refuse("TOO_MANY_CONNECTIONS");
  }
  auto slot = std::make_unique<Slot>();
  slot->connection = std::make_unique<Connection>(shared_.options, shared_.server, shared_.budget,
                                                  progress_, std::move(client), now);
  if (!slot->connection->ChargeConnection()) {
    // The charge of a dismissed connection may be released only after this one has been refused.
    if (!MakeRoom(now)) shared_.room_wanted = true;
    if (!slot->connection->ChargeConnection()) return refuse("TRANSPORT_FULL");
  }
  ++shared_.connections;
  ++open_;
  slot->accepted = now;
  slot->index = slots_.size();
  slots_.push_back(std::move(slot));
  Slot& added = *slots_.back();
  added.client_events = EPOLLIN;
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = TagOf(&added, false)}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, added.connection->client_fd(), &event);
}

bool ConnectionLoop::MakeRoom(absl::Time now) {
  Slot* longest = nullptr;
  Slot* oldest = nullptr;
  absl::Time since = now - kMinIdle;
  for (const auto& slot : slots_) {
    if (!slot->active) continue;
    if (oldest == nullptr || slot->accepted < oldest->accepted) oldest = slot.get();
    const auto idle = slot->connection->idle_since();
    if (!idle || *idle >= since) continue;
    longest = slot.get();
    since = *idle;
  }
  if (longest == nullptr && shared_.options.oldest_makes_room) longest = oldest;
  if (longest == nullptr) return false;
  longest->connection->Dismiss(now, scratch_);
  Settle(*longest, now);
  return true;
}

void ConnectionLoop::MakeRoomForOthers(absl::Time now) {
  if (!shared_.room_wanted.exchange(false)) return;
  const GuardOptions& options = shared_.options;
  const bool full =
      shared_.connections >= options.max_connections ||
      shared_.budget.used() + options.filter.connection_charge > shared_.budget.limit();
  if (full && !MakeRoom(now)) shared_.room_wanted = true;
}

void ConnectionLoop::OnEvent(Slot& slot, bool server, uint32_t events, absl::Time now) {
  Connection& connection = *slot.connection;
  if (connection.phase() == Connection::Phase::kClosed) return;
  const bool gone = (events & (EPOLLHUP | EPOLLERR)) != 0;
  Connection::Ready ready;
  if (server) {
    // The event may be older than the end of the server's side.
    if (!slot.server_added) return;
    ready.server_in = (events & EPOLLIN) != 0;
    ready.server_out = (events & EPOLLOUT) != 0;
    if (gone) connection.OnServerGone();
  } else {
    ready.client_in = (events & EPOLLIN) != 0;
    ready.client_out = (events & EPOLLOUT) != 0;
    if (gone) connection.OnClientGone();
  }
  connection.Turn(ready, now, scratch_);
  Settle(slot, now);
}

void ConnectionLoop::Watch(int fd, bool add, uint32_t& told, uint32_t wanted, uint64_t tag) const {
  if (!add && told == wanted) return;
  told = wanted;
  epoll_event event = {.events = wanted, .data = {.u64 = tag}};
  epoll_ctl(epoll_.get(), add ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event);
}

void ConnectionLoop::Settle(Slot& slot, absl::Time now) {
  Connection& connection = *slot.connection;
  if (slot.active && !connection.active()) {
    slot.active = false;
    --shared_.connections;
    if (connection.filter().failed() && shared_.options.on_connection_ended) {
      shared_.options.on_connection_ended(connection.filter().dismissed() ? "TOO_MANY_CONNECTIONS"
                                                                          : "HTTP2_VIOLATION");
    }
  }
  if (connection.phase() == Connection::Phase::kClosed) return Remove(slot, now);
  Watch(connection.client_fd(), false, slot.client_events, connection.client_events(),
        TagOf(&slot, false));
  if (connection.server_fd() < 0) {
    // Closed descriptors leave epoll by themselves.
    slot.server_added = false;
  } else if (connection.server_gone()) {
    // Epoll would report the end of the server's side again and again.
    if (slot.server_added) {
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.server_fd(), nullptr);
    }
    slot.server_added = false;
  } else {
    Watch(connection.server_fd(), !std::exchange(slot.server_added, true), slot.server_events,
          connection.server_events(), TagOf(&slot, true));
  }
  if (connection.wants_turn() && !std::exchange(slot.queued, true)) queued_.push_back(&slot);
}

void ConnectionLoop::Remove(Slot& slot, absl::Time now) {
  if (slot.active) {
    slot.active = false;
    --shared_.connections;
  }
  if (slot.queued) std::erase(queued_, &slot);
  Connection& connection = *slot.connection;
  progress_.freed_bytes += connection.filter().budget().peak();
  lingering_.push_back({.until = now + shared_.options.filter.reset_linger,
                        .fence = progress_.Fence(),
                        .charge = connection.DetachCharge()});
  connection.Close();
  --open_;
  const size_t index = slot.index;
  removed_.push_back(std::move(slots_[index]));
  slots_[index] = std::move(slots_.back());
  slots_.pop_back();
  if (index < slots_.size()) slots_[index]->index = index;
}

void ConnectionLoop::Tick(absl::Time now) {
  next_tick_ = now + kTick;
  if (!listening_ && shared_.accepting && now >= listen_again_) Listen(true);
  ReleaseLingering(now);
  if (shared_.accepting) MakeRoomForOthers(now);
  for (size_t i = slots_.size(); i > 0; --i) {
    Slot& slot = *slots_[i - 1];
    slot.connection->Tick(now, scratch_);
    if (!shared_.accepting && slot.connection->phase() < Connection::Phase::kOpen) {
      // There is no server any more to take the connection.
      slot.connection->OnClientGone();
    }
    if (!shared_.accepting) slot.connection->EndLocalServer(now, scratch_);
    // The client may be readable again, or bytes may wait for the server.
    Settle(slot, now);
  }
  // A probe connection that ended, for example because gRPC closes old connections, is made anew.
  if (shared_.accepting) progress_.unknown = false;
  if (progress_.freed_bytes >= kTrimBytes) {
    progress_.freed_bytes = 0;
    trims_left_ = kTrims;
    trim_at_ = std::min(trim_at_, now + kTrimAfter);
  }
  if (now >= trim_at_) {
    trim_at_ = --trims_left_ > 0 ? now + kTrimAfter : absl::InfiniteFuture();
    malloc_trim(0);
  }
}

}  // namespace orcd::guard
