#include "worker/fleet/smg_link.h"

#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "integration_tests/scripted_smg.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Entries = std::vector<ScriptedSmg::Entry>;

constexpr absl::Duration kTimeout = absl::Seconds(20);
constexpr char kUrl[] = "grpc://10.1.2.3:50051";

class SmgLinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(smg_.listens());
    link_ = NewLink();
  }

  std::unique_ptr<SmgLink> NewLink(std::optional<LastGood<std::string>> api_key = std::nullopt) {
    SmgLink::Options options;
    options.orchestrator = smg_.url();
    options.address = "10.1.2.3:50051";
    options.api_key = std::move(api_key);
    return std::make_unique<SmgLink>(std::move(options));
  }

  static LinkReport Report(v1::WorkerState state, const std::string& model_id = "m") {
    LinkReport report;
    report.status.set_state(state);
    if (state == v1::WORKER_STATE_READY) report.status.mutable_model()->set_model_id(model_id);
    return report;
  }
  static LinkReport Ready() { return Report(v1::WORKER_STATE_READY); }
  static LinkReport Idle() { return Report(v1::WORKER_STATE_IDLE); }

  absl::StatusOr<LinkReply> Register(const LinkReport& report) {
    return link_->Register(report, kTimeout, never_);
  }
  absl::StatusOr<LinkReply> Heartbeat(const LinkReport& report, absl::Duration timeout = kTimeout) {
    return link_->Heartbeat("", 1, report, timeout, never_);
  }

  ScriptedSmg smg_;
  CallCancellation never_;
  std::unique_ptr<SmgLink> link_;
};

TEST_F(SmgLinkTest, EntersAWorkerThatIsReady) {
  const auto reply = Register(Ready());
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(reply->entered);
  EXPECT_EQ(reply->lease_id, kUrl);
  EXPECT_GT(reply->ttl, absl::ZeroDuration());
  EXPECT_THAT(smg_.urls(), ElementsAre(kUrl));
  EXPECT_TRUE(link_->maybe_entered());
  const auto heartbeat = Heartbeat(Ready());
  ASSERT_TRUE(heartbeat.ok()) << heartbeat.status();
  EXPECT_TRUE(heartbeat->entered);
  EXPECT_EQ(heartbeat->problem, "");
  EXPECT_EQ(smg_.CountOf("POST"), 1u);
  EXPECT_EQ(smg_.requests().back().substr(0, 13), "GET /workers/") << "its own entry alone";
}

TEST_F(SmgLinkTest, EntersNoWorkerBeforeItIsReadyAndThenAtOnce) {
  auto reply = Register(Idle());
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_FALSE(reply->entered);
  EXPECT_FALSE(link_->maybe_entered());
  reply = Heartbeat(Report(v1::WORKER_STATE_LOADING));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_FALSE(reply->entered);
  EXPECT_EQ(smg_.CountOf("POST"), 0u);
  reply = Heartbeat(Ready());
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(reply->entered);
  EXPECT_THAT(smg_.urls(), ElementsAre(kUrl));
}

TEST_F(SmgLinkTest, AnEntryOfAKilledWorkerIsRemoved) {
  smg_.Add("grpc://10.9.9.9:50051");
  smg_.Add(kUrl);
  ASSERT_TRUE(Register(Idle()).ok());
  EXPECT_THAT(smg_.urls(), ElementsAre("grpc://10.9.9.9:50051"));
}

TEST_F(SmgLinkTest, AWorkerThatIsThereAlreadyIsEntered) {
  smg_.Add(kUrl);
  const auto reply = Register(Ready());
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(reply->entered);
  EXPECT_TRUE(Heartbeat(Ready()).ok());
  EXPECT_EQ(smg_.CountOf("GET /workers/"), 1u) << "409 named it";
  ASSERT_TRUE(link_->Deregister("", Ready(), kTimeout, never_).ok());
  EXPECT_THAT(smg_.urls(), IsEmpty());
}

