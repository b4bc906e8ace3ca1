#include "worker/security/authorizer.h"

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "testing/eventually.h"
#include "testing/files.h"

namespace orcd {
namespace {

constexpr char kReader[] = "Bearer reader-0123456789";
constexpr char kAdmin[] = "bearer admin-00123456789";
constexpr char kBoth[] = "BEARER both-000123456789";

class AuthorizerTest : public ::testing::Test {
 protected:
  // Renames the new file into place, so that no reader sees half of it.
  void WriteTokens(const std::string& text) {
    std::ofstream(path_ + ".new") << text;
    std::filesystem::rename(path_ + ".new", path_);
  }
  std::unique_ptr<Authorizer> New(Authorizer::Options options) {
    absl::StatusOr<std::unique_ptr<Authorizer>> authorizer =
        Authorizer::Create(std::move(options), watcher_);
    EXPECT_TRUE(authorizer.ok()) << authorizer.status();
    return *std::move(authorizer);
  }
  std::unique_ptr<Authorizer> NewWithTokens() {
    WriteTokens(
        "# who may\n\ninference reader-0123456789\n"
        "control admin-00123456789\n inference,control\tboth-000123456789 \n");
    return New({.client_certificates = false,
                .inference_clients = {},
                .control_clients = {},
                .token_file = path_});
  }
  static absl::StatusCode Code(const Authorizer& authorizer, const Authorizer::Caller& caller,
                               Permission permission) {
    return authorizer.Check(caller, permission).code();
  }

