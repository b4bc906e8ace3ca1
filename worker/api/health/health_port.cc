#include "worker/api/health/health_port.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/time/time.h"
#include "worker/api/health/health_session.h"
#include "worker/server.h"

namespace orcd {
namespace {

// Limits that leave room for some calls on every connection at once, and for connections that are
// ending.
constexpr int kMaxConnections = 1024;
constexpr int64_t kConnectionCharge = 32 << 10;
constexpr int64_t kStreamCharge = 8 << 10;
constexpr int64_t kMaxConnectionBytes = 256 << 10;
constexpr int64_t kMaxTotalBytes = int64_t{96} << 20;
// Time in which clients can read the end of their calls.
constexpr absl::Duration kFlushGrace = absl::Seconds(1);

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

absl::StatusOr<std::unique_ptr<HealthPort>> HealthPort::Start(const Options& options,
                                                              const HealthService& health) {
  auto guard = guard::ConnectionGuard::Create(MakeGuardOptions(options));
  if (guard == nullptr) return CannotListenError(options.listen, options.flag);
  if (!guard->Start(
          {.make_local = [&health] { return std::make_unique<HealthSession>(health); }})) {
    return NoDescriptorError(options.listen);
  }
  return absl::WrapUnique(new HealthPort(std::move(guard)));
}

HealthPort::~HealthPort() { Stop(); }

void HealthPort::Stop() { guard_->Stop(kFlushGrace); }

}  // namespace orcd