TEST_F(SmgLinkTest, AConflictThatNamesNobodyIsLookedUp) {
  smg_.Add(kUrl);
  smg_.SetScript([](const ScriptedSmg::Request& request) -> std::optional<std::string> {
    if (request.method == "POST") return ScriptedHttpServer::Answer(409, "{}");
    return std::nullopt;
  });
  ASSERT_TRUE(Register(Ready()).ok());
  ASSERT_TRUE(Heartbeat(Ready()).ok());
  EXPECT_EQ(smg_.requests().back(), "GET /workers");
  ASSERT_TRUE(Heartbeat(Ready()).ok());
  EXPECT_EQ(smg_.CountOf("GET /workers/"), 1u);
}

TEST_F(SmgLinkTest, AnEntryThatIsGoneIsAnUnknownLease) {
  ASSERT_TRUE(Register(Ready()).ok());
  smg_.Edit([](Entries& entries) { entries.clear(); });
  EXPECT_TRUE(absl::IsNotFound(Heartbeat(Ready()).status()));
  ASSERT_TRUE(Register(Ready()).ok());
  EXPECT_TRUE(Heartbeat(Ready()).ok());
  // The id now belongs to another worker.
  smg_.Edit([](Entries& entries) { entries.at(0).url = "grpc://other:1"; });
  EXPECT_TRUE(absl::IsNotFound(Heartbeat(Ready()).status()));
}

TEST_F(SmgLinkTest, SaysWhatKeepsSmgFromSendingRequests) {
  ASSERT_TRUE(Register(Ready()).ok());
  const auto status_is = [&](const std::string& status, const std::string& job) {
    smg_.Edit([&](Entries& entries) {
      entries.at(0).status = status;
      entries.at(0).job_status = job;
    });
    return Heartbeat(Ready());
  };
  auto reply = status_is("pending", "processing");
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_THAT(reply->problem, HasSubstr("--advertise-address"));
  reply = status_is("not_ready", "");
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_THAT(reply->problem, HasSubstr("not_ready"));
  const absl::Duration usual = reply->ttl;
  // The worker soon looks again at an entry that smg is removing, since smg answers 409 until it is
  // gone.
  reply = status_is("draining", "");
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_THAT(reply->problem, HasSubstr("told to remove"));
  EXPECT_LT(reply->ttl, usual);
  EXPECT_LT(Register(Ready())->ttl, usual);
  reply = status_is("ready", "");
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->problem, "");
  EXPECT_EQ(reply->ttl, usual);
  // smg remembers the id of an entry that it gave up.
  EXPECT_TRUE(absl::IsNotFound(status_is("pending", "failed").status()));
}

TEST_F(SmgLinkTest, AWorkerThatIsReadyNoMoreIsTakenOutOnce) {
  ASSERT_TRUE(Register(Ready()).ok());
  const auto reply = Heartbeat(Report(v1::WORKER_STATE_DRAINING));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_FALSE(reply->entered);
  EXPECT_THAT(smg_.urls(), IsEmpty());
  EXPECT_FALSE(link_->maybe_entered());
  const size_t asked = smg_.requests().size();
  ASSERT_TRUE(Heartbeat(Report(v1::WORKER_STATE_DRAINING)).ok());
  EXPECT_EQ(smg_.requests().size(), asked) << "there is nothing to ask";
}

TEST_F(SmgLinkTest, AnotherModelIsAnotherEntry) {
  ASSERT_TRUE(Register(Ready()).ok());
  ASSERT_TRUE(Heartbeat(Report(v1::WORKER_STATE_READY, "other")).ok());
  EXPECT_EQ(smg_.CountOf("DELETE"), 1u);
  EXPECT_EQ(smg_.CountOf("POST"), 2u);
  EXPECT_THAT(smg_.urls(), ElementsAre(kUrl));
}

