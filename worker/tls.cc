#include "worker/tls.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <fstream>
#include <sstream>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/error.h"

namespace orcd {
namespace {

constexpr unsigned int kRefreshSeconds = 1;

template <auto kFree>
struct FreeWith {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Bio = std::unique_ptr<BIO, FreeWith<&BIO_free_all>>;
using Certificate = std::unique_ptr<X509, FreeWith<&X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, FreeWith<&EVP_PKEY_free>>;

absl::Status Invalid(const std::string& path, std::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat(path, ": ", std::string(what), "; give a readable PEM file"),
                   {.reason = "TLS_FILE_INVALID", .subject = path});
}

// What OpenSSL's `read` makes of the first object of its kind in the file.
template <typename Object, typename Read>
absl::StatusOr<Object> ReadPem(const std::string& path, std::string_view kind, Read read) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (!file || !(content << file.rdbuf())) return Invalid(path, "cannot be read");
  const std::string text = content.str();
  const Bio bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  // Without a callback OpenSSL would ask the terminal for a password.
  const auto no_password = [](char*, int, int, void*) { return 0; };
  Object object(read(bio.get(), nullptr, no_password, nullptr));
  if (object == nullptr) return Invalid(path, absl::StrCat("holds no ", std::string(kind)));
  return object;
}

absl::Status Check(const TlsFiles& files) {
  if (!files.ca.empty()) {
    ORCD_RETURN_IF_ERROR(ReadPem<Certificate>(files.ca, "certificate", PEM_read_bio_X509).status());
  }
  if (files.certificate.empty()) return absl::OkStatus();
  ORCD_ASSIGN_OR_RETURN(const Certificate certificate,
                        ReadPem<Certificate>(files.certificate, "certificate", PEM_read_bio_X509));
  ORCD_ASSIGN_OR_RETURN(const Key key, ReadPem<Key>(files.key, "private key without a password",
                                                    PEM_read_bio_PrivateKey));
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return Invalid(files.key,
                   absl::StrCat("is not the key of the certificate in ", files.certificate));
  }
  return absl::OkStatus();
}

std::shared_ptr<grpc::experimental::FileWatcherCertificateProvider> Watch(const TlsFiles& files) {
  return std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      files.key, files.certificate, files.ca, kRefreshSeconds);
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsFiles& files) {
  ORCD_RETURN_IF_ERROR(Check(files));
  grpc::experimental::TlsServerCredentialsOptions options(Watch(files));
  options.watch_identity_key_cert_pairs();
  if (files.ca.empty()) {
    options.set_cert_request_type(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  } else {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsFiles& files) {
  ORCD_RETURN_IF_ERROR(Check(files));
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(Watch(files));
  options.watch_root_certs();
  if (!files.certificate.empty()) options.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(options);
}

}  // namespace orcd
