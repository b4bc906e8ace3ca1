// Who may make which calls.
#ifndef ORCD_WORKER_AUTHORIZER_H_
#define ORCD_WORKER_AUTHORIZER_H_

#include <grpcpp/server_context.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/logging.h"

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
    // Read again within a second of a change; what cannot be read leaves the tokens as they were.
    std::string token_file;
  };
  // What is known of a caller.
  struct Caller {
    // Of its certificate.
    std::vector<std::string> names;
    // The header's value, such as `Bearer abc`; empty where there is none.
    std::string_view authorization;
  };

  // kInvalidArgument (TOKEN_FILE_INVALID) where the file cannot be used as it is now. `log` must
  // outlive the authorizer.
  static absl::StatusOr<std::unique_ptr<Authorizer>> Create(Options options, const Logger& log);

  // Whether everyone may do everything.
  bool open() const { return open_; }

  // kUnauthenticated (UNAUTHENTICATED) for a caller that is not known, kPermissionDenied
  // (PERMISSION_DENIED) for one that may not.
  absl::Status Check(const grpc::ServerContextBase& context, Permission permission) const;
  absl::Status Check(const Caller& caller, Permission permission) const;

 private:
  using Digest = std::array<uint8_t, 32>;
  struct Grant {
    bool inference = false;
    bool control = false;
  };
  // Which version of the file was read.
  struct Version {
    int64_t modified_ns = 0;
    int64_t size = 0;
    uint64_t inode = 0;
    bool operator==(const Version&) const = default;
  };
  using Tokens = std::map<Digest, Grant>;

  Authorizer(Options options, const Logger& log);

  static absl::StatusOr<Tokens> ReadTokens(const std::string& path);
  static Version VersionOf(const std::string& path);
  Grant GrantOfNames(const std::vector<std::string>& names) const;
  // Whether the token is known, and what it allows.
  bool FindToken(std::string_view token, Grant& grant) const;
  // With mutex_ held: reads the file again where it is due and has changed.
  void RefreshLocked() const;

  const Options options_;
  const Logger& log_;
  const bool open_;

  // Guards what follows.
  mutable std::mutex mutex_;
  mutable Tokens tokens_;
  mutable Version version_;
  // The log has been told that the file cannot be used.
  mutable bool told_ = false;
  mutable absl::Time looked_;
};

// As Authorizer::Check; where `authorizer` is null, everyone may do everything.
inline absl::Status Authorize(const Authorizer* authorizer, const grpc::ServerContextBase& context,
                              Permission permission) {
  return authorizer == nullptr ? absl::OkStatus() : authorizer->Check(context, permission);
}

}  // namespace orcd

#endif  // ORCD_WORKER_AUTHORIZER_H_