TEST_F(SmgLinkTest, AFailedRemovalIsRetried) {
  ASSERT_TRUE(Register(Ready()).ok());
  smg_.AnswerAll(500, "broken");
  EXPECT_FALSE(link_->Deregister("", Idle(), kTimeout, never_).ok());
  EXPECT_TRUE(link_->maybe_entered());
  smg_.SetScript(nullptr);
  EXPECT_TRUE(link_->Deregister("", Idle(), kTimeout, never_).ok());
  EXPECT_FALSE(link_->maybe_entered());
  EXPECT_THAT(smg_.urls(), IsEmpty());
}

TEST_F(SmgLinkTest, ErrorsSayWhatSmgAnswered) {
  smg_.AnswerAll(500, R"({"error":"out of cheese"})");
  const absl::Status refused = Register(Ready()).status();
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_THAT(refused.message(), HasSubstr("500"));
  EXPECT_THAT(refused.message(), HasSubstr("out of cheese"));
  EXPECT_FALSE(link_->maybe_entered());
  smg_.AnswerAll(401, "{}");
  const absl::Status unauthorized = Register(Ready()).status();
  EXPECT_TRUE(absl::IsPermissionDenied(unauthorized));
  EXPECT_THAT(unauthorized.message(), HasSubstr("--orchestrator-key-file"));
}

TEST_F(SmgLinkTest, GarbageAndFloodsAreErrorsAndNoMore) {
  ASSERT_TRUE(Register(Ready()).ok());
  for (const std::string& body : {std::string("no json"), std::string("[]"), std::string("[[[[[[["),
                                  std::string("{\"id\":\"\xff\"}"), std::string(2 << 20, 'x')}) {
    smg_.AnswerAll(200, body);
    EXPECT_FALSE(Heartbeat(Ready()).ok());
  }
  smg_.SetScript(nullptr);
  if (!Heartbeat(Ready()).ok()) {
    ASSERT_TRUE(Register(Ready()).ok());
  }
  EXPECT_TRUE(Heartbeat(Ready()).ok());
}

TEST_F(SmgLinkTest, SilenceEndsWithTheTimeoutAndMayHaveEnteredIt) {
  smg_.SetSilent(true);
  const auto reply = link_->Register(Ready(), absl::Milliseconds(100), never_);
  EXPECT_TRUE(absl::IsDeadlineExceeded(reply.status())) << reply.status();
  EXPECT_TRUE(link_->maybe_entered());
}

TEST_F(SmgLinkTest, AnEntryThatMayExistIsNotEnteredAgain) {
  ASSERT_TRUE(Register(Idle()).ok());
  smg_.SetSilent(true);
  EXPECT_FALSE(Heartbeat(Ready(), absl::Milliseconds(100)).ok());
  smg_.SetSilent(false);
  smg_.Add(kUrl);
  ASSERT_TRUE(Heartbeat(Ready()).ok());
  EXPECT_EQ(smg_.CountOf("DELETE"), 0u);
  EXPECT_TRUE(link_->maybe_entered());
}

TEST_F(SmgLinkTest, SendsTheKeyOfItsFile) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/smg_link_test_key");
  std::ofstream(path) << "the-key\n";
  const Logger log(LogFormat::kText, LogLevel::kError);
  FileWatcher watcher(log, absl::Hours(1));
  const auto key = WatchSmgApiKey(path, watcher);
  ASSERT_TRUE(key.ok()) << key.status();
  link_ = NewLink(*key);
  ASSERT_TRUE(Register(Ready()).ok());
  EXPECT_THAT(smg_.last_headers(), HasSubstr("authorization: bearer the-key\r\n"));
  std::ofstream(path) << "another\n";
  watcher.Look();
  watcher.Look();
  ASSERT_TRUE(Heartbeat(Ready()).ok());
  EXPECT_THAT(smg_.last_headers(), HasSubstr("authorization: bearer another\r\n"));
  for (const char* bad : {"", "\n", "two\nlines", "a b"}) {
    std::ofstream(path, std::ios::trunc) << bad;
    watcher.Look();
    watcher.Look();
    ASSERT_TRUE(Heartbeat(Ready()).ok());
    EXPECT_THAT(smg_.last_headers(), HasSubstr("authorization: bearer another\r\n")) << bad;
    const absl::Status at_the_start = WatchSmgApiKey(path, watcher).status();
    EXPECT_EQ(GetErrorDetails(at_the_start).reason, "API_KEY_FILE_INVALID");
    EXPECT_THAT(at_the_start.message(), HasSubstr(path));
  }
}

