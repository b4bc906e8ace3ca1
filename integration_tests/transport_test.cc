// Attacks by clients without credentials: they cost a bounded amount, and other clients are served.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "integration_tests/certificates.h"
#include "integration_tests/raw_http2.h"
#include "integration_tests/worker_fixture.h"

namespace orcd::testing {
namespace {

using grpc::health::v1::HealthCheckResponse;

constexpr uint8_t kData = 0;
constexpr uint8_t kHeaders = 1;
constexpr uint8_t kRstStream = 3;
constexpr uint8_t kSettings = 4;
constexpr uint8_t kPing = 6;
constexpr uint8_t kGoaway = 7;
constexpr uint8_t kWindowUpdate = 8;
constexpr uint8_t kContinuation = 9;
constexpr uint8_t kEndStream = 1;
constexpr uint8_t kEndHeaders = 4;
constexpr char kMethod[] = "/orcd.v1.Worker/Health";
constexpr char kWatch[] = "/grpc.health.v1.Health/Watch";
constexpr int64_t kMiB = 1 << 20;
// Sanitizers keep freed memory (ASan up to 256 MiB) and multiply the memory in use, so figures of
// memory are those of the allocator that users run.
constexpr bool kMeasuresMemory = !kSanitized;

// The headers of a call.
std::string Open(uint32_t stream, std::string_view path = kMethod) {
  return RawFrame(kHeaders, kEndHeaders, stream, RawCall(path));
}
// A whole call with an empty message.
std::string EmptyCall(uint32_t stream, std::string_view path = kMethod) {
  return Open(stream, path) + RawFrame(kData, kEndStream, stream, std::string(5, '\0'));
}
// Calls that are reset at once, on streams from `stream` on, which becomes the next one.
std::string ResetCalls(uint32_t count, uint32_t& stream, std::string_view path = kMethod) {
  const std::string call = RawCall(path);
  std::string bytes;
  for (uint32_t i = 0; i < count; ++i, stream += 2) {
    bytes += RawFrame(kHeaders, kEndHeaders, stream, call) +
             RawFrame(kRstStream, 0, stream, std::string("\0\0\0\x08", 4));
  }
  return bytes;
}
// The beginning of a header block that does not end, and more of it, which may be sent repeatedly.
std::string BeginHeaders() { return RawFrame(kHeaders, 0, 1, "\x83"); }
std::string MoreHeaders() {
  std::string block;
  while (block.size() < 16000) block += RawHeader("a", "b");
  return RawFrame(kContinuation, 0, 1, block);
}

// Time in which the worker either reads a connection on or ends it.
absl::Duration UntilEnded() { return Bound(absl::Seconds(10)); }

// Number of frames that have come on a stream: those of a type, or all.
int64_t Frames(RawHttp2& client, uint32_t stream, std::optional<uint8_t> type = std::nullopt) {
  client.Drain();
  return std::count_if(client.frames().begin(), client.frames().end(), [&](const auto& frame) {
    return frame.stream == stream && (!type || frame.type == *type);
  });
}
bool AwaitFrame(RawHttp2& client, uint32_t stream, std::optional<uint8_t> type = std::nullopt) {
  return WaitUntil([&] { return Frames(client, stream, type) > 0; }, Bound(absl::Seconds(10)));
}

// Probes the health port while this object lives.
class HealthWatch {
 public:
  explicit HealthWatch(const std::string& address) : client_(address) {
    HealthCheckResponse::ServingStatus status;
    EXPECT_TRUE(client_.Check("liveness", &status).ok());
    thread_ = std::thread([this] {
      while (!stop_) {
        const absl::Time begun = absl::Now();
        HealthCheckResponse::ServingStatus ignored;
        if (!client_.Check("liveness", &ignored).ok()) ++failures_;
        took_.push_back(absl::Now() - begun);
        absl::SleepFor(absl::Milliseconds(10));
      }
    });
  }
  ~HealthWatch() { Stop(); }

  // Ends after at least one probe was answered.
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  int failures() const { return failures_; }
  // The longest answer time without the slowest tenth of the answers, rounded up: those may have
  // waited for a core.
  absl::Duration NineOfTen() {
    std::sort(took_.begin(), took_.end());
    return took_.empty() ? absl::InfiniteDuration() : took_[(took_.size() - 1) * 9 / 10];
  }

