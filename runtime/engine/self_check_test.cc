#include "runtime/engine/self_check.h"

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/cpu/cpu_backend.h"
#include "runtime/engine/nano_model_for_test.h"
#include "runtime/error.h"

namespace orcd {
namespace {

using testing::HasSubstr;

// Given one step's activation, may change it. `rows` tells a step of many tokens from one of one.
using Corruption =
    std::function<void(std::string_view name, int layer, int64_t rows, std::vector<float>& values)>;

// A backend that computes what another computes, and then says something else.
class CorruptBackend : public Backend {
 public:
  CorruptBackend(std::unique_ptr<Backend> backend, Corruption corrupt)
      : backend_(std::move(backend)), tap_(std::move(corrupt)) {}

  const BackendInfo& info() const override { return backend_->info(); }
  absl::Status Launch(const StepBatch& batch) override {
    StepBatch tapped = batch;
    tap_.to = batch.tap;
    tapped.tap = &tap_;
    return backend_->Launch(tapped);
  }
  absl::StatusOr<StepResult> Wait() override { return backend_->Wait(); }

 private:
  struct CorruptTap : ActivationTap {
    explicit CorruptTap(Corruption c) : corrupt(std::move(c)) {}
    void OnActivation(std::string_view name, int layer, std::span<const float> values, int64_t rows,
                      int64_t cols) override {
      std::vector<float> changed(values.begin(), values.end());
      corrupt(name, layer, rows, changed);
      to->OnActivation(name, layer, changed, rows, cols);
    }
    Corruption corrupt;
    ActivationTap* to = nullptr;
  };
  const std::unique_ptr<Backend> backend_;
  CorruptTap tap_;
};

absl::Status CheckWith(Corruption corrupt) {
  const std::shared_ptr<const Model> model = NanoModel();
  NullLoadObserver observer;
  BackendOptions options;
  options.kv_cache_bytes = 1 << 20;
  auto cpu = CreateCpuBackend(model, options, observer);
  if (!cpu.ok()) return cpu.status();
  CorruptBackend backend(*std::move(cpu), std::move(corrupt));
  return SelfCheck(*model, backend, observer);
}

TEST(SelfCheckTest, PassesWhatComputes) {
  EXPECT_EQ(CheckWith([](auto...) {}), absl::OkStatus());
}

TEST(SelfCheckTest, NamesLayerAndOperationOfANan) {
  const absl::Status status =
      CheckWith([](std::string_view name, int layer, int64_t, std::vector<float>& values) {
        if (name == "ffn_down" && layer == 1) values[3] = std::numeric_limits<float>::quiet_NaN();
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(GetErrorDetails(status).reason, "SELF_CHECK_FAILED");
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer 1, operation 'ffn_down'"));
}

TEST(SelfCheckTest, RefusesLogitsThatAreAllMinusInfinity) {
  const absl::Status status =
      CheckWith([](std::string_view name, int, int64_t, std::vector<float>& values) {
        if (name == "logits") values.assign(values.size(), -std::numeric_limits<float>::infinity());
      });
  EXPECT_THAT(std::string(status.message()), HasSubstr("operation 'logits' gave -inf"));
}

TEST(SelfCheckTest, RefusesLogitsThatAreAllAlike) {
  const absl::Status status =
      CheckWith([](std::string_view name, int, int64_t, std::vector<float>& values) {
        if (name == "logits") values.assign(values.size(), 0.25f);
      });
  EXPECT_THAT(std::string(status.message()), HasSubstr("every logit at position 0 is 0.25"));
}

TEST(SelfCheckTest, RefusesAStepOfOneThatDiffersFromAStepOfMany) {
  const absl::Status status =
      CheckWith([](std::string_view name, int, int64_t rows, std::vector<float>& values) {
        if (name == "logits" && rows == 1) values[1] += 10;
      });
  EXPECT_THAT(std::string(status.message()), HasSubstr("differ between a step of many"));
}

}  // namespace
}  // namespace orcd
