#include "worker/fleet/directives.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::Directive LoadDirective(const std::string& id, const std::string& model) {
  v1::Directive directive;
  directive.set_id(id);
  directive.mutable_load()->set_model(model);
  return directive;
}

// Directives with actions that run until the test ends them.
class DirectivesTest : public ::testing::Test {
 protected:
  std::shared_ptr<Directives> New() {
    Directives::Actions actions;
    actions.load = [this](const v1::LoadRequest& request, Directives::Done done) {
      began_.push_back(absl::StrCat("load ", request.model()));
      done_.push_back(std::move(done));
    };
    actions.unload = [this](const v1::UnloadRequest& request, Directives::Done done) {
      began_.push_back(absl::StrCat("unload ", request.model_id()));
      done_.push_back(std::move(done));
    };
    actions.drain = [this](const v1::DrainRequest&, Directives::Done done) {
      began_.push_back("drain");
      done_.push_back(std::move(done));
    };
    return Directives::Create(std::move(actions), [this] { ++changes_; });
  }

  static std::map<std::string, v1::DirectiveOutcome> Outcomes(const Directives& directives) {
    std::map<std::string, v1::DirectiveOutcome> outcomes;
    for (const auto& outcome : directives.MakeReport().outcomes) outcomes[outcome.id()] = outcome;
    return outcomes;
  }

  std::vector<std::string> began_;
  std::vector<Directives::Done> done_;
  int changes_ = 0;
};

TEST_F(DirectivesTest, OnceHoweverOftenItIsSent) {
  auto directives = New();
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(directives->Take({LoadDirective("a", "m.gguf")}));
  }
  EXPECT_THAT(began_, ElementsAre("load m.gguf"));
  done_[0](absl::OkStatus());
  directives->Take({LoadDirective("a", "other.gguf")});
  EXPECT_THAT(began_, ElementsAre("load m.gguf"));
}

TEST_F(DirectivesTest, LoadsAndUnloadsTakeTurnsAndDrainsDoNotWait) {
  auto directives = New();
  v1::Directive unload;
  unload.set_id("b");
  unload.mutable_unload()->set_model_id("m");
  v1::Directive drain;
  drain.set_id("d");
  drain.mutable_drain();
  directives->Take({LoadDirective("a", "1.gguf"), unload, LoadDirective("c", "2.gguf"), drain});
  EXPECT_THAT(began_, ElementsAre("load 1.gguf", "drain"));
  EXPECT_EQ(Outcomes(*directives)["a"].state(), v1::DirectiveOutcome::STATE_RUNNING);
  EXPECT_EQ(Outcomes(*directives)["c"].state(), v1::DirectiveOutcome::STATE_QUEUED);
  done_[0](absl::OkStatus());
  EXPECT_THAT(began_, ElementsAre("load 1.gguf", "drain", "unload m"));
  // The end of a drain, which runs out of turn, starts nothing from the queue.
  done_[1](absl::OkStatus());
  EXPECT_EQ(began_.size(), 3u);
  done_[2](absl::OkStatus());
  EXPECT_EQ(began_.back(), "load 2.gguf");
}

TEST_F(DirectivesTest, AnOutcomeIsReportedUntilAReportHasArrived) {
  auto directives = New();
  directives->Take({LoadDirective("a", "m.gguf")});
  const Directives::Report before = directives->MakeReport();
  const int changes = changes_;
  done_[0](MakeError(absl::StatusCode::kNotFound, "no such file", {.reason = "MODEL_NOT_FOUND"}));
  EXPECT_GT(changes_, changes);
  // In that report the directive was still running.
  directives->OnReported(before);
  auto outcomes = Outcomes(*directives);
  ASSERT_EQ(outcomes.count("a"), 1u);
  EXPECT_EQ(outcomes["a"].state(), v1::DirectiveOutcome::STATE_FAILED);
  EXPECT_EQ(outcomes["a"].error().code(), 5);
  EXPECT_EQ(outcomes["a"].error().message(), "no such file");
  EXPECT_GT(outcomes["a"].error().details_size(), 0);
  directives->OnReported(directives->MakeReport());
  EXPECT_THAT(Outcomes(*directives), IsEmpty());
  // A directive that is sent again gets its outcome again.
  directives->Take({LoadDirective("a", "m.gguf")});
  EXPECT_EQ(Outcomes(*directives)["a"].state(), v1::DirectiveOutcome::STATE_FAILED);
  EXPECT_EQ(began_.size(), 1u);
}