// Behaves like smg 1.13, which accepts the DELETE, does nothing, and continues to enter the worker.
TEST_F(SmgLinkTest, AnEntryThatIsListedAfterItWasToBeTakenOutIsTakenOutAgain) {
  ASSERT_TRUE(Register(Ready()).ok());
  smg_.Edit([](Entries& entries) { entries.at(0).status = "pending"; });
  smg_.SetScript([](const ScriptedSmg::Request& request) -> std::optional<std::string> {
    if (request.method == "DELETE") return ScriptedHttpServer::Answer(202, "{}");
    return std::nullopt;
  });
  auto reply = Heartbeat(Report(v1::WORKER_STATE_DRAINING));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_FALSE(reply->entered);
  EXPECT_TRUE(link_->maybe_entered());
  smg_.Edit([](Entries& entries) { entries.at(0).status = "ready"; });
  reply = Heartbeat(Report(v1::WORKER_STATE_DRAINING));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_LT(reply->ttl, SmgLink::Options().ttl) << "it is looked at again soon";
  EXPECT_TRUE(link_->maybe_entered());
  smg_.SetScript(nullptr);
  ASSERT_TRUE(Heartbeat(Report(v1::WORKER_STATE_DRAINING)).ok());
  EXPECT_THAT(smg_.urls(), IsEmpty());
  EXPECT_FALSE(link_->maybe_entered());
}

TEST_F(SmgLinkTest, AnEntryThatIsOnItsWayOutIsLeftAlone) {
  ASSERT_TRUE(Register(Ready()).ok());
  smg_.SetScript([](const ScriptedSmg::Request& request) -> std::optional<std::string> {
    if (request.method == "DELETE") return ScriptedHttpServer::Answer(202, "{}");
    return std::nullopt;
  });
  smg_.Edit([](Entries& entries) { entries.at(0).status = "draining"; });
  ASSERT_TRUE(Heartbeat(Idle()).ok());
  EXPECT_FALSE(link_->maybe_entered());
}

TEST_F(SmgLinkTest, AnSmgThatWasStartedAgainHasItUnderAnotherId) {
  ASSERT_TRUE(Register(Ready()).ok());
  smg_.Edit([](Entries& entries) { entries.clear(); });
  smg_.Add(kUrl);
  ASSERT_TRUE(Heartbeat(Report(v1::WORKER_STATE_DRAINING)).ok());
  EXPECT_THAT(smg_.urls(), IsEmpty());
  EXPECT_FALSE(link_->maybe_entered());
}

TEST_F(SmgLinkTest, AnEntryWhoseAnswerIsLostMayBeThere) {
  const std::string answers[] = {"", std::string(2 << 20, 'x'), ScriptedHttpServer::Answer(502, ""),
                                 ScriptedHttpServer::Answer(504, "")};
  for (const std::string& answer : answers) {
    link_ = NewLink();
    smg_.SetScript([&](const ScriptedSmg::Request&) { return std::optional(answer); });
    EXPECT_FALSE(Register(Ready()).ok());
    EXPECT_TRUE(link_->maybe_entered()) << answer.substr(0, 20);
    smg_.SetScript(nullptr);
  }
  link_ = NewLink();
  smg_.GoAway();
  EXPECT_TRUE(absl::IsUnavailable(Register(Ready()).status()));
  EXPECT_FALSE(link_->maybe_entered()) << "nobody has heard of it";
}

}  // namespace
}  // namespace orcd
