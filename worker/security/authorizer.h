// Decides which callers may make which calls.
#ifndef ORCD_WORKER_SECURITY_AUTHORIZER_H_
#define ORCD_WORKER_SECURITY_AUTHORIZER_H_

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
#include "worker/security/watched_files.h"

namespace orcd {

enum class Permission {
  // Health and status calls: any known caller.
  kStatus,
  // Generate, Cancel, Tokenize, and their equivalents in the other protocols.
  kInference,
  // Load, Unload, Drain and their equivalents in the other protocols; SubscribeKvEvents, which
  // reveals the beginnings of everybody's prompts; and gRPC's own channelz.
  kControl,
};

// Grants a caller the permissions of its certificate or of its bearer token, whichever allows more.
// If a token file is set, a caller with an unknown token is refused, whatever its certificate.
//
// TLS has verified the certificate before. It grants the permissions of every list that names its
// common name or one of its alternative names, and everything if neither lists nor tokens are
// configured. A token grants the permissions that the token file gives it. Each line of that file
// is `inference TOKEN`, `control TOKEN` or `inference,control TOKEN`; blank lines and lines that
// begin with `#` are skipped. If nothing is configured, everyone may do everything.
//
// Owns the tokens, as their SHA-256. Any thread may call.
class Authorizer {
 public:
  struct Options {
    // True if clients must show certificates.
    bool client_certificates = false;
    std::vector<std::string> inference_clients;
    std::vector<std::string> control_clients;
    // Read again within about a second of a change. An unusable file, such as an empty one, leaves
    // the tokens unchanged; a file with nothing but comments removes all of them.
    std::string token_file;
  };
  // The credentials that a caller presented.
  struct Caller {
    // Names in its certificate.
    std::vector<std::string> names;
    // The value of the `authorization` header, such as `Bearer abc`; empty if absent.
    std::string_view authorization;
  };

  // Fails with kInvalidArgument (TOKEN_FILE_INVALID) if the file is unusable at this moment.
  static absl::StatusOr<std::unique_ptr<Authorizer>> Create(Options options, FileWatcher& watcher);

  // True if everyone may do everything.
  bool open() const { return open_; }

  // Returns kUnauthenticated (UNAUTHENTICATED) for an unknown caller and kPermissionDenied
  // (PERMISSION_DENIED) for a known one without the permission.
  absl::Status Check(const grpc::ServerContextBase& context, Permission permission) const;
  absl::Status Check(const Caller& caller, Permission permission) const;
  // The check that is possible before a call's body is read: kUnauthenticated for an unknown
  // caller, unless the method belongs to one of gRPC's own services. `names` are those in the
  // caller's certificate.
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
  // True if the token is known; adds its permissions to `grant`.
  bool FindToken(std::string_view token, Grant& grant) const;

  const Options options_;
  const bool open_;
  const std::optional<LastGood<Tokens>> tokens_;
};

// Same as Authorizer::Check; if `authorizer` is null, everyone may do everything.
inline absl::Status Authorize(const Authorizer* authorizer, const grpc::ServerContextBase& context,
                              Permission permission) {
  return authorizer == nullptr ? absl::OkStatus() : authorizer->Check(context, permission);
}

}  // namespace orcd

#endif  // ORCD_WORKER_SECURITY_AUTHORIZER_H_
