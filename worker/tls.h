// TLS for the worker's server and for its calls to orchestrators and collectors.
#ifndef ORCD_WORKER_TLS_H_
#define ORCD_WORKER_TLS_H_

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
#include "worker/watched_files.h"

namespace orcd {

// When certificates are valid.
struct Validity {
  absl::Time begin;
  absl::Time end;
};

// A certificate with its chain, and its key. Immutable.
class KeyPair {
 public:
  // The certificate's chain comes after it in the file. Errors name the file that is wrong:
  // kInvalidArgument (TLS_FILE_INVALID).
  static absl::StatusOr<std::shared_ptr<const KeyPair>> Parse(const std::string& certificate_path,
                                                              const std::string& certificate_pem,
                                                              const std::string& key_path,
                                                              const std::string& key_pem);

  const std::string& certificate_pem() const { return certificate_pem_; }
  const std::string& key_pem() const { return key_pem_; }
  // Of certificate and chain: until the first of them expires.
  const Validity& validity() const { return validity_; }
  // False where OpenSSL does not take them, which Parse has tried.
  bool AddTo(SSL_CTX* context) const;

 private:
  KeyPair() = default;

  std::string certificate_pem_;
  std::string key_pem_;
  std::vector<std::shared_ptr<X509>> chain_;
  std::shared_ptr<EVP_PKEY> key_;
  Validity validity_;
};

// Certificates of authorities, any of which the other side's may be signed by. Immutable.
class Authorities {
 public:
  // Errors as KeyPair::Parse.
  static absl::StatusOr<std::shared_ptr<const Authorities>> Parse(const std::string& path,
                                                                  const std::string& pem);

  const std::string& pem() const { return pem_; }
  // Until the last of them expires.
  const Validity& validity() const { return validity_; }
  // False where OpenSSL does not take them, which Parse has tried.
  bool AddTo(SSL_CTX* context) const;

 private:
  Authorities() = default;

  std::string pem_;
  std::vector<std::shared_ptr<X509>> certificates_;
  Validity validity_;
};

// Called when certificates come into use, with the name of their file in metrics, such as
// `tls-cert`: at first by the thread that begins to watch them, then by the watcher's.
using CertificateHook = std::function<void(std::string_view name, const Validity& validity)>;

// PEM files, read again within about a second of a change for connections that are made after it.
// What cannot be used, such as a certificate without its key, leaves what the files held before in
// use (see FileWatcher). Certificates that have expired or are not valid yet are used, and a
// warning says so. Errors, at the start alone, as those of Parse. `on_certificate` may be null.
absl::StatusOr<LastGood<KeyPair>> WatchKeyPair(const std::string& certificate_path,
                                               const std::string& key_path, FileWatcher& watcher,
                                               const CertificateHook& on_certificate);
absl::StatusOr<LastGood<Authorities>> WatchAuthorities(const std::string& path,
                                                       const std::string& name,
                                                       FileWatcher& watcher,
                                                       const CertificateHook& on_certificate);

// What a TLS server shows and asks for. Any thread may call.
class ServerTls {
 public:
  // With `clients` a client must show a certificate that they have signed.
  ServerTls(LastGood<KeyPair> own, std::optional<LastGood<Authorities>> clients);

  // For connections that are made now; null only where there is no memory for one. The same object
  // until the files change; an SSL that is made from it keeps it alive. TLS 1.2 or later with
  // forward secrecy, no resumption, no renegotiation, HTTP/2 alone: a client that does not offer
  // `h2` by ALPN is refused in the handshake.
  std::shared_ptr<SSL_CTX> context() const;

 private:
  const LastGood<KeyPair> own_;
  const std::optional<LastGood<Authorities>> clients_;

  // Guards what follows.
  mutable std::mutex mutex_;
  // What context_ was made from.
  mutable std::shared_ptr<const KeyPair> own_used_;
  mutable std::shared_ptr<const Authorities> clients_used_;
  mutable std::shared_ptr<SSL_CTX> context_;
};

// What a TLS client shows and trusts. Any thread may call.
class ClientTls {
 public:
  // With `own` a server is shown it.
  ClientTls(LastGood<Authorities> servers, std::optional<LastGood<KeyPair>> own);

  // For channels that are made now; a channel keeps those that it was made with. The same object
  // until the files change.
  std::shared_ptr<grpc::ChannelCredentials> credentials() const;

  std::shared_ptr<const Authorities> servers() const { return servers_.Get(); }
  // Null: none is shown.
  std::shared_ptr<const KeyPair> own() const { return own_ ? own_->Get() : nullptr; }

 private:
  const LastGood<Authorities> servers_;
  const std::optional<LastGood<KeyPair>> own_;

  // Guards what follows.
  mutable std::mutex mutex_;
  // What credentials_ were made from.
  mutable std::shared_ptr<const Authorities> servers_used_;
  mutable std::shared_ptr<const KeyPair> own_used_;
  mutable std::shared_ptr<grpc::ChannelCredentials> credentials_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_TLS_H_