 private:
  WorkerClient client_;
  std::atomic<bool> stop_ = false;
  int failures_ = 0;
  std::vector<absl::Duration> took_;
  std::thread thread_;
};

// The parameter is true for TLS.
class TransportTest : public WorkerTest, public ::testing::WithParamInterface<bool> {
 protected:
  bool tls() const { return GetParam(); }

  // Closes the connection, as the worker would wait for one that nobody polls.
  void TearDown() override {
    stub_ = nullptr;
    channel_ = nullptr;
    WorkerTest::TearDown();
  }

  void Start(std::vector<std::string> args = {}) {
    args.insert(args.end(), {"--health-listen", "127.0.0.1:0"});
    if (tls()) {
      const Issued issued = authority_.Issue("worker");
      std::ofstream(files_.File("cert.pem")) << issued.certificate;
      std::ofstream(files_.File("key.pem")) << issued.key;
      args.insert(args.end(),
                  {"--tls-cert", files_.File("cert.pem"), "--tls-key", files_.File("key.pem")});
    }
    ASSERT_NO_FATAL_FAILURE(StartWorker(args));
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = authority_.certificate();
    channel_ = grpc::CreateChannel(worker().address(), tls() ? grpc::SslCredentials(options)
                                                             : grpc::InsecureChannelCredentials());
    stub_ = v1::Worker::NewStub(channel_);
  }

  std::unique_ptr<RawHttp2> Connect() {
    return std::make_unique<RawHttp2>(worker().address(), tls());
  }

  RpcError Health(const std::string& header_value = "") {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(30));
    if (!header_value.empty()) context.AddMetadata("x-large", header_value);
    v1::HealthResponse response;
    return DecodeError(stub_->Health(&context, {}, &response));
  }

  // Runs `attack`, which opens connections with Connect, and checks the worker's memory, health
  // port and service to an honest client during the attack and after `close`.
  void Withstands(int64_t limit, const std::function<void()>& attack,
                  const std::function<void()>& close) {
    // The first call allocates what the worker keeps for its lifetime.
    ASSERT_TRUE(Health().ok());
    const int64_t before = worker().ReadMemory().anonymous;
    std::atomic<int64_t> most = 0;
    {
      HealthWatch watch(worker().SideAddress("health"));
      std::atomic<bool> stop = false;
      std::thread sampler([&] {
        while (!stop) {
          most = std::max(most.load(), worker().ReadMemory().anonymous);
          absl::SleepFor(absl::Milliseconds(20));
        }
      });
      attack();
      EXPECT_TRUE(Health().ok()) << "an honest client beside it";
      stop = true;
      sampler.join();
      watch.Stop();
      EXPECT_EQ(watch.failures(), 0);
      EXPECT_LT(watch.NineOfTen(), Bound(absl::Milliseconds(50)));
    }
    RecordProperty("grown_bytes", static_cast<int>(most - before));
    close();
    if (!kMeasuresMemory) return;
    EXPECT_LT(most - before, limit);
    EXPECT_TRUE(WaitUntil([&] { return worker().ReadMemory().anonymous < before + 32 * kMiB; },
                          Bound(absl::Seconds(15))))
        << (worker().ReadMemory().anonymous - before) / kMiB << " MiB are kept";
  }

