#include "worker/security/guard/tls_session.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace orcd::guard {
namespace {

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

int DescriptorOf(BIO* bio) {
  return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio)));
}

int SendTo(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  // OpenSSL's own BIO writes with write(), whose SIGPIPE would end the process.
  const ssize_t sent =
      send(DescriptorOf(bio), bytes, static_cast<size_t>(size), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && WouldBlock()) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int ReceiveFrom(BIO* bio, char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t received = recv(DescriptorOf(bio), bytes, static_cast<size_t>(size), MSG_DONTWAIT);
  if (received < 0 && WouldBlock()) BIO_set_retry_read(bio);
  return static_cast<int>(received);
}

long Control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

BIO_METHOD* SocketMethod() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "guard socket");
    BIO_meth_set_write(made, SendTo);
    BIO_meth_set_read(made, ReceiveFrom);
    BIO_meth_set_ctrl(made, Control);
    return made;
  }();
  return method;
}

std::string Utf8Of(const ASN1_STRING* text) {
  unsigned char* bytes = nullptr;
  const int size = ASN1_STRING_to_UTF8(&bytes, text);
  if (size < 0) return "";
  std::string result(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
  OPENSSL_free(bytes);
  return result;
}

std::string CommonName(X509* certificate) {
  X509_NAME* subject = X509_get_subject_name(certificate);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at < 0) return "";
  return Utf8Of(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
}

std::string AddressText(const ASN1_OCTET_STRING* address) {
  const int size = ASN1_STRING_length(address);
  const int family = size == 4 ? AF_INET : size == 16 ? AF_INET6 : AF_UNSPEC;
  char text[INET6_ADDRSTRLEN];
  if (family == AF_UNSPEC ||
      inet_ntop(family, ASN1_STRING_get0_data(address), text, sizeof(text)) == nullptr) {
    return "";
  }
  return text;
}

void AppendAlternativeNames(X509* certificate, std::vector<std::string>& names) {
  auto* all = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(all); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(all, i);
    switch (name->type) {
      case GEN_DNS:
        names.push_back(Utf8Of(name->d.dNSName));
        break;
      case GEN_EMAIL:
        names.push_back(Utf8Of(name->d.rfc822Name));
        break;
      case GEN_URI:
        names.push_back(Utf8Of(name->d.uniformResourceIdentifier));
        break;
      case GEN_IPADD:
        names.push_back(AddressText(name->d.iPAddress));
        break;
      default:
        break;
    }
  }
  GENERAL_NAMES_free(all);
}

}  // namespace

TlsSession::TlsSession(std::shared_ptr<SSL_CTX> context, int fd)
    : context_(std::move(context)), ssl_(SSL_new(context_.get())) {
  if (ssl_ == nullptr) return;
  BIO* bio = BIO_new(SocketMethod());
  if (bio == nullptr) {
    ssl_.reset();
    return;
  }
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
  SSL_set_mode(ssl_.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                               SSL_MODE_RELEASE_BUFFERS);
  SSL_set_options(ssl_.get(), SSL_OP_NO_RENEGOTIATION);
  SSL_set_min_proto_version(ssl_.get(), TLS1_2_VERSION);
  SSL_set_read_ahead(ssl_.get(), 1);
  SSL_set_accept_state(ssl_.get());
}

IoResult TlsSession::ResultOf(int returned) {
  switch (SSL_get_error(ssl_.get(), returned)) {
    case SSL_ERROR_NONE:
      return IoResult::kDone;
    case SSL_ERROR_WANT_READ:
      return IoResult::kWantRead;
    case SSL_ERROR_WANT_WRITE:
      return IoResult::kWantWrite;
    default:
      ERR_clear_error();
      return IoResult::kClosed;
  }
}

IoResult TlsSession::Handshake() {
  if (ssl_ == nullptr) return IoResult::kClosed;
  ERR_clear_error();
  return ResultOf(SSL_do_handshake(ssl_.get()));
}

IoResult TlsSession::Read(std::span<uint8_t> bytes, size_t& count) {
  count = 0;
  while (count < bytes.size()) {
    size_t read = 0;
    ERR_clear_error();
    const int returned = SSL_read_ex(ssl_.get(), bytes.data() + count, bytes.size() - count, &read);
    if (returned <= 0) return ResultOf(returned);
    count += read;
  }
  return IoResult::kDone;
}

IoResult TlsSession::Write(std::span<const uint8_t> bytes, size_t& count) {
  count = 0;
  while (count < bytes.size()) {
    size_t written = 0;
    ERR_clear_error();
    const int returned =
        SSL_write_ex(ssl_.get(), bytes.data() + count, bytes.size() - count, &written);
    if (returned <= 0) return ResultOf(returned);
    count += written;
  }
  return IoResult::kDone;
}

void TlsSession::SendCloseNotify() {
  if (ssl_ == nullptr || SSL_is_init_finished(ssl_.get()) == 0) return;
  ERR_clear_error();
  SSL_shutdown(ssl_.get());
  ERR_clear_error();
}

std::vector<std::string> TlsSession::PeerNames() const {
  std::vector<std::string> names;
  X509* certificate = SSL_get0_peer_certificate(ssl_.get());
  if (certificate == nullptr || SSL_get_verify_result(ssl_.get()) != X509_V_OK ||
      (SSL_get_verify_mode(ssl_.get()) & SSL_VERIFY_PEER) == 0) {
    return names;
  }
  names.push_back(CommonName(certificate));
  AppendAlternativeNames(certificate, names);
  return names;
}

}  // namespace orcd::guard