TEST_F(DirectivesTest, ReregisterIsAnsweredOnce) {
  auto directives = New();
  v1::Directive reregister;
  reregister.set_id("r");
  reregister.mutable_reregister();
  EXPECT_TRUE(directives->Take({reregister}));
  EXPECT_FALSE(directives->Take({reregister}));
  EXPECT_EQ(Outcomes(*directives)["r"].state(), v1::DirectiveOutcome::STATE_SUCCEEDED);
}

TEST_F(DirectivesTest, NonsenseIsRefused) {
  auto directives = New();
  v1::Directive empty;
  empty.set_id("e");
  directives->Take({LoadDirective("", "m.gguf"), LoadDirective("a b", "m.gguf"),
                    LoadDirective(std::string(500, 'x'), "m.gguf"), empty});
  EXPECT_THAT(began_, IsEmpty());
  const auto outcomes = Outcomes(*directives);
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_EQ(outcomes.at("e").state(), v1::DirectiveOutcome::STATE_FAILED);
  EXPECT_EQ(outcomes.at("e").error().code(), 3);
}

TEST_F(DirectivesTest, AFloodIsBounded) {
  auto directives = New();
  std::vector<v1::Directive> flood;
  for (int i = 0; i < 5000; ++i) flood.push_back(LoadDirective(absl::StrCat("f", i), "m.gguf"));
  directives->Take(flood);
  EXPECT_EQ(began_.size(), 1u);
  EXPECT_EQ(directives->MakeReport().outcomes.size(), Directives::kMaxReported);
  int refused = 0;
  for (const auto& [id, outcome] : Outcomes(*directives)) {
    google::rpc::ErrorInfo info;
    for (const auto& detail : outcome.error().details()) detail.UnpackTo(&info);
    if (outcome.state() != v1::DirectiveOutcome::STATE_FAILED) continue;
    EXPECT_EQ(info.reason(), "DIRECTIVES_FULL");
    ++refused;
  }
  EXPECT_GT(refused, 0);
  // Each report makes room for the next, until only the unfinished directives are left.
  for (int i = 0; i < 100; ++i) directives->OnReported(directives->MakeReport());
  EXPECT_EQ(directives->MakeReport().outcomes.size(), Directives::kMaxQueued + 1);
  for (size_t i = 0; i < Directives::kMaxQueued + 1; ++i) done_.at(i)(absl::OkStatus());
  EXPECT_EQ(began_.size(), Directives::kMaxQueued + 1);
}

TEST_F(DirectivesTest, AnActionThatEndsAtOnceLetsTheNextBegin) {
  Directives::Actions actions;
  actions.load = [this](const v1::LoadRequest& request, const Directives::Done& done) {
    began_.push_back(request.model());
    done(absl::OkStatus());
  };
  auto directives = Directives::Create(std::move(actions), [] {});
  directives->Take({LoadDirective("a", "1"), LoadDirective("b", "2")});
  EXPECT_THAT(began_, ElementsAre("1", "2"));
}

TEST_F(DirectivesTest, NothingAfterTheClose) {
  auto directives = New();
  directives->Take({LoadDirective("a", "1"), LoadDirective("b", "2")});
  directives->Close();
  const int changes = changes_;
  done_[0](absl::OkStatus());
  EXPECT_EQ(changes_, changes);
  EXPECT_THAT(began_, ElementsAre("load 1"));
  directives->Take({LoadDirective("c", "3")});
  EXPECT_EQ(began_.size(), 1u);
}

}  // namespace
}  // namespace orcd