  TempDir files_;
  const CertificateAuthority authority_{"fleet"};
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Worker::Stub> stub_;
};

INSTANTIATE_TEST_SUITE_P(PlaintextAndTls, TransportTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Tls" : "Plaintext"; });

// The health port is plaintext always.
class HealthFloodTest : public WorkerTest {};

// Client names exist only with TLS.
class TlsTransportTest : public TransportTest {};
INSTANTIATE_TEST_SUITE_P(Tls, TlsTransportTest, ::testing::Values(true));

TEST_P(TransportTest, HeadersThatDoNotEnd) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::string more = MoreHeaders();
  std::vector<std::unique_ptr<RawHttp2>> clients;
  Withstands(
      32 * kMiB,
      [&] {
        for (int i = 0; i < 4; ++i) {
          clients.push_back(Connect());
          clients.back()->Send(BeginHeaders());
          int64_t sent = 0;
          while (sent < 64 * kMiB && clients.back()->Send(more, UntilEnded())) {
            sent += static_cast<int64_t>(more.size());
          }
          EXPECT_LT(sent, 32 * kMiB) << "the connection was not ended";
          EXPECT_FALSE(clients.back()->open());
        }
      },
      [&] { clients.clear(); });
}

TEST_P(TransportTest, ResetsAsFastAsTheyCanBeSent) {
  ASSERT_NO_FATAL_FAILURE(Start());
  std::unique_ptr<RawHttp2> client = Connect();
  uint32_t stream = 1;
  Withstands(
      64 * kMiB,
      [&] {
        const absl::Time end = absl::Now() + absl::Seconds(3);
        while (absl::Now() < end && client->open()) {
          // Bytes not taken at once would leave half a frame on the connection.
          if (!client->Send(ResetCalls(100, stream)) && client->open()) {
            client = Connect();
            stream = 1;
          }
          client->Drain();
        }
      },
      [&] { client = nullptr; });
}

// gRPC frees a call some time after it has answered it.
TEST_P(TransportTest, CallsAsFastAsTheyCanBeSent) {
  ASSERT_NO_FATAL_FAILURE(Start());
  std::unique_ptr<RawHttp2> client = Connect();
  const std::string call = RawCall("/orcd.v1.Worker/Generate");
  // An invalid message.
  const std::string body = std::string("\0\0\0\0\1\xFF", 6);
  uint32_t stream = 1;
  int sent = 0;
  Withstands(
      64 * kMiB,
      [&] {
        const absl::Time end = absl::Now() + absl::Seconds(3);
        const absl::Time give_up = end + Bound(absl::Seconds(10));
        while (absl::Now() < end || (sent <= 1000 && absl::Now() < give_up)) {
          std::string bytes;
          for (int i = 0; i < 100; ++i, stream += 2) {
            bytes += RawFrame(kHeaders, kEndHeaders, stream, call) +
                     RawFrame(kData, kEndStream, stream, body);
          }
          if (client->Send(bytes)) {
            client->Drain();
            sent += 100;
          } else {
            // Half a frame may have gone.
            client = Connect();
            stream = 1;
          }
        }
      },
      [&] { client = nullptr; });
  EXPECT_GT(sent, 1000);
}

TEST_P(TransportTest, BodiesThatDoNotEnd) {
  ASSERT_NO_FATAL_FAILURE(Start());
  std::unique_ptr<RawHttp2> client = Connect();
  // A message prefix that announces 4 MiB.
  const std::string begin = std::string("\0\0\x40\0\0", 5) + std::string(7000, 'x');
  Withstands(
      64 * kMiB,
      [&] {
        for (uint32_t i = 0; i < 8192 && client->open(); ++i) {
          client->Send(Open(2 * i + 1) + RawFrame(kData, 0, 2 * i + 1, begin));
          if (i % 32 == 0) client->Drain();
        }
      },
      [&] { client = nullptr; });
}

TEST_P(TransportTest, ConnectionsWithoutEnd) {
  ASSERT_NO_FATAL_FAILURE(Start({"--max-connections", "200"}));
  std::vector<std::unique_ptr<RawHttp2>> clients;
  Withstands(
      128 * kMiB,
      [&] {
        for (int i = 0; i < 600; ++i) {
          clients.push_back(Connect());
          clients.back()->Send(Open(1));
        }
        // The worker has served or ended each of them. After another second the oldest connections
        // have been idle long enough for the honest client to replace one.
        for (const auto& client : clients) {
          EXPECT_TRUE(WaitUntil([&] { return Frames(*client, 0) > 0 || !client->open(); },
                                Bound(absl::Seconds(10))));
        }
        absl::SleepFor(absl::Milliseconds(1500));
      },
      [&] { clients.clear(); });
}

TEST_P(TransportTest, PingsWhoseAnswersAreNotRead) {
  ASSERT_NO_FATAL_FAILURE(Start());
  std::unique_ptr<RawHttp2> client = Connect();
  std::string pings;
  for (int i = 0; i < 1000; ++i) pings += RawFrame(kPing, 0, 0, "12345678");
  Withstands(
      32 * kMiB,
      [&] {
        const absl::Time end = absl::Now() + absl::Seconds(2);
        while (absl::Now() < end && client->Send(pings)) {
        }
      },
      [&] { client = nullptr; });
}

// gRPC buffers unread answers for each call; a little flow-control credit makes it answer again and
// again.
TEST_P(TransportTest, WholeMessagesThatAreNotRead) {
  ASSERT_NO_FATAL_FAILURE(Start());
  std::unique_ptr<RawHttp2> client = Connect();
  const char* const method = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
  // Field 4, the name of a symbol.
  const auto message = [](const std::string& name) {
    const size_t size = name.size();
    const std::string field{'\x22', static_cast<char>(size % 128 + 128),
                            static_cast<char>(size / 128)};
    const size_t bytes = field.size() + size;
    return std::string{'\0', '\0', '\0', static_cast<char>(bytes >> 8), static_cast<char>(bytes)} +
           field + name;
  };
  const std::string first = message(std::string(200, 'n'));
  const std::string large = message(std::string(15900, 'n'));
  Withstands(
      128 * kMiB,
      [&] {
        // The initial flow-control window of each stream is zero, so no answer fits.
        client->Send(RawFrame(kSettings, 0, 0, std::string("\0\4\0\0\0\0", 6)) +
                     RawFrame(kWindowUpdate, 0, 0, std::string("\x3f\0\0\0", 4)));
        for (uint32_t i = 1; i < 5000 && client->open(); i += 2) {
          std::string bytes = Open(i, method) + RawFrame(kData, 0, i, first);
          for (int j = 0; j < 4; ++j) bytes += RawFrame(kData, 0, i, large);
          client->Send(bytes);
          if (i > 100) {
            client->Send(RawFrame(kWindowUpdate, 0, i - 100, std::string("\0\0\0\1", 4)));
          }
          client->Drain();
        }
      },
      [&] { client = nullptr; });
}

// Calls of several connections fill what all connections may take together, although each stays
// within its own limit.
TEST_P(TransportTest, SeveralConnectionsFillTheTotalAndGiveItBack) {
  ASSERT_NO_FATAL_FAILURE(
      Start({"--max-connection-bytes", "4MiB", "--max-transport-bytes", "10MiB"}));
  // The honest client has its connection before there is no room for one.
  ASSERT_TRUE(Health().ok());
  constexpr uint32_t kCalls = 60;
  const auto answered = [](RawHttp2& client) {
    client.Drain();
    return std::count_if(client.frames().begin(), client.frames().end(),
                         [](const auto& frame) { return frame.type == kHeaders; });
  };
  std::vector<std::unique_ptr<RawHttp2>> clients;
  for (int i = 0; i < 4; ++i) clients.push_back(Connect());
  std::vector<int64_t> open_calls;
  for (const auto& client : clients) {
    std::string bytes;
    for (uint32_t i = 0; i < kCalls; ++i) bytes += Open(2 * i + 1);
    ASSERT_TRUE(client->Send(bytes));
    // The last calls find no room, and calls are answered in their order.
    ASSERT_TRUE(AwaitFrame(*client, 2 * kCalls - 1));
    open_calls.push_back(kCalls - answered(*client));
    EXPECT_TRUE(client->open());
  }
  EXPECT_GT(open_calls[1], 30) << "the limit of one connection";
  EXPECT_GT(open_calls[2], 0);
  EXPECT_LT(open_calls[2], open_calls[1]) << "the limit of all connections";
  EXPECT_EQ(open_calls[3], 0);
  const RpcError refused = Health();
  EXPECT_TRUE(IsError(refused, grpc::StatusCode::RESOURCE_EXHAUSTED, "TRANSPORT_FULL"));
  EXPECT_TRUE(absl::StrContains(refused.message, "--max-transport-bytes")) << refused.message;
  clients.clear();
  EXPECT_TRUE(WaitUntil([&] { return Health().ok(); }, Bound(absl::Seconds(10))));
}

// At its maximum age a connection gets a GOAWAY. It ends with its last call.
TEST_P(TransportTest, AConnectionEndsAtItsAge) {
  ASSERT_NO_FATAL_FAILURE(Start({"--max-connection-age", "1s"}));
  const std::unique_ptr<RawHttp2> watcher = Connect();
  watcher->Send(EmptyCall(1, kWatch));
  EXPECT_TRUE(AwaitFrame(*watcher, 1, kData));
  // gRPC's client makes no further call on a connection after a GOAWAY, which it sees at once if
  // somebody reads.
  const auto health = grpc::health::v1::Health::NewStub(channel_);
  grpc::ClientContext context;
  const auto stream = health->Watch(&context, {});
  HealthCheckResponse status;
  ASSERT_TRUE(stream->Read(&status));
  std::thread reading([&] {
    while (stream->Read(&status)) {
    }
  });
  EXPECT_TRUE(WaitUntil([&] { return channel_->GetState(false) == GRPC_CHANNEL_IDLE; },
                        Bound(absl::Seconds(60))));
  EXPECT_TRUE(
      WaitUntil([&] { return Frames(*watcher, 0, kGoaway) > 0; }, Bound(absl::Seconds(60))));
  EXPECT_TRUE(watcher->open());
  EXPECT_EQ(Frames(*watcher, 1, kRstStream), 0);
  EXPECT_TRUE(Health().ok());
  context.TryCancel();
  reading.join();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

// The flood lasts a second at least, and until the stream has gone on.
TEST_P(TransportTest, AStreamGoesOnDuringFloods) {
  ASSERT_NO_FATAL_FAILURE(Start({"--backend", "null", "--null-step", "10ms"}));
  {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(30));
    v1::LoadRequest load;
    load.set_model("nano.gguf");
    const auto loading = stub_->Load(&context, load);
    v1::LoadResponse progress;
    while (loading->Read(&progress)) {
    }
    ASSERT_TRUE(loading->Finish().ok());
  }
  GenerateCall honest(*stub_, EndlessRequest("honest"), absl::Seconds(60));
  ASSERT_TRUE(honest.ReadUntilTokens(1));
  std::atomic<bool> flooding = true;
  std::atomic<int> resets = 0;
  std::atomic<int> ended = 0;
  std::thread resetting([&] {
    std::unique_ptr<RawHttp2> client;
    uint32_t stream = 1;
    while (flooding) {
      if (client == nullptr) {
        client = Connect();
        stream = 1;
      }
      client->Drain();
      if (client->Send(ResetCalls(100, stream))) {
        resets += 100;
      } else {
        // Half a frame may have gone.
        client = nullptr;
      }
    }
  });
  std::thread endless([&] {
    const std::string more = MoreHeaders();
    while (flooding) {
      const std::unique_ptr<RawHttp2> client = Connect();
      client->Send(BeginHeaders());
      while (flooding && client->Send(more, UntilEnded())) {
      }
      if (!client->open()) ++ended;
    }
  });
  const absl::Time end = absl::Now() + absl::Seconds(1);
  const absl::Time give_up = end + Bound(absl::Seconds(10));
  size_t tokens = honest.so_far().ids.size() + 10;
  bool goes_on = true;
  while (goes_on && (absl::Now() < end || ((resets == 0 || ended == 0) && absl::Now() < give_up))) {
    goes_on = honest.ReadUntilTokens(tokens);
    tokens += 10;
  }
  flooding = false;
  resetting.join();
  endless.join();
  EXPECT_TRUE(goes_on) << honest.Finish().error;
  EXPECT_GT(resets, 0);
  EXPECT_GT(ended, 0);
  EXPECT_TRUE(honest.ReadUntilTokens(tokens));
  honest.HangUp();
  honest.Finish();
}

TEST_P(TransportTest, ResetsWhereConnectionsEndForTheirAge) {
  ASSERT_NO_FATAL_FAILURE(Start({"--max-connection-age", "2s"}));
  const auto reset_some = [&](uint32_t calls) {
    const std::unique_ptr<RawHttp2> client = Connect();
    uint32_t stream = 1;
    const std::string resets = ResetCalls(calls, stream);
    const absl::Time begun = absl::Now();
    // The last call is answered after the others.
    client->Send(resets + EmptyCall(stream));
    EXPECT_TRUE(AwaitFrame(*client, stream));
    return absl::Now() - begun;
  };
  // Each of the guard's threads has its own connection, which also ends due to its age.
  for (int i = 0; i < 16; ++i) reset_some(10);
  absl::SleepFor(absl::Milliseconds(4500));
  for (int i = 0; i < 2; ++i) EXPECT_LT(reset_some(600), Bound(absl::Seconds(1.5)));
}

// As many clients as may connect either watch the health service or begin a body without ending it.
TEST_P(TransportTest, CallsOfAnybodyKeepNobodyOut) {
  ASSERT_NO_FATAL_FAILURE(Start({"--max-connections", "60"}));
  const std::string watch = EmptyCall(1, kWatch);
  const std::string begun = Open(1) + RawFrame(kData, 0, 1, std::string("\0\0\0\x40\0xyz", 8));
  std::vector<std::unique_ptr<RawHttp2>> clients;
  for (int i = 0; i < 60; ++i) {
    clients.push_back(Connect());
    clients.back()->Send(i % 2 == 0 ? watch : begun);
  }
  for (int i = 0; i < 256; ++i) {
    clients.push_back(std::make_unique<RawHttp2>(worker().SideAddress("health"), false));
    clients.back()->Send(watch);
  }
  for (int i = 0; i < 5; ++i) {
    WorkerClient probe(worker().SideAddress("health"));
    HealthCheckResponse::ServingStatus status;
    EXPECT_TRUE(probe.Check("liveness", &status).ok());
  }
  // A connection must be a second old before the worker closes it in favour of another.
  grpc::ClientContext context;
  SetTimeout(context, Bound(absl::Seconds(8)));
  context.set_wait_for_ready(true);
  v1::HealthResponse response;
  const RpcError error = DecodeError(stub_->Health(&context, {}, &response));
  EXPECT_TRUE(error.ok()) << error.message;
}

// The limits of the health port's connections are far below those of the main port, so many of them
// take little.
TEST_F(HealthFloodTest, TheHealthPortsMemoryIsBounded) {
  ASSERT_NO_FATAL_FAILURE(StartWorker({"--health-listen", "127.0.0.1:0"}));
  const std::string address = worker().SideAddress("health");
  const auto connect = [&] { return std::make_unique<RawHttp2>(address, false); };
  const auto probe = [&] {
    WorkerClient client(address);
    HealthCheckResponse::ServingStatus status;
    return client.Check("liveness", &status);
  };
  ASSERT_TRUE(probe().ok());
  const int64_t before = worker().ReadMemory().anonymous;
  const auto grown = [&] { return worker().ReadMemory().anonymous - before; };
  int64_t most = 0;
  const char* const check = "/grpc.health.v1.Health/Check";

  // Bodies that do not end, in as many calls as a connection may have.
  std::vector<std::unique_ptr<RawHttp2>> clients;
  std::string bodies;
  for (uint32_t stream = 1; stream < 200; stream += 2) {
    bodies += Open(stream, check) + RawFrame(kData, 0, stream, std::string(4096, 'x'));
  }
  for (int i = 0; i < 128; ++i) {
    clients.push_back(connect());
    clients.back()->Send(bodies);
    clients.back()->Drain();
    most = std::max(most, grown());
  }
  EXPECT_TRUE(probe().ok());
  const auto open = std::count_if(clients.begin(), clients.end(), [](const auto& client) {
    client->Drain();
    return client->open();
  });
  EXPECT_GT(open, 100) << "connections that have ended hold nothing";
  most = std::max(most, grown());

  // Resets, headers that do not end and pings whose answers are not read.
  uint32_t first = 1;
  std::string resets = ResetCalls(1000, first, check);
  std::string pings;
  for (int i = 0; i < 20000; ++i) pings += RawFrame(kPing, 0, 0, "12345678");
  std::string headers = BeginHeaders();
  const std::string more = MoreHeaders();
  for (int i = 0; i < 512; ++i) headers += more;
  for (int i = 0; i < 4; ++i) {
    for (const std::string* flood : {&resets, &pings, &headers}) {
      clients.push_back(connect());
      // The port may stop reading, or end the connection.
      clients.back()->Send(*flood);
      most = std::max(most, grown());
    }
  }
  EXPECT_TRUE(probe().ok());
  RecordProperty("grown_bytes", static_cast<int>(most));
  clients.clear();
  if (!kMeasuresMemory) return;
  EXPECT_LT(most, 48 * kMiB);
  EXPECT_TRUE(WaitUntil([&] { return grown() < 24 * kMiB; }, Bound(absl::Seconds(15))))
      << grown() / kMiB << " MiB are kept";
}

TEST_P(TransportTest, ACallsHeadersEndThatCallAlone) {
  ASSERT_NO_FATAL_FAILURE(Start());
  // gRPC's own clients respect the announced limit of headers; this client does not.
  const std::unique_ptr<RawHttp2> client = Connect();
  // A stream that stays open on the same connection.
  client->Send(EmptyCall(1, kWatch));
  ASSERT_TRUE(AwaitFrame(*client, 1, kData));
  const std::string large = RawCall(kMethod, RawHeader("x-large", std::string(17000, 'v')));
  client->Send(RawFrame(kHeaders, 0, 3, large.substr(0, 16000)) +
               RawFrame(kContinuation, kEndHeaders, 3, large.substr(16000)));
  ASSERT_TRUE(AwaitFrame(*client, 3, kHeaders));
  client->Send(EmptyCall(5));
  EXPECT_TRUE(AwaitFrame(*client, 5, kData));
  // Invalid base64: the leftover bits are not zero.
  client->Send(RawFrame(kHeaders, kEndHeaders, 7, RawCall(kMethod, RawHeader("x-bin", "QR"))));
  ASSERT_TRUE(AwaitFrame(*client, 7, kHeaders));
  client->Send(EmptyCall(9));
  EXPECT_TRUE(AwaitFrame(*client, 9, kData));
  EXPECT_TRUE(client->open());
  EXPECT_EQ(Frames(*client, 1, kRstStream), 0);
  EXPECT_EQ(Frames(*client, 0, kGoaway), 0);
}

TEST_P(TransportTest, CompressedRequestsAreRefusedQuietly) {
  ASSERT_NO_FATAL_FAILURE(Start({"--log-format", "json"}));
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(30));
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  v1::HealthResponse response;
  EXPECT_TRUE(IsError(DecodeError(stub_->Health(&context, {}, &response)),
                      grpc::StatusCode::UNIMPLEMENTED, "COMPRESSION_UNSUPPORTED"));
  EXPECT_TRUE(Health().ok());
  EXPECT_FALSE(absl::StrContains(worker().Log(), "\"error\"")) << worker().Log();
}

