#include "tools/orcdctl/credentials.h"

#include <fstream>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace orcd::ctl {
namespace {

// Returns the contents of the file; empty if there is no path.
absl::StatusOr<std::string> Read(const std::string& path) {
  if (path.empty()) return "";
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (!file || !(content << file.rdbuf())) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read, or is empty"));
  }
  return content.str();
}

}  // namespace

absl::StatusOr<Credentials> ReadCredentials(const CredentialFiles& files) {
  const absl::StatusOr<std::string> ca = Read(files.ca);
  const absl::StatusOr<std::string> certificate = Read(files.certificate);
  const absl::StatusOr<std::string> key = Read(files.key);
  const absl::StatusOr<std::string> token = Read(files.token);
  for (const auto* read : {&ca, &certificate, &key, &token}) {
    if (!read->ok()) return read->status();
  }
  Credentials credentials;
  credentials.token = std::string(absl::StripAsciiWhitespace(*token));
  if (files.ca.empty()) {
    credentials.channel = grpc::InsecureChannelCredentials();
  } else {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = *ca;
    options.pem_cert_chain = *certificate;
    options.pem_private_key = *key;
    credentials.channel = grpc::SslCredentials(options);
  }
  return credentials;
}

}  // namespace orcd::ctl
