#include "worker/fleet/directive_actions.h"

#include <memory>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "testing/event.h"
#include "worker/host/load_for_test.h"
#include "worker/host/nano_model_for_test.h"

namespace orcd {
namespace {

constexpr absl::Duration kLong = absl::Seconds(20);

class DirectiveActionsTest : public ::testing::Test {
 protected:
  NanoModelDir dir_;
  const Logger log_{LogFormat::kText, LogLevel::kError};
  Metrics metrics_;
  Telemetry telemetry_{metrics_, nullptr, 0};
  ModelHost host_{NullHostOptions(dir_.path())};
  const Directives::Actions actions_ = DirectiveActions(host_, log_, telemetry_, [] {});
};

// The caller's thread sends heartbeats, also while a file system hangs.
TEST_F(DirectiveActionsTest, ALoadWaitsForTheDiskAndItsCallerDoesNot) {
  const auto release = std::make_shared<Event>();
  const auto hang = [release] { EXPECT_TRUE(release->WaitFor(kLong)); };
  // Block every thread of the pool.
  for (int i = 0; i < 2; ++i) host_.threads().disk.PostAlways(0, hang);
  v1::LoadRequest request;
  request.set_model("absent.gguf");
  absl::Status ended;
  Event done;
  actions_.load(request, [&](const absl::Status& status) {
    ended = status;
    done.Notify();
  });
  EXPECT_FALSE(done.WaitFor(absl::Milliseconds(100)));
  release->Notify();
  ASSERT_TRUE(done.WaitFor(kLong));
  EXPECT_EQ(GetErrorDetails(ended).reason, "MODEL_NOT_FOUND") << ended;
}

}  // namespace
}  // namespace orcd
