// What every command works with: the worker, the console and how a call ends.
#ifndef ORCD_TOOLS_ORCDCTL_SESSION_H_
#define ORCD_TOOLS_ORCDCTL_SESSION_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "orcd/v1/worker.grpc.pb.h"
#include "tools/orcdctl/console.h"
#include "tools/orcdctl/credentials.h"
#include "tools/orcdctl/interrupt.h"

namespace orcd::ctl {

struct Session {
  std::string address;
  std::shared_ptr<grpc::Channel> channel;
  // Over `channel`.
  std::unique_ptr<v1::Worker::Stub> worker;
  Console& console;
  Interrupt& interrupt;
  // Bearer token of each call; empty: none.
  std::string token = {};
  bool json = false;
  // Of each call; the command's own default where absent.
  std::optional<absl::Duration> timeout = std::nullopt;
};

// A session with the worker at `address`; connects with the first call. The others outlive it.
Session NewSession(const std::string& address, const Credentials& credentials, Console& console,
                   Interrupt& interrupt);

// One call of a session: its context, with the session's deadline (or `default_timeout`; infinite:
// none), cancelled by Ctrl-C while it lives.
class Call {
 public:
  Call(Session& session, absl::Duration default_timeout);

  grpc::ClientContext* context() { return &context_; }

  // The exit code of a call that ended with `status`; prints the error, if there is one.
  // `interrupted` is what to say where Ctrl-C ended it.
  int Finish(const grpc::Status& status, std::string_view interrupted);

 private:
  Session& session_;
  grpc::ClientContext context_;
  Interrupt::Scope scope_;
};

// What calls that answer at once may take.
inline constexpr absl::Duration kQuickCall = absl::Seconds(10);

}  // namespace orcd::ctl

#endif  // ORCD_TOOLS_ORCDCTL_SESSION_H_
