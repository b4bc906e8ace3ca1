// Access control: who may call a worker, and what its log and its clients see of it.
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "integration_tests/certificates.h"
#include "integration_tests/http_get.h"
#include "integration_tests/scripted_orchestrator.h"
#include "integration_tests/test_models.h"
#include "integration_tests/worker_fixture.h"
#include "testing/files.h"

namespace orcd::testing {
namespace {

namespace fs = std::filesystem;
using grpc::health::v1::HealthCheckResponse;

constexpr char kControlToken[] = "control-secret-0001";
constexpr char kInferenceToken[] = "inference-secret-0001";

class SecurityTest : public WorkerTest {
 protected:
  // Certificates are in a folder behind a symbolic link, so that all change at once.
  void WriteCertificates(const CertificateAuthority& authority, const std::string& worker_name) {
    const std::string folder = absl::StrCat("v", ++version_);
    fs::create_directory(certificates_.File(folder));
    const Issued issued = authority.Issue(worker_name);
    std::ofstream(certificates_.File(folder + "/cert.pem")) << issued.certificate;
    std::ofstream(certificates_.File(folder + "/key.pem")) << issued.key;
    std::ofstream(certificates_.File(folder + "/ca.pem")) << authority.certificate();
    fs::create_directory_symlink(folder, certificates_.File("next"));
    fs::rename(certificates_.File("next"), certificates_.File("now"));
  }
  std::string File(const std::string& name) const { return certificates_.File("now/" + name); }
  std::vector<std::string> TlsArgs() const {
    return {"--tls-cert", File("cert.pem"), "--tls-key", File("key.pem")};
  }
  std::vector<std::string> MutualTlsArgs(std::vector<std::string> more = {}) const {
    std::vector<std::string> args = TlsArgs();
    args.insert(args.end(), {"--tls-client-ca", File("ca.pem")});
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  // A null `client` connects without a client certificate.
  static std::shared_ptr<grpc::Channel> Connect(const std::string& address,
                                                const CertificateAuthority& authority,
                                                const Issued* client) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = authority.certificate();
    if (client != nullptr) {
      options.pem_cert_chain = client->certificate;
      options.pem_private_key = client->key;
    }
    // Gives each channel its own connection, whatever others the test has.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(address, grpc::SslCredentials(options), arguments);
  }

  static RpcError Health(const std::shared_ptr<grpc::Channel>& channel,
                         const std::string& token = "") {
    grpc::ClientContext context;
    Prepare(context, token);
    v1::HealthResponse response;
    return DecodeError(v1::Worker::NewStub(channel)->Health(&context, {}, &response));
  }
  static RpcError Load(const std::shared_ptr<grpc::Channel>& channel, const std::string& token = "",
                       const std::string& sha256 = "") {
    grpc::ClientContext context;
    Prepare(context, token);
    v1::LoadRequest request;
    request.set_model("nano.gguf");
    request.set_sha256(sha256);
    auto reader = v1::Worker::NewStub(channel)->Load(&context, request);
    v1::LoadResponse response;
    while (reader->Read(&response)) {
    }
    return DecodeError(reader->Finish());
  }
  // Sets `text` to the generated text, which is the same for every call.
  static RpcError Generate(const std::shared_ptr<grpc::Channel>& channel,
                           const std::string& token = "", std::string* text = nullptr) {
    grpc::ClientContext context;
    Prepare(context, token);
    v1::GenerateRequest request = TextRequest("Hello", 30);
    request.mutable_sampling()->set_seed(7);
    auto reader = v1::Worker::NewStub(channel)->Generate(&context, request);
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
      if (text != nullptr) text->append(response.delta().text());
    }
    return DecodeError(reader->Finish());
  }

