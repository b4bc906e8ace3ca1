// The context of every command: the worker, the console, and the handling of a call's end.
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
  // Calls over `channel`.
  std::unique_ptr<v1::Worker::Stub> worker;
  Console& console;
  Interrupt& interrupt;
  // Bearer token of each call; empty: none.
  std::string token = {};
  bool json = false;
  // Timeout of each call; absent: the command's own default.
  std::optional<absl::Duration> timeout = std::nullopt;
};

// Makes a session with the worker at `address`; the first call connects. The console and the
// interrupt must outlive the session.
Session NewSession(const std::string& address, const Credentials& credentials, Console& console,
                   Interrupt& interrupt);

// One call of a session. Its deadline is the session's, or else `default_timeout` (infinite: none).
// Ctrl-C cancels the call while this object lives.
class Call {
 public:
  Call(Session& session, absl::Duration default_timeout);

  grpc::ClientContext* context() { return &context_; }

  // Prints the error, if there is one, and returns the exit code for `status`. Prints `interrupted`
  // instead if Ctrl-C ended the call.
  int Finish(const grpc::Status& status, std::string_view interrupted);

 private:
  Session& session_;
  grpc::ClientContext context_;
  Interrupt::Scope scope_;
};

// Timeout of calls that the worker answers at once.
inline constexpr absl::Duration kQuickCall = absl::Seconds(10);

}  // namespace orcd::ctl

#endif  // ORCD_TOOLS_ORCDCTL_SESSION_H_
