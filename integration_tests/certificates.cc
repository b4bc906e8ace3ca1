#include "integration_tests/certificates.h"

#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

namespace orcd::testing {
namespace {

std::string Content(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string content(data, static_cast<size_t>(size));
  BIO_free_all(bio);
  return content;
}

std::string ToPem(X509* certificate) {
  BIO* bio = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(bio, certificate);
  return Content(bio);
}

std::string ToPem(EVP_PKEY* key) {
  BIO* bio = BIO_new(BIO_s_mem());
  PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
  return Content(bio);
}

void AddExtension(X509* certificate, X509* issuer, int id, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, id, value);
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

}  // namespace

CertificateAuthority::CertificateAuthority(const std::string& name, const ValidFor& valid)
    : key_(MakeKey()),
      certificate_(Make(name, key_.get(), nullptr, key_.get(), /*is_authority=*/true, valid)),
      pem_(ToPem(certificate_.get())) {}

CertificateAuthority::CertificateAuthority(const std::string& name,
                                           const CertificateAuthority& parent)
    : key_(MakeKey()),
      certificate_(Make(name, key_.get(), parent.certificate_.get(), parent.key_.get(),
                        /*is_authority=*/true, {})),
      pem_(ToPem(certificate_.get())) {}

Issued CertificateAuthority::Issue(const std::string& common_name, const ValidFor& valid) const {
  const Key key = MakeKey();
  const Certificate certificate =
      Make(common_name, key.get(), certificate_.get(), key_.get(), /*is_authority=*/false, valid);
  return {.certificate = ToPem(certificate.get()), .key = ToPem(key.get())};
}

CertificateAuthority::Key CertificateAuthority::MakeKey() { return Key(EVP_EC_gen("P-256")); }

CertificateAuthority::Certificate CertificateAuthority::Make(const std::string& name, EVP_PKEY* key,
                                                             X509* issuer, EVP_PKEY* issuer_key,
                                                             bool is_authority,
                                                             const ValidFor& valid) {
  Certificate certificate(X509_new());
  X509* const made = certificate.get();
  X509_set_version(made, X509_VERSION_3);
  uint32_t serial = 0;
  RAND_bytes(reinterpret_cast<uint8_t*>(&serial), sizeof(serial));
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(made), serial);
  X509_gmtime_adj(X509_getm_notBefore(made), absl::ToInt64Seconds(valid.begin));
  X509_gmtime_adj(X509_getm_notAfter(made), absl::ToInt64Seconds(valid.end));
  X509_set_pubkey(made, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(made), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const uint8_t*>(name.c_str()), -1, -1, 0);
  X509* const signer = issuer == nullptr ? made : issuer;
  X509_set_issuer_name(made, X509_get_subject_name(signer));
  AddExtension(made, signer, NID_basic_constraints,
               is_authority ? "critical,CA:TRUE" : "critical,CA:FALSE");
  if (!is_authority) {
    AddExtension(made, signer, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
    AddExtension(made, signer, NID_ext_key_usage, "serverAuth,clientAuth");
  }
  X509_sign(made, issuer_key, EVP_sha256());
  return certificate;
}

}  // namespace orcd::testing
