#include "tools/orcdctl/session.h"

#include <grpcpp/create_channel.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "tools/orcdctl/error_text.h"
#include "tools/orcdctl/exit_codes.h"

namespace orcd::ctl {

Session NewSession(const std::string& address, const Credentials& credentials, Console& console,
                   Interrupt& interrupt) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetUserAgentPrefix("orcdctl");
  auto channel = grpc::CreateCustomChannel(address, credentials.channel, arguments);
  return {.address = address,
          .channel = channel,
          .worker = v1::Worker::NewStub(channel),
          .console = console,
          .interrupt = interrupt,
          .token = credentials.token};
}

Call::Call(Session& session, absl::Duration default_timeout)
    : session_(session), scope_(session.interrupt, context_) {
  if (!session.token.empty()) {
    context_.AddMetadata("authorization", absl::StrCat("Bearer ", session.token));
  }
  const absl::Duration timeout = session.timeout.value_or(default_timeout);
  if (timeout != absl::InfiniteDuration()) {
    context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout));
  }
}

int Call::Finish(const grpc::Status& status, std::string_view interrupted) {
  if (status.ok()) return kExitOk;
  if (scope_.interrupted() && status.error_code() == grpc::StatusCode::CANCELLED) {
    session_.console.err << interrupted << '\n';
    return kExitInterrupted;
  }
  const bool connected = session_.channel->GetState(false) == GRPC_CHANNEL_READY;
  const int exit_code = ExitCodeOf(status, connected);
  session_.console.err << DescribeError(status, exit_code, session_.address);
  return exit_code;
}

}  // namespace orcd::ctl
