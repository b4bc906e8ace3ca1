#include "worker/server.h"

#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/base/error.h"
#include "worker/base/status_details.h"

namespace orcd {
namespace {

// Shortest interval of keepalive pings that a client may send, also while it has no call.
constexpr absl::Duration kMinClientPing = absl::Seconds(10);
// Interval and timeout of the server's keepalive pings, which detect a client that vanished
// silently.
constexpr absl::Duration kPing = absl::Seconds(60);
constexpr absl::Duration kPingTimeout = absl::Seconds(20);

// Time that calls may still take on a connection that is too old.
constexpr absl::Duration kAgeGrace = absl::Minutes(5);
// Time that clients may take to read the rest of gRPC's output.
constexpr absl::Duration kFlushGrace = absl::Seconds(1);
// Size of the headers that the guard adds for a client's certificate.
constexpr int kMoreMetadataBytes = 256 << 10;
// Memory of a connection's TLS.
constexpr int64_t kTlsCharge = 64 << 10;

guard::GuardOptions MakeGuardOptions(const ServerOptions& options) {
  guard::GuardOptions made;
  made.listen = options.listen;
  made.tls = options.tls;
  made.max_connections = options.max_connections;
  made.max_total_bytes = options.max_transport_bytes;
  made.peer_timeout = kPingTimeout;
  made.filter.max_header_list_bytes = static_cast<size_t>(options.max_metadata_bytes);
  made.filter.max_streams = static_cast<uint32_t>(options.max_streams);
  made.filter.max_connection_bytes = options.max_connection_bytes;
  if (options.tls) made.filter.connection_charge += kTlsCharge;
  if (options.admit) {
    made.filter.admit = [admit = options.admit](const guard::CallHeaders& call,
                                                const std::vector<std::string>& peer_names) {
      return admit(call.path, call.authorization, peer_names);
    };
  }
  made.filter.encode_details = [](const absl::Status& status) {
    return ToRpcStatus(status).SerializeAsString();
  };
  if (options.on_refused) {
    made.filter.on_refused = [on_refused = options.on_refused](std::string_view reason) {
      on_refused("call", reason);
    };
    made.on_connection_ended = [on_refused = options.on_refused](std::string_view reason) {
      on_refused("connection", reason);
    };
  }
  return made;
}

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

}  // namespace

absl::Status CannotListenError(const std::string& address, const std::string& flag) {
  return MakeError(
      absl::StatusCode::kUnavailable,
      absl::StrCat("cannot listen on ", address,
                   ": the address is not this machine's or the port is taken; change ", flag),
      {.reason = "CANNOT_LISTEN", .subject = address});
}

absl::Status NoDescriptorError(const std::string& address) {
  return MakeError(
      absl::StatusCode::kUnavailable,
      absl::StrCat("no descriptor is left to serve ", address, "; raise the limit of open files"),
      {.reason = "CANNOT_LISTEN", .subject = address});
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      const std::vector<grpc::Service*>& services) {
  grpc::EnableDefaultHealthCheckService(false);

  std::unique_ptr<Server> server(new Server);
  server->guard_ = guard::ConnectionGuard::Create(MakeGuardOptions(options));
  if (server->guard_ == nullptr) return CannotListenError(options.listen, options.flag);
  server->address_ = server->guard_->address();

  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  // The guard enforces the limits of headers and calls, and adds headers of its own. gRPC would end
  // the whole connection for one call's headers, or for one call too many.
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE,
                             2 * options.max_metadata_bytes + kMoreMetadataBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, std::numeric_limits<int>::max());
  // The guard relies on a call's window staying at its initial size. A message that the application
  // asked for arrives whole all the same.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // A second line of defence behind the guard: gRPC counts its own buffers, and drops calls and
  // connections if they exceed this.
  grpc::ResourceQuota quota;
  quota.Resize(static_cast<size_t>(options.max_transport_bytes));
  builder.SetResourceQuota(quota);
  if (options.max_connection_age < absl::InfiniteDuration()) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                               Milliseconds(options.max_connection_age));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, Milliseconds(kAgeGrace));
  }
  // gRPC checks a message's size only once it is decompressed.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             Milliseconds(kMinClientPing));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(kPing));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(kPingTimeout));
  builder.AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, options.channelz ? 1 : 0);
  for (grpc::Service* service : services) builder.RegisterService(service);
  if (options.filter) {
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> gates;
    gates.push_back(MakeCallGate(options.filter));
    builder.experimental().SetInterceptorCreators(std::move(gates));
  }

  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr) {
    return MakeError(absl::StatusCode::kInternal, "gRPC does not start a server",
                     {.reason = "CANNOT_LISTEN", .subject = options.listen});
  }
  const bool started =
      server->guard_->Start({.connect = [grpc_server = server->server_.get()](int fd) {
        grpc::AddInsecureChannelFromFd(grpc_server, fd);
      }});
  if (!started) return NoDescriptorError(options.listen);
  return server;
}

Server::~Server() { Stop(absl::ZeroDuration()); }

void Server::Stop(absl::Duration grace) {
  if (server_ == nullptr || std::exchange(stopped_, true)) return;
  guard_->StopAccepting();
  server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  guard_->Stop(kFlushGrace);
}

}  // namespace orcd
