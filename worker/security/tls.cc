#include "worker/security/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

constexpr char kAdvice[] = "give a readable PEM file";

// Ciphers of TLS 1.2 that HTTP/2 (RFC 9113) allows, all with forward secrecy. Those of TLS 1.3 all
// qualify.
constexpr char kCiphers[] =
    "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:"
    "ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384:ECDHE-RSA-CHACHA20-POLY1305";

// ALPN's name of HTTP/2, with its length before it.
constexpr unsigned char kHttp2[] = {2, 'h', '2'};

template <auto kFree>
struct FreeWith {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Bio = std::unique_ptr<BIO, FreeWith<&BIO_free_all>>;
using Certificate = std::shared_ptr<X509>;
using Key = std::shared_ptr<EVP_PKEY>;
using Context = std::shared_ptr<SSL_CTX>;

absl::Status Invalid(const std::string& path, std::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat(path, ": ", std::string(what), "; ", kAdvice),
                   {.reason = "TLS_FILE_INVALID", .subject = path});
}

// Returns OpenSSL's reason for the preceding error, and clears the error queue.
std::string OpenSslReason() {
  const unsigned long error = ERR_peek_last_error();
  const char* const reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  ERR_clear_error();
  return reason == nullptr ? "OpenSSL names no reason" : reason;
}

Bio Open(const std::string& pem) {
  ERR_clear_error();
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// Without a callback OpenSSL would ask the terminal for a password.
int NoPassword(char*, int, int, void*) { return 0; }

// Reads all certificates of a file, at least one. A damaged one is an error, wherever it stands: to
// continue without it would refuse whoever depends on it.
absl::StatusOr<std::vector<Certificate>> ReadCertificates(const std::string& path,
                                                          const std::string& pem) {
  const Bio bio = Open(pem);
  std::vector<Certificate> certificates;
  for (;;) {
    Certificate certificate(PEM_read_bio_X509_AUX(bio.get(), nullptr, NoPassword, nullptr),
                            FreeWith<&X509_free>());
    if (certificate == nullptr) break;
    certificates.push_back(std::move(certificate));
  }
  if (ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE) {
    return Invalid(path, absl::StrCat("its certificate number ", certificates.size() + 1,
                                      " is damaged (", OpenSslReason(), ")"));
  }
  ERR_clear_error();
  if (certificates.empty()) return Invalid(path, "holds no certificate");
  return certificates;
}

absl::StatusOr<Key> ReadKey(const std::string& path, const std::string& pem) {
  const Bio bio = Open(pem);
  Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassword, nullptr),
          FreeWith<&EVP_PKEY_free>());
  ERR_clear_error();
  if (key == nullptr) return Invalid(path, "holds no private key without a password");
  return key;
}

