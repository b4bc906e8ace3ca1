#include "worker/security/tls.h"

#include <openssl/err.h>

#include <fstream>
#include <map>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "integration_tests/certificates.h"
#include "runtime/base/error.h"
#include "testing/files.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using CertificateAuthority = testing::CertificateAuthority;
using Issued = testing::Issued;

struct FreeSsl {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using Ssl = std::unique_ptr<SSL, FreeSsl>;
using SslContext = std::unique_ptr<SSL_CTX, FreeSsl>;

// Options of an in-memory client.
struct ClientOptions {
  // PEM of the authority that must have signed the server's certificate.
  std::string trusts;
  // Null: no certificate is shown.
  const Issued* shows = nullptr;
  int max_version = TLS1_3_VERSION;
  // ALPN's wire form; empty: no protocol is offered.
  std::string protocols = "\x02h2";
};

class TlsTest : public ::testing::Test {
 protected:
  static void Write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::trunc) << text;
  }
  void WritePair(const Issued& issued) {
    Write(certificate_, issued.certificate);
    Write(key_, issued.key);
  }

  // With `authorities`, clients must show a certificate signed by those in ca_.
  std::unique_ptr<ServerTls> NewServer(bool authorities = false) {
    auto own = WatchKeyPair(certificate_, key_, watcher_, Hook());
    EXPECT_TRUE(own.ok()) << own.status();
    if (!own.ok()) return nullptr;
    std::optional<LastGood<Authorities>> clients;
    if (authorities) {
      auto watched = WatchAuthorities(ca_, "tls-client-ca", watcher_, Hook());
      EXPECT_TRUE(watched.ok()) << watched.status();
      if (!watched.ok()) return nullptr;
      clients = *watched;
    }
    return std::make_unique<ServerTls>(*own, clients);
  }
  CertificateHook Hook() {
    return [this](std::string_view name, const Validity& validity) {
      EXPECT_LT(validity.begin, validity.end);
      expiry_[std::string(name)] = validity.end;
    };
  }

  // Returns the log of two looks, after which a change counts.
  std::string Look() {
    ::testing::internal::CaptureStderr();
    watcher_.Look();
    watcher_.Look();
    return ::testing::internal::GetCapturedStderr();
  }

  static Ssl Connect(SSL_CTX* context, bool server, BIO* in, BIO* out) {
    Ssl ssl(SSL_new(context));
    SSL_set_bio(ssl.get(), in, out);
    server ? SSL_set_accept_state(ssl.get()) : SSL_set_connect_state(ssl.get());
    return ssl;
  }

  // Returns the common name that the server shows, or "refused".
  static std::string Handshake(const ServerTls& server, const ClientOptions& options) {
    const SslContext context(SSL_CTX_new(TLS_client_method()));
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    EXPECT_TRUE((*Authorities::Parse("trusted", options.trusts))->AddTo(context.get()));
    SSL_CTX_set_max_proto_version(context.get(), options.max_version);
    if (options.shows != nullptr) {
      const auto pair =
          KeyPair::Parse("cert", options.shows->certificate, "key", options.shows->key);
      EXPECT_TRUE(pair.ok() && (*pair)->AddTo(context.get()));
    }
    if (!options.protocols.empty()) {
      SSL_CTX_set_alpn_protos(context.get(),
                              reinterpret_cast<const unsigned char*>(options.protocols.data()),
                              static_cast<unsigned int>(options.protocols.size()));
    }
    BIO* to_server = BIO_new(BIO_s_mem());
    BIO* to_client = BIO_new(BIO_s_mem());
    BIO_up_ref(to_server);
    BIO_up_ref(to_client);
    const Ssl client = Connect(context.get(), false, to_client, to_server);
    const Ssl accepted = Connect(server.context().get(), true, to_server, to_client);
    bool done = false;
    for (int i = 0; i < 10 && !done; ++i) {
      const int c = SSL_do_handshake(client.get());
      const int s = SSL_do_handshake(accepted.get());
      done = c == 1 && s == 1;
    }
    ERR_clear_error();
    if (!done) return "refused";
    char name[100] = "";
    const std::unique_ptr<X509, void (*)(X509*)> peer(SSL_get1_peer_certificate(client.get()),
                                                      X509_free);
    X509_NAME_get_text_by_NID(X509_get_subject_name(peer.get()), NID_commonName, name,
                              sizeof(name));
    return name;
  }
  std::string Shown(const ServerTls& server) const {
    return Handshake(server, {.trusts = authority_.certificate()});
  }

  const Logger log_{LogFormat::kText, LogLevel::kInfo};
  FileWatcher watcher_{log_, absl::Hours(1)};
  const CertificateAuthority authority_{"fleet"};
  const TempDir dir_;
  const std::string certificate_ = dir_.File("cert.pem");
  const std::string key_ = dir_.File("key.pem");
  const std::string ca_ = dir_.File("ca.pem");
  std::map<std::string, absl::Time> expiry_;
};