  const Logger log_{LogFormat::kText, LogLevel::kError};
  FileWatcher watcher_{log_, absl::Milliseconds(100)};
  const TempDir dir_;
  const std::string path_ = dir_.File("tokens");
};

using Caller = Authorizer::Caller;
constexpr absl::StatusCode kOk = absl::StatusCode::kOk;
constexpr absl::StatusCode kUnauthenticated = absl::StatusCode::kUnauthenticated;
constexpr absl::StatusCode kDenied = absl::StatusCode::kPermissionDenied;

TEST_F(AuthorizerTest, EveryoneMayAllWhereNothingIsConfigured) {
  const auto authorizer = New({});
  EXPECT_TRUE(authorizer->open());
  EXPECT_EQ(Code(*authorizer, {}, Permission::kControl), kOk);
}

TEST_F(AuthorizerTest, ATokenAllowsWhatItsLineSays) {
  const auto authorizer = NewWithTokens();
  EXPECT_FALSE(authorizer->open());
  EXPECT_EQ(Code(*authorizer, {{}, kReader}, Permission::kInference), kOk);
  EXPECT_EQ(Code(*authorizer, {{}, kReader}, Permission::kStatus), kOk);
  EXPECT_EQ(Code(*authorizer, {{}, kReader}, Permission::kControl), kDenied);
  EXPECT_EQ(Code(*authorizer, {{}, kAdmin}, Permission::kControl), kOk);
  EXPECT_EQ(Code(*authorizer, {{}, kAdmin}, Permission::kInference), kDenied);
  EXPECT_EQ(Code(*authorizer, {{}, kBoth}, Permission::kInference), kOk);
  EXPECT_EQ(Code(*authorizer, {{}, kBoth}, Permission::kControl), kOk);
}

TEST_F(AuthorizerTest, MissingOrUnknownTokensAreUnauthenticated) {
  const auto authorizer = NewWithTokens();
  for (const char* header :
       {"", "Bearer ", "Bearer reader-012345678", "Bearer reader-01234567890", "reader-0123456789",
        "Basic reader-0123456789", "Bearer  reader-0123456789", "Bearer # who may"}) {
    EXPECT_EQ(Code(*authorizer, {{}, header}, Permission::kStatus), kUnauthenticated) << header;
  }
  // A name proves nothing if no certificate was asked for.
  EXPECT_EQ(Code(*authorizer, {{"a"}, ""}, Permission::kInference), kDenied);
}

TEST_F(AuthorizerTest, ACertificateAllowsWhatTheListsSay) {
  const auto authorizer = New({.client_certificates = true,
                               .inference_clients = {"router", "both"},
                               .control_clients = {"spiffe://fleet/orchestrator", "both"},
                               .token_file = ""});
  EXPECT_EQ(Code(*authorizer, {{"router"}, ""}, Permission::kInference), kOk);
  EXPECT_EQ(Code(*authorizer, {{"router"}, ""}, Permission::kControl), kDenied);
  EXPECT_EQ(Code(*authorizer, {{"x", "spiffe://fleet/orchestrator"}, ""}, Permission::kControl),
            kOk);
  EXPECT_EQ(Code(*authorizer, {{"both"}, ""}, Permission::kControl), kOk);
  EXPECT_EQ(Code(*authorizer, {{"stranger"}, ""}, Permission::kInference), kDenied);
  EXPECT_EQ(Code(*authorizer, {{"stranger"}, ""}, Permission::kStatus), kOk);
  EXPECT_EQ(Code(*authorizer, {}, Permission::kStatus), kUnauthenticated);
}

TEST_F(AuthorizerTest, ACertificateAloneAllowsAllWhereNothingElseSaysWhoMay) {
  const auto authorizer = New({.client_certificates = true,
                               .inference_clients = {},
                               .control_clients = {},
                               .token_file = ""});
  EXPECT_EQ(Code(*authorizer, {{"anyone"}, ""}, Permission::kControl), kOk);
  EXPECT_EQ(Code(*authorizer, {}, Permission::kInference), kUnauthenticated);
}

TEST_F(AuthorizerTest, CertificateAndTokenTogetherAllowWhatEitherDoes) {
  WriteTokens("control admin-00123456789\n");
  const auto authorizer = New({.client_certificates = true,
                               .inference_clients = {"router"},
                               .control_clients = {},
                               .token_file = path_});
  EXPECT_EQ(Code(*authorizer, {{"router"}, ""}, Permission::kControl), kDenied);
  EXPECT_EQ(Code(*authorizer, {{"router"}, kAdmin}, Permission::kControl), kOk);
  EXPECT_EQ(Code(*authorizer, {{"router"}, kAdmin}, Permission::kInference), kOk);
}

TEST_F(AuthorizerTest, TokensAreReadAgainWhenTheFileChanges) {
  const auto authorizer = NewWithTokens();
  WriteTokens("inference fresh-0123456789\n");
  EXPECT_TRUE(Eventually([&] {
    return Code(*authorizer, {{}, "Bearer fresh-0123456789"}, Permission::kInference) == kOk;
  }));
  EXPECT_EQ(Code(*authorizer, {{}, kReader}, Permission::kInference), kUnauthenticated);
}

TEST_F(AuthorizerTest, AFileThatCannotBeReadLeavesTheTokensAsTheyWere) {
  const auto authorizer = NewWithTokens();
  for (const char* text : {"inference short\n", "everything reader-0123456789\n", "nonsense\n"}) {
    WriteTokens(text);
    absl::SleepFor(absl::Milliseconds(600));
    EXPECT_EQ(Code(*authorizer, {{}, kReader}, Permission::kInference), kOk) << text;
  }
  std::filesystem::remove(path_);
  absl::SleepFor(absl::Milliseconds(600));
  EXPECT_EQ(Code(*authorizer, {{}, kReader}, Permission::kInference), kOk);
}

TEST_F(AuthorizerTest, AnEmptiedFileLeavesTheTokensAndOneOfCommentsTakesThemAway) {
  const auto authorizer = NewWithTokens();
  for (const char* text : {"", "\n", " \n\t\n"}) {
    WriteTokens(text);
    absl::SleepFor(absl::Milliseconds(600));
    EXPECT_EQ(Code(*authorizer, {{}, kReader}, Permission::kInference), kOk) << text;
  }
  WriteTokens("# nobody\n");
  EXPECT_TRUE(Eventually([&] {
    return Code(*authorizer, {{}, kReader}, Permission::kInference) == kUnauthenticated;
  }));
}

TEST_F(AuthorizerTest, AFileThatCouldNotBeReadIsTriedAgainThoughItLooksTheSame) {
  const auto authorizer = NewWithTokens();
  const std::string good = "inference fresh-0123456789\n";
  std::ofstream(path_) << std::string(good.size(), 'x');
  const auto written = std::filesystem::last_write_time(path_);
  absl::SleepFor(absl::Milliseconds(600));
  EXPECT_EQ(Code(*authorizer, {{}, kReader}, Permission::kInference), kOk);
  std::ofstream(path_) << good;
  std::filesystem::last_write_time(path_, written);
  EXPECT_TRUE(Eventually([&] {
    return Code(*authorizer, {{}, "Bearer fresh-0123456789"}, Permission::kInference) == kOk;
  }));
}

TEST_F(AuthorizerTest, AWrongFileAtTheStartIsAnErrorWithoutSecrets) {
  for (const char* text :
       {"inference secret\n", "root secret-0123456789\n", "inference secret-0123456789 secret\n",
        "secret-0123456789\n", "", "\n"}) {
    WriteTokens(text);
    const absl::Status status = Authorizer::Create({.client_certificates = false,
                                                    .inference_clients = {},
                                                    .control_clients = {},
                                                    .token_file = path_},
                                                   watcher_)
                                    .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(GetErrorDetails(status).reason, "TOKEN_FILE_INVALID");
    EXPECT_EQ(status.message().find("secret"), absl::string_view::npos) << status;
  }
}

}  // namespace
}  // namespace orcd
