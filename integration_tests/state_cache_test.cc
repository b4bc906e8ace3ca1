// A model with recurrent layers: a prompt that comes again is not computed again, the answer is the
// same, and the worker says what it keeps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "integration_tests/http_get.h"
#include "integration_tests/worker_fixture.h"
#include "testing/random_model/random_model.h"

namespace orcd::testing {
namespace {

using ::testing::HasSubstr;

class StateCacheTest : public WorkerTest {
 protected:
  // Starts a worker and loads a model with recurrent layers.
  void StartHybrid(std::vector<std::string> args = {}) {
    const auto written = WriteRandomModel({.architecture = "qwen3next", .type = "Q8_0"},
                                          models().File("hybrid.gguf"));
    ASSERT_TRUE(written.ok()) << written.status();
    args.insert(args.end(), {"--metrics-listen", "127.0.0.1:0"});
    ASSERT_NO_FATAL_FAILURE(StartWorker(args));
    const LoadResult loaded = client().Load("hybrid.gguf");
    ASSERT_TRUE(loaded.error.ok()) << loaded.error;
  }

  static v1::GenerateRequest LongRequest() {
    std::vector<uint32_t> prompt;
    for (uint32_t i = 0; i < 300; ++i) prompt.push_back(i * 7 % 900);
    v1::GenerateRequest request = TokenRequest(prompt, 20);
    request.mutable_sampling()->set_seed(5);
    request.mutable_stop()->set_ignore_eog(true);
    return request;
  }
};

TEST_F(StateCacheTest, APromptThatComesAgainBeginsWithItsState) {
  for (const char* backend : {"cpu", "null"}) {
    ASSERT_NO_FATAL_FAILURE(StartHybrid({"--backend", backend}));
    const Generation first = client().Generate(LongRequest());
    ASSERT_TRUE(IsComplete(first)) << first.error;
    EXPECT_EQ(first.finished->usage().cached_prompt_tokens(), 0u);
    const Generation second = client().Generate(LongRequest());
    ASSERT_TRUE(IsComplete(second)) << second.error;
    EXPECT_EQ(second.finished->usage().cached_prompt_tokens(), 288u);
    EXPECT_EQ(second.ids, first.ids);

    EXPECT_TRUE(client().WaitForStatus(
        [](const v1::WorkerStatus& status) { return status.state_cells().held() == 0; }));
    const v1::WorkerStatus status = client().Status();
    EXPECT_GT(status.memory().state_bytes(), 0u);
    const v1::StateCells& cells = status.state_cells();
    EXPECT_GT(cells.total(), 1u);
    EXPECT_EQ(cells.cached(), cells.saved());
    EXPECT_GT(cells.bytes_per_cell(), 0u);
    EXPECT_EQ(cells.hits(), 1u);
    EXPECT_EQ(cells.hit_tokens(), 288u);
    const std::string metrics = HttpGet(worker().SideAddress("metrics"), "/metrics");
    EXPECT_THAT(metrics, HasSubstr("\norcd_state_checkpoint_hits_total 1\n"));
    EXPECT_THAT(metrics, HasSubstr("\norcd_state_checkpoint_tokens_total 288\n"));
    EXPECT_THAT(metrics, HasSubstr("\norcd_state_cells{state=\"held\"} 0\n"));
    EXPECT_THAT(metrics, HasSubstr(absl::StrCat("\norcd_state_cells{state=\"cached\"} ",
                                                cells.cached(), "\n")));
    StopWorker();
  }
}

TEST_F(StateCacheTest, WithoutCellsEveryPromptIsComputed) {
  ASSERT_NO_FATAL_FAILURE(StartHybrid({"--state-cache", "none"}));
  std::vector<uint32_t> ids;
  for (int i = 0; i < 2; ++i) {
    const Generation generation = client().Generate(LongRequest());
    ASSERT_TRUE(IsComplete(generation)) << generation.error;
    EXPECT_EQ(generation.finished->usage().cached_prompt_tokens(), 0u);
    if (i > 0) {
      EXPECT_EQ(generation.ids, ids);
    }
    ids = generation.ids;
  }
  EXPECT_EQ(client().Status().state_cells().total(), 0u);
}

TEST_F(StateCacheTest, AModelWithoutRecurrentLayersHasNoCells) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded({"--state-cache", "1GiB"}));
  EXPECT_FALSE(client().Status().has_state_cells());
  EXPECT_EQ(client().Status().memory().state_bytes(), 0u);
}

}  // namespace
}  // namespace orcd::testing