TEST_P(TransportTest, ABodyOfTooManyBytesIsRefused) {
  ASSERT_NO_FATAL_FAILURE(Start({"--max-connection-bytes", "1MiB"}));
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(30));
  v1::TokenizeRequest request;
  request.mutable_text()->set_text(std::string(3 << 20, 'x'));
  v1::TokenizeResponse response;
  EXPECT_TRUE(IsError(DecodeError(stub_->Tokenize(&context, request, &response)),
                      grpc::StatusCode::RESOURCE_EXHAUSTED, "TRANSPORT_FULL"));
  // There is room again once gRPC has freed the refused body.
  EXPECT_TRUE(WaitUntil([&] { return Health().ok(); }, Bound(absl::Seconds(10))));
}

TEST_P(TransportTest, CallersThatAreNotKnownSendNoBody) {
  const std::string tokens = files_.File("tokens");
  std::ofstream(tokens) << "control control-secret-0001\n";
  ASSERT_NO_FATAL_FAILURE(Start({"--token-file", tokens, "--max-connection-bytes", "1MiB"}));
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(30));
  v1::TokenizeRequest request;
  request.mutable_text()->set_text(std::string(3 << 20, 'x'));
  v1::TokenizeResponse response;
  EXPECT_TRUE(IsError(DecodeError(stub_->Tokenize(&context, request, &response)),
                      grpc::StatusCode::UNAUTHENTICATED, "UNAUTHENTICATED"));
}