TEST_F(TlsTest, UnusableFilesAtTheStartAreNamed) {
  const Issued good = authority_.Issue("worker");
  const Issued other = authority_.Issue("other");
  const struct {
    const char* what;
    std::string certificate;
    std::string key;
    std::string named;
    std::string reason;
  } cases[] = {
      {"empty certificate", "", good.key, certificate_, "is empty"},
      {"empty key", good.certificate, "", key_, "is empty"},
      {"no certificate", "nonsense", good.key, certificate_, "holds no certificate"},
      {"no key", good.certificate, "nonsense", key_, "holds no private key"},
      {"another's key", good.certificate, other.key, key_, "is not the key of the certificate"},
      {"cut certificate", good.certificate.substr(0, 200), good.key, certificate_, "number 1"},
      {"cut chain", good.certificate + authority_.certificate().substr(0, 200), good.key,
       certificate_, "its certificate number 2 is damaged"},
      {"damaged", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", good.key,
       certificate_, "number 1 is damaged"},
  };
  for (const auto& c : cases) {
    Write(certificate_, c.certificate);
    Write(key_, c.key);
    const absl::Status status = WatchKeyPair(certificate_, key_, watcher_, Hook()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.what;
    EXPECT_EQ(GetErrorDetails(status).reason, "TLS_FILE_INVALID") << c.what;
    EXPECT_EQ(GetErrorDetails(status).subject, c.named) << c.what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.reason)) << c.what;
  }
  for (const char* text : {"", "nonsense"}) {
    Write(ca_, text);
    const absl::Status status = WatchAuthorities(ca_, "otlp-ca", watcher_, nullptr).status();
    EXPECT_EQ(GetErrorDetails(status).reason, "TLS_FILE_INVALID");
    EXPECT_THAT(std::string(status.message()), HasSubstr(ca_));
  }
  EXPECT_THAT(expiry_, IsEmpty());
}

TEST_F(TlsTest, TheLastGoodPairIsServedWhateverBecomesOfTheFiles) {
  const Issued first = authority_.Issue("first");
  const Issued second = authority_.Issue("second");
  WritePair(first);
  const auto server = NewServer();
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(Shown(*server), "first");
  const auto context = server->context();
  EXPECT_EQ(server->context(), context) << "made once";

  const struct {
    const char* what;
    std::string certificate;
    std::string key;
    std::string warning;
  } cases[] = {
      {"emptied certificate", "", first.key, certificate_ + ": is empty"},
      {"emptied key", first.certificate, "", key_ + ": is empty"},
      {"certificate before its key", second.certificate, first.key,
       key_ + ": is not the key of the certificate in " + certificate_},
      {"garbage", "nonsense", first.key, certificate_ + ": holds no certificate"},
      {"cut certificate", second.certificate.substr(0, second.certificate.size() / 2), second.key,
       certificate_ + ": its certificate number 1 is damaged"},
      {"cut key", second.certificate, second.key.substr(0, second.key.size() / 2),
       key_ + ": holds no private key"},
  };
  for (const auto& c : cases) {
    Write(certificate_, c.certificate);
    Write(key_, c.key);
    EXPECT_THAT(Look(), HasSubstr(c.warning)) << c.what;
    EXPECT_THAT(Look() + Look() + Look(), IsEmpty()) << c.what << ": said more than once";
    EXPECT_EQ(Shown(*server), "first") << c.what;
  }
  WritePair(second);
  EXPECT_THAT(Look(), HasSubstr("info files read again"));
  EXPECT_EQ(Shown(*server), "second");
  EXPECT_THAT(Look(), IsEmpty());
}

