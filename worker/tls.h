// TLS for the worker's server and for its calls to orchestrators and collectors.
#ifndef ORCD_WORKER_TLS_H_
#define ORCD_WORKER_TLS_H_

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace orcd {

// Paths of PEM files. They are read again within seconds of a change, for connections that are made
// after it; a change must replace certificate and key together, as a renamed symbolic link to their
// folder does. What cannot be used keeps new connections out until it is put right.
struct TlsFiles {
  // The own certificate, its chain after it, and its key; both or neither.
  std::string certificate;
  std::string key;
  // The authorities whose certificates the other side must have.
  std::string ca;
};

// Credentials of a server with `files.certificate`, which are required. With `files.ca` a client
// must show a certificate, too. kInvalidArgument (TLS_FILE_INVALID), naming the file, where one
// cannot be used as it is now.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsFiles& files);

// Credentials of a client that trusts `files.ca`, which is required, and shows `files.certificate`
// where it is set. Errors as above.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsFiles& files);

}  // namespace orcd

#endif  // ORCD_WORKER_TLS_H_