absl::Time ToTime(const ASN1_TIME* time) {
  std::tm parts = {};
  // The conversion fails only for an invalid time, which an X509 does not hold.
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

Validity ValidityOf(const Certificate& certificate) {
  return {.begin = ToTime(X509_get0_notBefore(certificate.get())),
          .end = ToTime(X509_get0_notAfter(certificate.get()))};
}

// Returns a warning for certificates that are used although they are not valid now; empty if they
// are valid.
std::string WarningOf(const std::string& path, const Validity& validity) {
  const absl::Time now = absl::Now();
  const bool expired = now > validity.end;
  if (!expired && now >= validity.begin) return "";
  return absl::StrCat(
      path, expired ? ": its certificate expired at " : ": its certificate is not valid before ",
      absl::FormatTime(absl::RFC3339_sec, expired ? validity.end : validity.begin,
                       absl::UTCTimeZone()),
      "; connections are refused for it: replace it, or set the clock right");
}

// OpenSSL does not call SelectHttp2 for a client that offers nothing by ALPN.
int RequireAlpn(SSL* ssl, int* alert, void*) {
  const unsigned char* data = nullptr;
  size_t size = 0;
  if (SSL_client_hello_get0_ext(ssl, TLSEXT_TYPE_application_layer_protocol_negotiation, &data,
                                &size) == 1) {
    return SSL_CLIENT_HELLO_SUCCESS;
  }
  *alert = SSL_AD_NO_APPLICATION_PROTOCOL;
  return SSL_CLIENT_HELLO_ERROR;
}

int SelectHttp2(SSL*, const unsigned char** selected, unsigned char* selected_size,
                const unsigned char* offered, unsigned int offered_size, void*) {
  unsigned char* found = nullptr;
  const int result =
      SSL_select_next_proto(&found, selected_size, kHttp2, sizeof(kHttp2), offered, offered_size);
  if (result != OPENSSL_NPN_NEGOTIATED) return SSL_TLSEXT_ERR_ALERT_FATAL;
  *selected = found;
  return SSL_TLSEXT_ERR_OK;
}

Context NewContext(const SSL_METHOD* method) {
  ERR_clear_error();
  return Context(SSL_CTX_new(method), FreeWith<&SSL_CTX_free>());
}

// Returns null if there is no memory. `clients` may be null.
Context NewServerContext(const KeyPair& own, const Authorities* clients) {
  Context made = NewContext(TLS_server_method());
  SSL_CTX* const context = made.get();
  if (context == nullptr || SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1 ||
      SSL_CTX_set_cipher_list(context, kCiphers) != 1 || !own.AddTo(context)) {
    ERR_clear_error();
    return nullptr;
  }
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                   SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  // An idle connection needs no buffers.
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_client_hello_cb(context, RequireAlpn, nullptr);
  SSL_CTX_set_alpn_select_cb(context, SelectHttp2, nullptr);
  if (clients != nullptr) {
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    if (!clients->AddTo(context)) {
      ERR_clear_error();
      return nullptr;
    }
  }
  return made;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const KeyPair>> KeyPair::Parse(const std::string& certificate_path,
                                                              const std::string& certificate_pem,
                                                              const std::string& key_path,
                                                              const std::string& key_pem) {
  std::shared_ptr<KeyPair> pair(new KeyPair);
  ORCD_ASSIGN_OR_RETURN(pair->chain_, ReadCertificates(certificate_path, certificate_pem));
  ORCD_ASSIGN_OR_RETURN(pair->key_, ReadKey(key_path, key_pem));
  if (X509_check_private_key(pair->chain_.front().get(), pair->key_.get()) != 1) {
    ERR_clear_error();
    return Invalid(key_path,
                   absl::StrCat("is not the key of the certificate in ", certificate_path));
  }
  // Here OpenSSL refuses certificates that parse but are too weak, such as one with a key of 512
  // bits.
  if (const Context trial = NewContext(TLS_method()); !pair->AddTo(trial.get())) {
    return Invalid(certificate_path, absl::StrCat("cannot be served with: ", OpenSslReason()));
  }
  pair->certificate_pem_ = certificate_pem;
  pair->key_pem_ = key_pem;
  pair->validity_ = ValidityOf(pair->chain_.front());
  for (const Certificate& certificate : pair->chain_) {
    const Validity validity = ValidityOf(certificate);
    pair->validity_.begin = std::max(pair->validity_.begin, validity.begin);
    pair->validity_.end = std::min(pair->validity_.end, validity.end);
  }
  return pair;
}

bool KeyPair::AddTo(SSL_CTX* context) const {
  if (context == nullptr || SSL_CTX_use_certificate(context, chain_.front().get()) != 1 ||
      SSL_CTX_use_PrivateKey(context, key_.get()) != 1) {
    return false;
  }
  return std::all_of(chain_.begin() + 1, chain_.end(), [context](const Certificate& certificate) {
    return SSL_CTX_add1_chain_cert(context, certificate.get()) == 1;
  });
}

absl::StatusOr<std::shared_ptr<const Authorities>> Authorities::Parse(const std::string& path,
                                                                      const std::string& pem) {
  std::shared_ptr<Authorities> authorities(new Authorities);
  ORCD_ASSIGN_OR_RETURN(authorities->certificates_, ReadCertificates(path, pem));
  if (const Context trial = NewContext(TLS_method()); !authorities->AddTo(trial.get())) {
    return Invalid(path, absl::StrCat("cannot be trusted: ", OpenSslReason()));
  }
  authorities->pem_ = pem;
  authorities->validity_ = ValidityOf(authorities->certificates_.front());
  for (const Certificate& certificate : authorities->certificates_) {
    const Validity validity = ValidityOf(certificate);
    authorities->validity_.begin = std::min(authorities->validity_.begin, validity.begin);
    authorities->validity_.end = std::max(authorities->validity_.end, validity.end);
  }
  return authorities;
}

bool Authorities::AddTo(SSL_CTX* context) const {
  if (context == nullptr) return false;
  X509_STORE* const store = SSL_CTX_get_cert_store(context);
  // An authority that another one has signed is trusted by itself.
  X509_STORE_set_flags(store, X509_V_FLAG_PARTIAL_CHAIN | X509_V_FLAG_TRUSTED_FIRST);
  return std::all_of(certificates_.begin(), certificates_.end(), [&](const Certificate& authority) {
    return X509_STORE_add_cert(store, authority.get()) == 1 &&
           SSL_CTX_add_client_CA(context, authority.get()) == 1;
  });
}

absl::StatusOr<LastGood<KeyPair>> WatchKeyPair(const std::string& certificate_path,
                                               const std::string& key_path, FileWatcher& watcher,
                                               const CertificateHook& on_certificate) {
  return LastGood<KeyPair>::Watch(
      watcher,
      {.paths = {certificate_path, key_path}, .reason = "TLS_FILE_INVALID", .advice = kAdvice},
      [=](const std::vector<std::string>& contents) {
        auto pair = KeyPair::Parse(certificate_path, contents[0], key_path, contents[1]);
        if (pair.ok() && on_certificate) on_certificate("tls-cert", (*pair)->validity());
        return pair;
      },
      [=](const KeyPair& pair) { return WarningOf(certificate_path, pair.validity()); });
}

absl::StatusOr<LastGood<Authorities>> WatchAuthorities(const std::string& path,
                                                       const std::string& name,
                                                       FileWatcher& watcher,
                                                       const CertificateHook& on_certificate) {
  return LastGood<Authorities>::Watch(
      watcher, {.paths = {path}, .reason = "TLS_FILE_INVALID", .advice = kAdvice},
      [=](const std::vector<std::string>& contents) {
        auto authorities = Authorities::Parse(path, contents[0]);
        if (authorities.ok() && on_certificate) {
          on_certificate(name, (*authorities)->validity());
        }
        return authorities;
      },
      [=](const Authorities& authorities) { return WarningOf(path, authorities.validity()); });
}

ServerTls::ServerTls(LastGood<KeyPair> own, std::optional<LastGood<Authorities>> clients)
    : own_(std::move(own)), clients_(std::move(clients)) {}

std::shared_ptr<SSL_CTX> ServerTls::context() const {
  std::shared_ptr<const KeyPair> own = own_.Get();
  std::shared_ptr<const Authorities> clients = clients_ ? clients_->Get() : nullptr;
  std::lock_guard lock(mutex_);
  if (own != own_used_ || clients != clients_used_) {
    Context made = NewServerContext(*own, clients.get());
    // If there is no memory for a new context, keep the previous one.
    if (made == nullptr) return context_;
    context_ = std::move(made);
    own_used_ = std::move(own);
    clients_used_ = std::move(clients);
  }
  return context_;
}

ClientTls::ClientTls(LastGood<Authorities> servers, std::optional<LastGood<KeyPair>> own)
    : servers_(std::move(servers)), own_(std::move(own)) {}

std::shared_ptr<grpc::ChannelCredentials> ClientTls::credentials() const {
  std::shared_ptr<const Authorities> servers = this->servers();
  std::shared_ptr<const KeyPair> own = this->own();
  std::lock_guard lock(mutex_);
  if (servers != servers_used_ || own != own_used_) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = servers->pem();
    if (own != nullptr) {
      options.pem_private_key = own->key_pem();
      options.pem_cert_chain = own->certificate_pem();
    }
    credentials_ = grpc::SslCredentials(options);
    servers_used_ = std::move(servers);
    own_used_ = std::move(own);
  }
  return credentials_;
}

}  // namespace orcd
