#include "worker/api/orcd/multiplexed_call.h"

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "testing/event.h"
#include "worker/host/load_for_test.h"
#include "worker/host/nano_model_for_test.h"

namespace orcd {
namespace {

// Counts the messages it parses.
class CountingDialect final : public CallDialect {
 public:
  explicit CountingDialect(std::atomic<int>& parsed) : parsed_(parsed) {}

  absl::StatusOr<MultiplexedAction> Parse(const grpc::ByteBuffer&) const override {
    ++parsed_;
    return InvalidField("action", "is none");
  }
  std::span<const int> id_path() const override { return {}; }
  std::vector<grpc::ByteBuffer> Serialize(std::span<const PendingEvents>,
                                          std::span<const CancelAnswer>) const override {
    return {};
  }

 private:
  std::atomic<int>& parsed_;
};

// The test plays gRPC, whose callbacks may come at any time.
TEST(MultiplexedCallTest, AMessageReadAfterTheEndIsDropped) {
  NanoModelDir dir;
  const Logger log(LogFormat::kText, LogLevel::kError);
  std::atomic<int> parsed = 0;
  MultiplexedCalls calls({});
  std::optional<grpc::CallbackServerContext> context(std::in_place);
  // They outlive the host's threads.
  Event held;
  Event release;
  {
    ModelHost host(NullHostOptions(dir.path()));
    auto* const reactor = calls.Start(&*context, std::make_unique<CountingDialect>(parsed), host,
                                      log, nullptr, [] { return absl::OkStatus(); });
    host.threads().work.PostAlways(0, [&] {
      held.Notify();
      EXPECT_TRUE(release.WaitFor(absl::Seconds(20)));
    });
    ASSERT_TRUE(held.WaitFor(absl::Seconds(20)));
    // Finishes the call while its read is under way.
    calls.Shutdown();
    reactor->OnReadDone(true);
    reactor->OnDone();
    context.reset();
    release.Notify();
  }
  EXPECT_EQ(parsed, 0);
}

TEST(MultiplexedCallTest, AMessageReadBeforeTheEndDelaysIt) {
  NanoModelDir dir;
  const Logger log(LogFormat::kText, LogLevel::kError);
  std::atomic<int> parsed = 0;
  MultiplexedCalls calls({});
  grpc::CallbackServerContext context;
  // They outlive the host's threads.
  Event release;
  Event taken;
  ModelHost host(NullHostOptions(dir.path()));
  auto* const reactor = calls.Start(&context, std::make_unique<CountingDialect>(parsed), host, log,
                                    nullptr, [] { return absl::OkStatus(); });
  host.threads().work.PostAlways(0, [&] { EXPECT_TRUE(release.WaitFor(absl::Seconds(20))); });
  reactor->OnReadDone(true);
  host.threads().work.PostAlways(0, [&] { taken.Notify(); });
  calls.Shutdown();
  release.Notify();
  ASSERT_TRUE(taken.WaitFor(absl::Seconds(20)));
  EXPECT_EQ(parsed, 1);
  reactor->OnDone();
}

}  // namespace
}  // namespace orcd