TEST_F(TlsTest, AConnectionThatIsMadeKeepsItsContext) {
  WritePair(authority_.Issue("first"));
  const auto server = NewServer();
  ASSERT_NE(server, nullptr);
  const Ssl ssl(SSL_new(server->context().get()));
  WritePair(authority_.Issue("second"));
  Look();
  EXPECT_EQ(Shown(*server), "second");
  EXPECT_NE(SSL_get_SSL_CTX(ssl.get()), server->context().get());
  EXPECT_NE(SSL_get_certificate(ssl.get()), nullptr);
}

TEST_F(TlsTest, ClientsMustShowACertificateOfTheAuthorities) {
  const CertificateAuthority stranger("stranger");
  const CertificateAuthority renewed("renewed");
  WritePair(authority_.Issue("worker"));
  Write(ca_, authority_.certificate());
  const auto server = NewServer(/*authorities=*/true);
  ASSERT_NE(server, nullptr);
  const Issued good = authority_.Issue("router");
  const Issued bad = stranger.Issue("router");
  const Issued later = renewed.Issue("router");
  // A TLS 1.3 client is done before the server has seen its certificate; both sides must be done.
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    const auto shown = [&](const Issued* issued) {
      return Handshake(
          *server, {.trusts = authority_.certificate(), .shows = issued, .max_version = version});
    };
    EXPECT_EQ(shown(&good), "worker");
    EXPECT_EQ(shown(&bad), "refused");
    EXPECT_EQ(shown(nullptr), "refused");
  }
  const auto shown = [&](const Issued* issued) {
    return Handshake(*server, {.trusts = authority_.certificate(), .shows = issued});
  };
  for (const char* text : {"", "nonsense"}) {
    Write(ca_, text);
    EXPECT_THAT(Look(), HasSubstr(ca_)) << text;
    EXPECT_EQ(shown(&good), "worker") << text;
    EXPECT_EQ(shown(&bad), "refused") << text;
  }
  Write(ca_, authority_.certificate() + renewed.certificate());
  EXPECT_THAT(Look(), HasSubstr("read again"));
  EXPECT_EQ(shown(&good), "worker");
  EXPECT_EQ(shown(&later), "worker");
  Write(ca_, renewed.certificate());
  Look();
  EXPECT_EQ(shown(&good), "refused");
  EXPECT_EQ(shown(&later), "worker");
}

TEST_F(TlsTest, TheChainIsShown) {
  const CertificateAuthority intermediate("intermediate", authority_);
  Issued issued = intermediate.Issue("worker");
  issued.certificate += intermediate.certificate();
  WritePair(issued);
  const auto server = NewServer();
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(Shown(*server), "worker");
}

TEST_F(TlsTest, OnlyHttp2OverTls12AndLater) {
  WritePair(authority_.Issue("worker"));
  const auto server = NewServer();
  ASSERT_NE(server, nullptr);
  const auto handshake = [&](int version, const std::string& protocols) {
    return Handshake(
        *server,
        {.trusts = authority_.certificate(), .max_version = version, .protocols = protocols});
  };
  EXPECT_EQ(handshake(TLS1_3_VERSION, "\x02h2"), "worker");
  EXPECT_EQ(handshake(TLS1_2_VERSION, "\x02h2"), "worker");
  EXPECT_EQ(handshake(TLS1_3_VERSION, "\x08http/1.1\x02h2"), "worker");
  EXPECT_EQ(handshake(TLS1_3_VERSION, "\x08http/1.1"), "refused");
  EXPECT_EQ(handshake(TLS1_3_VERSION, ""), "refused");
  EXPECT_EQ(handshake(TLS1_1_VERSION, "\x02h2"), "refused");
}

