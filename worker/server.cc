#include "worker/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/server_builder.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/error.h"

namespace orcd {
namespace {

// Clients may ask whether the connection is alive this often, also while they have no call.
constexpr absl::Duration kMinClientPing = absl::Seconds(10);
// How soon a client that vanished without a word is noticed.
constexpr absl::Duration kPing = absl::Seconds(60);
constexpr absl::Duration kPingTimeout = absl::Seconds(20);

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      const std::vector<grpc::Service*>& services) {
  grpc::EnableDefaultHealthCheckService(false);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();

  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options.listen, options.credentials, &port);
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, options.max_metadata_bytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams);
  // gRPC looks at a message's size only once it is inflated.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  // Two workers on one port would each get some of the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             Milliseconds(kMinClientPing));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(kPing));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(kPingTimeout));
  builder.AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, options.channelz ? 1 : 0);
  for (grpc::Service* service : services) builder.RegisterService(service);
  if (options.own_queue != nullptr) *options.own_queue = builder.AddCompletionQueue();
  if (options.filter) {
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> gates;
    gates.push_back(MakeCallGate(options.filter));
    builder.experimental().SetInterceptorCreators(std::move(gates));
  }

  std::unique_ptr<Server> server(new Server);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr || port == 0) {
    return MakeError(absl::StatusCode::kUnavailable,
                     absl::StrCat("cannot listen on ", options.listen,
                                  ": the address is not this machine's or the port is taken; "
                                  "change ",
                                  options.flag),
                     {.reason = "CANNOT_LISTEN", .subject = options.listen});
  }
  const std::string host = options.listen.substr(0, options.listen.rfind(':'));
  server->address_ = absl::StrCat(host, ":", port);
  return server;
}

void Server::Stop(absl::Duration grace) {
  server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
}

}  // namespace orcd
