// TLS for the worker's server and for its calls to orchestrators and collectors.
#ifndef ORCD_WORKER_SECURITY_TLS_H_
#define ORCD_WORKER_SECURITY_TLS_H_

#include <grpcpp/security/credentials.h>
#include <openssl/ssl.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/security/watched_files.h"

namespace orcd {

// Period in which certificates are valid.
struct Validity {
  absl::Time begin;
  absl::Time end;
};

// A certificate with its chain, and its key. Immutable.
class KeyPair {
 public:
  // The chain follows the certificate in its file. Fails with kInvalidArgument (TLS_FILE_INVALID),
  // naming the file that is wrong.
  static absl::StatusOr<std::shared_ptr<const KeyPair>> Parse(const std::string& certificate_path,
                                                              const std::string& certificate_pem,
                                                              const std::string& key_path,
                                                              const std::string& key_pem);

  const std::string& certificate_pem() const { return certificate_pem_; }
  const std::string& key_pem() const { return key_pem_; }
  // Validity of certificate and chain: until the first of them expires.
  const Validity& validity() const { return validity_; }
  // Returns false if OpenSSL rejects them, although Parse has tried them.
  bool AddTo(SSL_CTX* context) const;

 private:
  KeyPair() = default;

  std::string certificate_pem_;
  std::string key_pem_;
  std::vector<std::shared_ptr<X509>> chain_;
  std::shared_ptr<EVP_PKEY> key_;
  Validity validity_;
};

// Certificates of authorities. The other side's certificate may be signed by any of them.
// Immutable.
class Authorities {
 public:
  // Fails like KeyPair::Parse.
  static absl::StatusOr<std::shared_ptr<const Authorities>> Parse(const std::string& path,
                                                                  const std::string& pem);

  const std::string& pem() const { return pem_; }
  // Ends when the last of them expires.
  const Validity& validity() const { return validity_; }
  // Returns false if OpenSSL rejects them, although Parse has tried them.
  bool AddTo(SSL_CTX* context) const;

 private:
  Authorities() = default;

  std::string pem_;
  std::vector<std::shared_ptr<X509>> certificates_;
  Validity validity_;
};

// Called when certificates come into use, with the name of their file in metrics, such as
// `tls-cert`: first by the thread that begins to watch them, then by the watcher's thread.
using CertificateHook = std::function<void(std::string_view name, const Validity& validity)>;

// Watch PEM files. Within about a second of a change they are read again, for connections that are
// made afterwards. An unusable change, such as a certificate without its key, leaves the previous
// content in use (see FileWatcher). Certificates that have expired or are not valid yet are used,
// with a warning. Fails, at the start alone, with the errors of Parse. `on_certificate` may be
// null.
absl::StatusOr<LastGood<KeyPair>> WatchKeyPair(const std::string& certificate_path,
                                               const std::string& key_path, FileWatcher& watcher,
                                               const CertificateHook& on_certificate);
absl::StatusOr<LastGood<Authorities>> WatchAuthorities(const std::string& path,
                                                       const std::string& name,
                                                       FileWatcher& watcher,
                                                       const CertificateHook& on_certificate);

// The certificate that a TLS server shows, and the authorities it accepts. Any thread may call.
class ServerTls {
 public:
  // If `clients` is set, a client must show a certificate that these authorities have signed.
  ServerTls(LastGood<KeyPair> own, std::optional<LastGood<Authorities>> clients);

  // Returns the context for connections that are made now; null only if there is no memory for one.
  // The same object until the files change; an SSL that is made from it keeps it alive. TLS 1.2 or
  // later with forward secrecy, no resumption, no renegotiation, HTTP/2 alone: a client that does
  // not offer `h2` by ALPN is refused in the handshake.
  std::shared_ptr<SSL_CTX> context() const;

 private:
  const LastGood<KeyPair> own_;
  const std::optional<LastGood<Authorities>> clients_;

  // Guards the members below.
  mutable std::mutex mutex_;
  // The inputs of context_.
  mutable std::shared_ptr<const KeyPair> own_used_;
  mutable std::shared_ptr<const Authorities> clients_used_;
  mutable std::shared_ptr<SSL_CTX> context_;
};

// The certificate that a TLS client shows, and the authorities it trusts. Any thread may call.
class ClientTls {
 public:
  // If `own` is set, the client shows it to servers.
  ClientTls(LastGood<Authorities> servers, std::optional<LastGood<KeyPair>> own);

  // Returns the credentials for channels that are made now; a channel keeps the credentials that it
  // was made with. The same object until the files change.
  std::shared_ptr<grpc::ChannelCredentials> credentials() const;

  std::shared_ptr<const Authorities> servers() const { return servers_.Get(); }
  // Null: no certificate is shown.
  std::shared_ptr<const KeyPair> own() const { return own_ ? own_->Get() : nullptr; }

 private:
  const LastGood<Authorities> servers_;
  const std::optional<LastGood<KeyPair>> own_;

  // Guards the members below.
  mutable std::mutex mutex_;
  // The inputs of credentials_.
  mutable std::shared_ptr<const Authorities> servers_used_;
  mutable std::shared_ptr<const KeyPair> own_used_;
  mutable std::shared_ptr<grpc::ChannelCredentials> credentials_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_SECURITY_TLS_H_