TEST_F(TlsTest, CertificatesThatAreNotValidNowAreServedWithAWarning) {
  WritePair(authority_.Issue("worker", {.begin = -absl::Hours(2), .end = -absl::Hours(1)}));
  ::testing::internal::CaptureStderr();
  const auto server = NewServer();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr(certificate_ + ": its certificate expired at "));
  ASSERT_NE(server, nullptr);
  EXPECT_THAT(Look(), IsEmpty());
  WritePair(authority_.Issue("worker", {.begin = absl::Hours(1), .end = absl::Hours(2)}));
  EXPECT_THAT(Look(), HasSubstr(": its certificate is not valid before "));
  WritePair(authority_.Issue("worker"));
  EXPECT_THAT(Look(), Not(HasSubstr("valid")));
  EXPECT_EQ(Shown(*server), "worker");
  // The certificate expires while it is in use.
  WritePair(authority_.Issue("worker", {.end = absl::Seconds(2)}));
  Look();
  absl::SleepFor(absl::Seconds(3));
  EXPECT_THAT(Look(), HasSubstr(": its certificate expired at "));
  EXPECT_THAT(Look(), IsEmpty());
}

TEST_F(TlsTest, AuthoritiesAreExpiredOnceAllAre) {
  const CertificateAuthority old("old", {.begin = -absl::Hours(2), .end = -absl::Hours(1)});
  Write(ca_, old.certificate() + authority_.certificate());
  ::testing::internal::CaptureStderr();
  const auto authorities = WatchAuthorities(ca_, "otlp-ca", watcher_, Hook());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), IsEmpty());
  ASSERT_TRUE(authorities.ok()) << authorities.status();
  EXPECT_GT(expiry_["otlp-ca"], absl::Now());
  Write(ca_, old.certificate());
  EXPECT_THAT(Look(), HasSubstr(ca_ + ": its certificate expired at "));
  EXPECT_LT(expiry_["otlp-ca"], absl::Now());
}

TEST_F(TlsTest, TheTimeOfExpiryIsThatOfTheCertificatesInUse) {
  WritePair(authority_.Issue("worker", {.end = absl::Hours(30)}));
  const auto server = NewServer();
  ASSERT_NE(server, nullptr);
  const auto left = [&] { return expiry_["tls-cert"] - absl::Now(); };
  EXPECT_GT(left(), absl::Hours(29));
  EXPECT_LT(left(), absl::Hours(31));
  Write(certificate_, "");
  Look();
  EXPECT_GT(left(), absl::Hours(29));
  Issued chained = authority_.Issue("worker", {.end = absl::Hours(50)});
  WritePair(chained);
  Look();
  EXPECT_GT(left(), absl::Hours(49));
  // The authority's certificate, which follows in the chain, ends sooner.
  chained.certificate += authority_.certificate();
  WritePair(chained);
  Look();
  EXPECT_LT(left(), absl::Hours(2));
}

TEST_F(TlsTest, AClientsCredentialsChangeWithTheFilesAndOnlyThen) {
  WritePair(authority_.Issue("worker"));
  Write(ca_, authority_.certificate());
  const auto own = WatchKeyPair(certificate_, key_, watcher_, Hook());
  const auto servers = WatchAuthorities(ca_, "orchestrator-ca", watcher_, Hook());
  ASSERT_TRUE(own.ok() && servers.ok());
  const ClientTls client(*servers, *own);
  auto credentials = client.credentials();
  ASSERT_NE(credentials, nullptr);
  EXPECT_EQ(client.credentials(), credentials);
  const auto changes = [&] {
    auto now = client.credentials();
    return std::exchange(credentials, now) != now;
  };
  for (const std::string& path : {certificate_, key_, ca_}) {
    const std::string before = ReadFile(path);
    Write(path, "");
    Look();
    EXPECT_FALSE(changes()) << path;
    Write(path, before);
    Look();
    EXPECT_FALSE(changes()) << path;
  }
  WritePair(authority_.Issue("worker"));
  Look();
  EXPECT_TRUE(changes());
  Write(ca_, CertificateAuthority("other").certificate());
  Look();
  EXPECT_TRUE(changes());
  EXPECT_FALSE(changes());
}

}  // namespace
}  // namespace orcd
