// A certificate authority for tests, and what it issues.
#ifndef ORCD_INTEGRATION_TESTS_CERTIFICATES_H_
#define ORCD_INTEGRATION_TESTS_CERTIFICATES_H_

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

#include "absl/time/time.h"

namespace orcd::testing {

// A certificate and its key, as PEM.
struct Issued {
  std::string certificate;
  std::string key;
};

// When a certificate is valid, from now on.
struct ValidFor {
  // Begun already for a clock that is a little behind.
  absl::Duration begin = -absl::Minutes(5);
  absl::Duration end = absl::Hours(1);
};

// Owns an authority's key.
class CertificateAuthority {
 public:
  // One that signs itself.
  explicit CertificateAuthority(const std::string& name, const ValidFor& valid = {});
  // One that `parent` has signed.
  CertificateAuthority(const std::string& name, const CertificateAuthority& parent);

  // As PEM.
  const std::string& certificate() const { return pem_; }

  // For `common_name`, and for `localhost` and 127.0.0.1, as client and as server.
  Issued Issue(const std::string& common_name, const ValidFor& valid = {}) const;

 private:
  struct Free {
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
    void operator()(X509* certificate) const { X509_free(certificate); }
  };
  using Key = std::unique_ptr<EVP_PKEY, Free>;
  using Certificate = std::unique_ptr<X509, Free>;

  static Key MakeKey();
  // Signed by `issuer_key`; `issuer` is null where it signs itself, as an authority.
  static Certificate Make(const std::string& name, EVP_PKEY* key, X509* issuer,
                          EVP_PKEY* issuer_key, bool is_authority, const ValidFor& valid);

  Key key_;
  Certificate certificate_;
  std::string pem_;
};

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_CERTIFICATES_H_