TEST_P(TlsTransportTest, NamesThatAClientSendsItselfCountForNothing) {
  std::ofstream(files_.File("ca.pem")) << authority_.certificate();
  ASSERT_NO_FATAL_FAILURE(
      Start({"--tls-client-ca", files_.File("ca.pem"), "--control-clients", "boss"}));
  const auto unload_as = [&](const std::string& name, const std::string& claimed) {
    const Issued issued = authority_.Issue(name);
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = authority_.certificate();
    options.pem_cert_chain = issued.certificate;
    options.pem_private_key = issued.key;
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto stub = v1::Worker::NewStub(
        grpc::CreateCustomChannel(worker().address(), grpc::SslCredentials(options), arguments));
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(30));
    if (!claimed.empty()) context.AddMetadata("orcd-peer-name-bin", claimed);
    v1::UnloadResponse response;
    return DecodeError(stub->Unload(&context, {}, &response));
  };
  EXPECT_TRUE(IsError(unload_as("router", ""), grpc::StatusCode::PERMISSION_DENIED));
  EXPECT_TRUE(IsError(unload_as("router", "boss"), grpc::StatusCode::PERMISSION_DENIED));
  EXPECT_NE(unload_as("boss", "router").code, grpc::StatusCode::PERMISSION_DENIED);
}

}  // namespace
}  // namespace orcd::testing
