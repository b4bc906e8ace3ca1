// Who may make which calls.
#ifndef ORCD_WORKER_AUTHORIZER_H_
#define ORCD_WORKER_AUTHORIZER_H_

#include <grpcpp/server_context.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/watched_files.h"

namespace orcd {

enum class Permission {
  // Asking how the worker does: any caller that is known.
  kStatus,
  // Generate, Cancel, Tokenize, and what does the same by another protocol.
  kInference,
  // Load, Unload, Drain, what does the same by another protocol, SubscribeKvEvents, which tells
  // what everybody's prompts begin with, and gRPC's own channelz.
  kControl,
};

// A caller may do what its certificate or its bearer token allows, whichever allows more; with
// a token that is not known it is refused, whatever its certificate.
//
// A certificate, which TLS has verified before, allows what the lists name its common name or one
// of its alternative names for; where there are neither lists nor tokens, everything. A token
// allows what the file of tokens says: a line each, `inference TOKEN`, `control TOKEN` or
// `inference,control TOKEN`, with blank lines and lines that begin with `#` left out. Where nothing
// is configured everyone may do everything.
//
// Owns the tokens, as their SHA-256. Any thread may call.
class Authorizer {
 public:
  struct Options {
    // Clients must show certificates.
    bool client_certificates = false;
    std::vector<std::string> inference_clients;
    std::vector<std::string> control_clients;
    // Read again within about a second of a change. A file that cannot be used, such as an empty
    // one, leaves the tokens as they were; one with nothing but comments takes all of them away.
    std::string token_file;
  };
  // What is known of a caller.
  struct Caller {
    // Of its certificate.
    std::vector<std::string> names;
    // The header's value, such as `Bearer abc`; empty where there is none.
    std::string_view authorization;
  };

  // kInvalidArgument (TOKEN_FILE_INVALID) where the file cannot be used as it is now.
  static absl::StatusOr<std::unique_ptr<Authorizer>> Create(Options options, FileWatcher& watcher);

  // Whether everyone may do everything.
  bool open() const { return open_; }

  // kUnauthenticated (UNAUTHENTICATED) for a caller that is not known, kPermissionDenied
  // (PERMISSION_DENIED) for one that may not.
  absl::Status Check(const grpc::ServerContextBase& context, Permission permission) const;
  absl::Status Check(const Caller& caller, Permission permission) const;
  // What can be said before a call's body is read: kUnauthenticated for a caller that is not known,
  // unless the method is one of gRPC's own services. `names` are those of its certificate.
  absl::Status CheckKnown(std::string_view method, std::string_view authorization,
                          const std::vector<std::string>& names) const;

 private:
  using Digest = std::array<uint8_t, 32>;
  struct Grant {
    bool inference = false;
    bool control = false;
  };
  using Tokens = std::map<Digest, Grant>;

  Authorizer(Options options, std::optional<LastGood<Tokens>> tokens);

  static absl::StatusOr<std::shared_ptr<const Tokens>> ParseTokens(const std::string& path,
                                                                   const std::string& content);
  Grant GrantOfNames(const std::vector<std::string>& names) const;
  // Whether the token is known, and what it allows.
  bool FindToken(std::string_view token, Grant& grant) const;

  const Options options_;
  const bool open_;
  const std::optional<LastGood<Tokens>> tokens_;
};

// As Authorizer::Check; where `authorizer` is null, everyone may do everything.
inline absl::Status Authorize(const Authorizer* authorizer, const grpc::ServerContextBase& context,
                              Permission permission) {
  return authorizer == nullptr ? absl::OkStatus() : authorizer->Check(context, permission);
}

}  // namespace orcd

#endif  // ORCD_WORKER_AUTHORIZER_H_