  static void Prepare(grpc::ClientContext& context, const std::string& token) {
    SetTimeout(context, absl::Seconds(30));
    if (!token.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", token));
  }

  // Makes a unary call of a method whose message types need not be linked in.
  static grpc::Status CallMethod(const std::shared_ptr<grpc::Channel>& channel,
                                 const std::string& method, const std::string& token = "",
                                 std::string* answer = nullptr) {
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    Prepare(context, token);
    const grpc::Slice empty;
    const grpc::ByteBuffer request(&empty, 1);
    grpc::ByteBuffer response;
    std::promise<grpc::Status> done;
    stub.UnaryCall(&context, method, grpc::StubOptions(), &request, &response,
                   [&](grpc::Status status) { done.set_value(std::move(status)); });
    grpc::Status status = done.get_future().get();
    grpc::Slice slice;
    if (answer != nullptr && response.Valid() && response.DumpToSingleSlice(&slice).ok()) {
      answer->assign(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    return status;
  }

  static std::string Sha256OfFile(const std::string& path) {
    const std::string bytes = ReadFile(path);
    std::string digest(SHA256_DIGEST_LENGTH, '\0');
    SHA256(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(),
           reinterpret_cast<uint8_t*>(digest.data()));
    return absl::BytesToHexString(digest);
  }

  static bool Succeeds(const RpcError& error) { return error.ok(); }

  bool LogComesToSay(const std::string& text) {
    return Wait([&] { return absl::StrContains(worker().Log(), text); });
  }
  // The common name of the server certificate on a new connection; empty if the call is refused.
  static std::string NameShown(const std::string& address, const CertificateAuthority& authority,
                               const Issued* client) {
    grpc::ClientContext context;
    Prepare(context, "");
    v1::HealthResponse response;
    const auto channel = Connect(address, authority, client);
    if (!v1::Worker::NewStub(channel)->Health(&context, {}, &response).ok()) return "";
    const auto names = context.auth_context()->FindPropertyValues("x509_common_name");
    return names.empty() ? "" : std::string(names[0].data(), names[0].size());
  }

  std::string SideAddress(const std::string& ending) { return worker().SideAddress(ending); }

  TempDir certificates_;

 private:
  int version_ = 0;
};

TEST_F(SecurityTest, MutualTlsLetsInWhoHasACertificateOfTheAuthority) {
  const CertificateAuthority authority("fleet");
  const CertificateAuthority stranger("stranger");
  WriteCertificates(authority, "worker");
  ASSERT_NO_FATAL_FAILURE(StartWorker(MutualTlsArgs()));
  const Issued good = authority.Issue("router");
  const Issued bad = stranger.Issue("router");
  EXPECT_TRUE(Succeeds(Health(Connect(worker().address(), authority, &good))));
  EXPECT_EQ(Health(Connect(worker().address(), authority, nullptr)).code,
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Health(Connect(worker().address(), authority, &bad)).code,
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Health(Connect(worker().address(), stranger, &good)).code,
            grpc::StatusCode::UNAVAILABLE)
      << "the client must not take the worker for another";
  EXPECT_EQ(Health(client().channel()).code, grpc::StatusCode::UNAVAILABLE) << "plaintext";
}

TEST_F(SecurityTest, InferenceAndControlAreForThoseTheListsName) {
  const CertificateAuthority authority("fleet");
  WriteCertificates(authority, "worker");
  ASSERT_NO_FATAL_FAILURE(StartWorker(
      MutualTlsArgs({"--inference-clients", "router,both", "--control-clients", "boss,both"})));
  const Issued router = authority.Issue("router");
  const Issued boss = authority.Issue("boss");
  const Issued other = authority.Issue("other");
  const auto as_router = Connect(worker().address(), authority, &router);
  const auto as_boss = Connect(worker().address(), authority, &boss);
  const auto as_other = Connect(worker().address(), authority, &other);
  EXPECT_TRUE(IsError(Load(as_router), grpc::StatusCode::PERMISSION_DENIED, "PERMISSION_DENIED"));
  EXPECT_TRUE(Succeeds(Load(as_boss)));
  EXPECT_TRUE(Succeeds(Generate(as_router)));
  EXPECT_TRUE(IsError(Generate(as_boss), grpc::StatusCode::PERMISSION_DENIED, "PERMISSION_DENIED"));
  EXPECT_TRUE(
      IsError(Generate(as_other), grpc::StatusCode::PERMISSION_DENIED, "PERMISSION_DENIED"));
  EXPECT_TRUE(Succeeds(Health(as_other)));
  // A drain by a client without the right to drain has no effect.
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(30));
  auto drain = v1::Worker::NewStub(as_router)->Drain(&context, {});
  v1::DrainResponse response;
  EXPECT_FALSE(drain->Read(&response));
  EXPECT_EQ(drain->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(Succeeds(Generate(as_router)));
}

TEST_F(SecurityTest, CertificatesChangeWhileStreamsRun) {
  const CertificateAuthority first("first");
  const CertificateAuthority second("second");
  WriteCertificates(first, "worker");
  ASSERT_NO_FATAL_FAILURE(StartWorker(MutualTlsArgs()));
  const Issued old_client = first.Issue("router");
  const Issued new_client = second.Issue("router");
  const auto old_channel = Connect(worker().address(), first, &old_client);
  ASSERT_TRUE(Succeeds(Load(old_channel)));
  std::string expected;
  ASSERT_TRUE(Succeeds(Generate(old_channel, "", &expected)));
  ASSERT_FALSE(expected.empty());
  // Uses one connection throughout: if it is lost, the old client cannot make another.
  std::atomic<bool> stop = false;
  std::atomic<int> streams = 0;
  std::atomic<int> broken = 0;
  std::thread user([&] {
    for (; !stop; ++streams) {
      std::string text;
      if (!Succeeds(Generate(old_channel, "", &text)) || text != expected) ++broken;
    }
  });

  WriteCertificates(second, "worker");
  EXPECT_TRUE(
      Wait([&] { return Succeeds(Health(Connect(worker().address(), second, &new_client))); }));
  EXPECT_FALSE(Succeeds(Health(Connect(worker().address(), first, &old_client))));
  // An invalid certificate is only reported in the log.
  std::ofstream(File("cert.pem")) << "nonsense";
  EXPECT_TRUE(LogComesToSay(File("cert.pem") + ": holds no certificate"));
  EXPECT_TRUE(Succeeds(Health(Connect(worker().address(), second, &new_client))));
  WriteCertificates(second, "worker");
  EXPECT_TRUE(
      Wait([&] { return Succeeds(Health(Connect(worker().address(), second, &new_client))); }));
  // A slow machine has finished fewer streams by now.
  EXPECT_TRUE(Wait([&] { return streams > 10; }));
  stop = true;
  user.join();
  EXPECT_EQ(broken, 0);
}

TEST_F(SecurityTest, FilesThatCannotBeUsedLeaveTheLastGoodOnesInUse) {
  const CertificateAuthority authority("fleet");
  WriteCertificates(authority, "old");
  ASSERT_NO_FATAL_FAILURE(StartWorker(MutualTlsArgs()));
  const Issued client = authority.Issue("router");
  const auto shown = [&] { return NameShown(worker().address(), authority, &client); };
  ASSERT_EQ(shown(), "old");
  for (const char* name : {"cert.pem", "key.pem", "ca.pem"}) {
    const std::string before = ReadFile(File(name));
    std::ofstream(File(name), std::ios::trunc) << "";
    EXPECT_TRUE(LogComesToSay(File(name) + ": is empty"));
    EXPECT_EQ(shown(), "old") << name;
    std::ofstream(File(name)) << before;
    EXPECT_TRUE(Wait([&] {
      const std::string log = worker().Log();
      return log.rfind("files are again what is in use") > log.rfind(": is empty");
    }));
    EXPECT_EQ(shown(), "old") << name;
  }
  // The new certificate is written before its key.
  const Issued renewed = authority.Issue("new");
  std::ofstream(File("cert.pem"), std::ios::trunc) << renewed.certificate;
  EXPECT_TRUE(LogComesToSay(File("key.pem") + ": is not the key of the certificate in "));
  EXPECT_EQ(shown(), "old");
  std::ofstream(File("key.pem"), std::ios::trunc) << renewed.key;
  EXPECT_TRUE(Wait([&] { return shown() == "new"; }));
}

TEST_F(SecurityTest, AnEmptiedTokenFileLocksNobodyOut) {
  const std::string tokens = certificates_.File("tokens");
  std::ofstream(tokens) << "inference " << kInferenceToken << "\n";
  ASSERT_NO_FATAL_FAILURE(StartWorker({"--token-file", tokens}));
  ASSERT_TRUE(Succeeds(Health(client().channel(), kInferenceToken)));
  std::ofstream(tokens, std::ios::trunc) << "";
  EXPECT_TRUE(LogComesToSay(tokens + ": is empty"));
  EXPECT_TRUE(Succeeds(Health(client().channel(), kInferenceToken)));
  std::ofstream(tokens, std::ios::trunc) << "# nobody\n";
  EXPECT_TRUE(Wait([&] {
    return IsError(Health(client().channel(), kInferenceToken), grpc::StatusCode::UNAUTHENTICATED,
                   "UNAUTHENTICATED");
  }));
}

TEST_F(SecurityTest, AnExpiredCertificateIsSaidAndMeasured) {
  const CertificateAuthority authority("fleet");
  WriteCertificates(authority, "worker");
  const Issued expired =
      authority.Issue("worker", {.begin = -absl::Hours(2), .end = -absl::Hours(1)});
  std::ofstream(File("cert.pem"), std::ios::trunc) << expired.certificate;
  std::ofstream(File("key.pem"), std::ios::trunc) << expired.key;
  ASSERT_NO_FATAL_FAILURE(StartWorker(MutualTlsArgs({"--metrics-listen", "127.0.0.1:0"})));
  EXPECT_TRUE(LogComesToSay(File("cert.pem") + ": its certificate expired at "));
  const std::string metrics = HttpGet(SideAddress("metrics"), "/metrics");
  for (const char* file : {"tls-cert", "tls-client-ca"}) {
    const std::string name =
        absl::StrCat("\norcd_tls_certificate_expiry_timestamp_seconds{file=\"", file, "\"} ");
    const size_t at = metrics.find(name);
    ASSERT_NE(at, std::string::npos) << metrics;
    double expiry = 0;
    const std::string rest = metrics.substr(at + name.size());
    ASSERT_TRUE(absl::SimpleAtod(rest.substr(0, rest.find('\n')), &expiry));
    const absl::Duration left = absl::FromUnixSeconds(static_cast<int64_t>(expiry)) - absl::Now();
    EXPECT_EQ(left < absl::ZeroDuration(), std::string(file) == "tls-cert") << left;
    EXPECT_LT(absl::AbsDuration(left), absl::Hours(2)) << left;
  }
}

TEST_F(SecurityTest, TokensAllowWhatTheyAreForAndChangeWhileRunning) {
  const std::string tokens = certificates_.File("tokens");
  std::ofstream(tokens) << "control " << kControlToken << "\ninference " << kInferenceToken << "\n";
  ASSERT_NO_FATAL_FAILURE(
      StartWorker({"--token-file", tokens, "--log-level", "debug", "--log-format", "json"}));
  const auto& channel = client().channel();
  EXPECT_TRUE(IsError(Health(channel), grpc::StatusCode::UNAUTHENTICATED, "UNAUTHENTICATED"));
  EXPECT_TRUE(IsError(Load(channel), grpc::StatusCode::UNAUTHENTICATED, "UNAUTHENTICATED"));
  EXPECT_TRUE(IsError(Load(channel, "control-secret-0002"), grpc::StatusCode::UNAUTHENTICATED,
                      "UNAUTHENTICATED"));
  EXPECT_TRUE(IsError(Load(channel, kInferenceToken), grpc::StatusCode::PERMISSION_DENIED,
                      "PERMISSION_DENIED"));
  EXPECT_TRUE(Succeeds(Load(channel, kControlToken)));
  EXPECT_TRUE(Succeeds(Generate(channel, kInferenceToken)));
  // Probes carry no token.
  HealthCheckResponse::ServingStatus serving;
  EXPECT_TRUE(client().Check("", &serving).ok());

  // A call that stays open is authorised again for each request.
  grpc::ClientContext many_context;
  Prepare(many_context, kInferenceToken);
  const auto many_stub = v1::Worker::NewStub(channel);
  const auto many = many_stub->GenerateMany(&many_context);
  const auto code_in_many = [&](const std::string& id) {
    v1::GenerateManyRequest request;
    *request.mutable_generate() = TextRequest("Hello", 3);
    request.mutable_generate()->set_request_id(id);
    if (!many->Write(request)) return -1;
    v1::GenerateManyResponse response;
    while (many->Read(&response)) {
      for (const auto& event : response.events()) {
        if (event.has_end()) return static_cast<int>(event.end().status().code());
      }
    }
    return -1;
  };
  EXPECT_EQ(code_in_many("before"), grpc::StatusCode::OK);

  std::ofstream(tokens + ".new") << "inference inference-secret-0002\n";
  fs::rename(tokens + ".new", tokens);
  EXPECT_TRUE(WaitUntil([&] { return Succeeds(Generate(channel, "inference-secret-0002")); },
                        Bound(absl::Seconds(10))));
  EXPECT_EQ(code_in_many("after"), grpc::StatusCode::UNAUTHENTICATED);
  many->WritesDone();
  EXPECT_TRUE(IsError(Generate(channel, kInferenceToken), grpc::StatusCode::UNAUTHENTICATED,
                      "UNAUTHENTICATED"));
  EXPECT_FALSE(absl::StrContains(worker().Log(), "secret")) << "a token stands in the log";
}

TEST_F(SecurityTest, ThePlaintextHealthPortServesHealthAlone) {
  const CertificateAuthority authority("fleet");
  WriteCertificates(authority, "worker");
  ASSERT_NO_FATAL_FAILURE(
      StartWorker(MutualTlsArgs({"--health-listen", "127.0.0.1:0", "--channelz"})));
  WorkerClient probe(SideAddress("health"));
  HealthCheckResponse::ServingStatus serving;
  ASSERT_TRUE(probe.Check("liveness", &serving).ok());
  EXPECT_EQ(serving, HealthCheckResponse::SERVING);
  ASSERT_TRUE(probe.Check("readiness", &serving).ok());
  EXPECT_EQ(serving, HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(probe.Check("nobody", &serving).code, grpc::StatusCode::NOT_FOUND);

  for (const char* method :
       {"/orcd.v1.Worker/Health", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "/grpc.channelz.v1.Channelz/GetServers"}) {
    EXPECT_EQ(CallMethod(probe.channel(), method).error_code(), grpc::StatusCode::UNIMPLEMENTED)
        << method;
  }
}

TEST_F(SecurityTest, ChannelzIsForThoseWhoMayControl) {
  const std::string tokens = certificates_.File("tokens");
  std::ofstream(tokens) << "control " << kControlToken << "\ninference " << kInferenceToken << "\n";
  ASSERT_NO_FATAL_FAILURE(StartWorker({"--token-file", tokens, "--channelz"}));
  constexpr char kMethod[] = "/grpc.channelz.v1.Channelz/GetServers";
  EXPECT_EQ(CallMethod(client().channel(), kMethod).error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(CallMethod(client().channel(), kMethod, kInferenceToken).error_code(),
            grpc::StatusCode::CANCELLED);
  std::string answer;
  const grpc::Status status = CallMethod(client().channel(), kMethod, kControlToken, &answer);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_FALSE(answer.empty());
}

TEST_F(SecurityTest, WithoutTheFlagThereIsNoChannelz) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  EXPECT_EQ(CallMethod(client().channel(), "/grpc.channelz.v1.Channelz/GetServers").error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(SecurityTest, ASha256IsRequiredAndChecked) {
  ASSERT_NO_FATAL_FAILURE(StartWorker({"--require-sha256"}));
  const auto& channel = client().channel();
  EXPECT_TRUE(
      IsError(Load(channel), grpc::StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "sha256"));
  EXPECT_TRUE(IsError(Load(channel, "", std::string(64, '0')), grpc::StatusCode::DATA_LOSS,
                      "SHA256_MISMATCH"));
  EXPECT_TRUE(Succeeds(Load(channel, "", Sha256OfFile(models().File("nano.gguf")))));
}

TEST_F(SecurityTest, TheModelOfTheStartIsCheckedToo) {
  ASSERT_NO_FATAL_FAILURE(
      StartWorker({"--model", "nano.gguf", "--model-sha256", std::string(64, 'a')}));
  const absl::StatusOr<ProcessEnd> end = worker().WaitForEnd(Bound(absl::Seconds(20)));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->exit_code, 4);
}

TEST_F(SecurityTest, RegistersOverMutualTls) {
  const CertificateAuthority authority("fleet");
  WriteCertificates(authority, "worker");
  const Issued issued = authority.Issue("orchestrator");
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = authority.certificate();
  options.pem_key_cert_pairs.push_back({issued.key, issued.certificate});
  ScriptedOrchestrator orchestrator(absl::Seconds(2));
  OrchestratorServer server(orchestrator, 0, grpc::SslServerCredentials(options));
  ASSERT_TRUE(server.listens());
  std::vector<std::string> args = TlsArgs();
  args.insert(args.end(),
              {"--orchestrator", server.address(), "--orchestrator-ca", File("ca.pem")});
  ASSERT_NO_FATAL_FAILURE(StartWorker(args));
  EXPECT_TRUE(Wait([&] { return !orchestrator.heartbeats().empty(); }));
  ASSERT_NO_FATAL_FAILURE(StopWorker());
  EXPECT_EQ(orchestrator.deregistrations().size(), 1u);
}

TEST_F(SecurityTest, TheOrchestratorsAuthorityChangesWhileRunning) {
  const CertificateAuthority first("first");
  const CertificateAuthority second("second");
  WriteCertificates(first, "worker");
  ScriptedOrchestrator orchestrator(absl::Seconds(2));
  const auto serve = [&](const CertificateAuthority& authority, int port) {
    const Issued issued = authority.Issue("orchestrator");
    grpc::SslServerCredentialsOptions options(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    options.pem_root_certs = authority.certificate();
    options.pem_key_cert_pairs.push_back({issued.key, issued.certificate});
    return std::make_unique<OrchestratorServer>(orchestrator, port,
                                                grpc::SslServerCredentials(options));
  };
  const auto heartbeats_go_on = [&] {
    const size_t before = orchestrator.heartbeats().size();
    return Wait([&] { return orchestrator.heartbeats().size() > before + 1; });
  };
  auto server = serve(first, 0);
  ASSERT_TRUE(server->listens());
  const int port = server->port();
  std::vector<std::string> args = TlsArgs();
  args.insert(args.end(),
              {"--orchestrator", server->address(), "--orchestrator-ca", File("ca.pem")});
  ASSERT_NO_FATAL_FAILURE(StartWorker(args));
  ASSERT_TRUE(heartbeats_go_on());

  // Emptied files are ignored in favour of their previous contents, also for a new connection.
  std::ofstream(File("ca.pem"), std::ios::trunc) << "";
  std::ofstream(File("key.pem"), std::ios::trunc) << "";
  EXPECT_TRUE(LogComesToSay(File("ca.pem") + ": is empty"));
  EXPECT_TRUE(LogComesToSay(File("key.pem") + ": is empty"));
  server.reset();
  server = serve(first, port);
  ASSERT_TRUE(server->listens());
  EXPECT_TRUE(heartbeats_go_on());

  server.reset();
  WriteCertificates(second, "worker");
  server = serve(second, port);
  ASSERT_TRUE(server->listens());
  EXPECT_TRUE(heartbeats_go_on());
}

TEST_F(SecurityTest, HeadersBeyondTheLimitAreRefused) {
  ASSERT_NO_FATAL_FAILURE(StartWorker({"--max-metadata-bytes", "4096"}));
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(30));
  context.AddMetadata("x-large", std::string(64 << 10, 'x'));
  v1::HealthResponse response;
  EXPECT_EQ(stub().Health(&context, {}, &response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  // The oversized headers may cost the client its connection, but affect nobody else.
  EXPECT_TRUE(
      WaitUntil([&] { return Succeeds(Health(client().channel())); }, Bound(absl::Seconds(10))));
}

TEST_F(SecurityTest, CallsBeyondTheLimitOfAConnectionWait) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--max-streams", "2"}));
  GenerateCall first(stub(), EndlessRequest("first"), absl::Seconds(60));
  GenerateCall second(stub(), EndlessRequest("second"), absl::Seconds(60));
  ASSERT_TRUE(first.ReadUntilTokens(1));
  ASSERT_TRUE(second.ReadUntilTokens(1));
  grpc::ClientContext context;
  SetTimeout(context, absl::Milliseconds(300));
  v1::HealthResponse response;
  EXPECT_EQ(stub().Health(&context, {}, &response).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  first.HangUp();
  EXPECT_TRUE(Succeeds(Health(client().channel())));
}

TEST_F(SecurityTest, UnusableFilesAreNamedAtTheStart) {
  const CertificateAuthority authority("fleet");
  WriteCertificates(authority, "worker");
  const Issued other = authority.Issue("other");
  std::ofstream(File("other-key.pem")) << other.key;
  std::ofstream(File("empty.pem")) << "";
  std::ofstream(File("tokens")) << "root of-all-evil-00000000\n";
  const struct {
    std::vector<std::string> args;
    std::string named;
  } cases[] = {
      {{"--tls-cert", File("cert.pem")}, "--tls-key"},
      {{"--tls-cert", File("cert.pem"), "--tls-key", File("other-key.pem")}, "other-key.pem"},
      {{"--tls-cert", File("missing.pem"), "--tls-key", File("key.pem")}, "missing.pem"},
      {{"--tls-cert", File("cert.pem"), "--tls-key", File("empty.pem")}, "empty.pem"},
      {MutualTlsArgs({"--orchestrator-ca", File("empty.pem")}), "empty.pem"},
      {{"--tls-client-ca", File("ca.pem")}, "--tls-client-ca"},
      {{"--control-clients", "boss"}, "--control-clients"},
      {{"--token-file", File("tokens")}, "tokens: line 1"},
      {{"--require-sha256", "--model", "nano.gguf"}, "--model-sha256"},
  };
  for (const auto& [args, named] : cases) {
    WorkerOptions options;
    options.args = args;
    const absl::Status status = WorkerProcess::Start(options).status();
    EXPECT_TRUE(absl::StrContains(status.message(), "exited with 2")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), named)) << status;
    EXPECT_FALSE(absl::StrContains(status.message(), "evil")) << status;
  }
}

}  // namespace
}  // namespace orcd::testing
