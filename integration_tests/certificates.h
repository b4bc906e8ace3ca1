// A certificate authority for tests, and the certificates it issues.
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

// Validity of a certificate, relative to now.
struct ValidFor {
  // In the past, so that the certificate is valid for a clock that is a little behind.
  absl::Duration begin = -absl::Minutes(5);
  absl::Duration end = absl::Hours(1);
};

// Owns an authority's key.
class CertificateAuthority {
 public:
  // Makes an authority that signs itself.
  explicit CertificateAuthority(const std::string& name, const ValidFor& valid = {});
  // Makes an authority whose certificate `parent` has signed.
  CertificateAuthority(const std::string& name, const CertificateAuthority& parent);

  // The authority's certificate, as PEM.
  const std::string& certificate() const { return pem_; }

  // Issues a certificate for `common_name`, `localhost` and 127.0.0.1, valid for clients and
  // servers.
  Issued Issue(const std::string& common_name, const ValidFor& valid = {}) const;

 private:
  struct Free {
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
    void operator()(X509* certificate) const { X509_free(certificate); }
  };
  using Key = std::unique_ptr<EVP_PKEY, Free>;
  using Certificate = std::unique_ptr<X509, Free>;

  static Key MakeKey();
  // Makes a certificate signed by `issuer_key`. A null `issuer` makes a self-signed authority.
  static Certificate Make(const std::string& name, EVP_PKEY* key, X509* issuer,
                          EVP_PKEY* issuer_key, bool is_authority, const ValidFor& valid);

  Key key_;
  Certificate certificate_;
  std::string pem_;
};

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_CERTIFICATES_H_
