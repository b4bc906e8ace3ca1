// How orcdctl proves who it is, and knows the worker.
#ifndef ORCD_TOOLS_ORCDCTL_CREDENTIALS_H_
#define ORCD_TOOLS_ORCDCTL_CREDENTIALS_H_

#include <grpcpp/security/credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace orcd::ctl {

// Paths of files; empty where there is none.
struct CredentialFiles {
  // Authorities that the worker's certificate must have (PEM). Empty: plaintext.
  std::string ca;
  // The own certificate and its key (PEM), for workers that ask for one.
  std::string certificate;
  std::string key;
  // A bearer token, alone in its file.
  std::string token;
};

struct Credentials {
  std::shared_ptr<grpc::ChannelCredentials> channel;
  // Empty: none.
  std::string token;
};

// kInvalidArgument, naming the file, where one cannot be read.
absl::StatusOr<Credentials> ReadCredentials(const CredentialFiles& files);

}  // namespace orcd::ctl

#endif  // ORCD_TOOLS_ORCDCTL_CREDENTIALS_H_
