// The credentials with which orcdctl authenticates itself and the worker.
#ifndef ORCD_TOOLS_ORCDCTL_CREDENTIALS_H_
#define ORCD_TOOLS_ORCDCTL_CREDENTIALS_H_

#include <grpcpp/security/credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace orcd::ctl {

// Paths of files; empty: none.
struct CredentialFiles {
  // Certificate authorities (PEM) that must have signed the worker's certificate. Empty: plaintext.
  std::string ca;
  // The client's certificate and key (PEM), for workers that ask for one.
  std::string certificate;
  std::string key;
  // A bearer token; the file contains nothing else.
  std::string token;
};

struct Credentials {
  std::shared_ptr<grpc::ChannelCredentials> channel;
  // Empty: none.
  std::string token;
};

// kInvalidArgument, naming the file, if one cannot be read.
absl::StatusOr<Credentials> ReadCredentials(const CredentialFiles& files);

}  // namespace orcd::ctl

#endif  // ORCD_TOOLS_ORCDCTL_CREDENTIALS_H_
