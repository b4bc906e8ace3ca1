#include "worker/api/vllm/worker_figures.h"

#include <string>

#include "absl/time/civil_time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/model/architectures.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

v1::WorkerStatus Busy() {
  v1::WorkerStatus status;
  status.set_state(v1::WORKER_STATE_READY);
  status.set_version("1.2.3");
  status.mutable_uptime()->set_seconds(90);
  v1::Queue& queue = *status.mutable_queue();
  queue.set_running_requests(3);
  queue.set_waiting_requests(2);
  queue.set_max_running_requests(16);
  queue.set_waiting_tokens(700);
  queue.set_prompt_tokens(400);
  queue.set_cached_prompt_tokens(100);
  v1::KvBlocks& blocks = *status.mutable_kv_blocks();
  blocks.set_total(10);
  blocks.set_free(6);
  blocks.set_tokens_per_block(16);
  status.mutable_rates()->set_generated_tokens_per_second(12.5);
  return status;
}

TEST(WorkerFiguresTest, OnlyAReadyWorkerIsHealthy) {
  v1::WorkerStatus status;
  for (const auto state :
       {v1::WORKER_STATE_IDLE, v1::WORKER_STATE_LOADING, v1::WORKER_STATE_DRAINING,
        v1::WORKER_STATE_DRAINED, v1::WORKER_STATE_FAILED}) {
    status.set_state(state);
    EXPECT_EQ(CheckReady(status).code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(GetErrorDetails(CheckReady(status)).reason, "NOT_READY");
  }
  status.set_reason("the device is lost");
  EXPECT_EQ(GetErrorDetails(CheckReady(status)).subject, "FAILED");
  EXPECT_THAT(std::string(CheckReady(status).message()),
              HasSubstr("it is FAILED: the device is lost; "));
  status.set_state(v1::WORKER_STATE_READY);
  EXPECT_TRUE(CheckReady(status).ok());
}

TEST(WorkerFiguresTest, LoadsAreTheWorkersFigures) {
  const absl::Time now =
      absl::FromCivil(absl::CivilSecond(2026, 11, 22, 1, 2, 3), absl::UTCTimeZone()) +
      absl::Microseconds(45);
  const vllm_wire::GetLoadsResponse loads = ToLoads(Busy(), now);
  EXPECT_EQ(loads.timestamp(), "2026-11-22T01:02:03.000045+00:00");
  EXPECT_EQ(loads.version(), "1.2.3");
  EXPECT_EQ(loads.dp_rank_count(), 1);
  ASSERT_EQ(loads.loads_size(), 1);
  const vllm_wire::SchedulerLoad& load = loads.loads(0);
  EXPECT_EQ(load.dp_rank(), 0);
  EXPECT_EQ(load.num_running_reqs(), 3);
  EXPECT_EQ(load.num_waiting_reqs(), 2);
  EXPECT_EQ(load.num_total_reqs(), 5);
  EXPECT_EQ(load.num_used_tokens(), 64);
  EXPECT_EQ(load.max_total_num_tokens(), 160);
  EXPECT_DOUBLE_EQ(load.token_usage(), 0.4);
  EXPECT_EQ(load.gen_throughput(), 12.5);
  EXPECT_DOUBLE_EQ(load.cache_hit_rate(), 0.25);
  EXPECT_EQ(load.max_running_requests(), 16);
  EXPECT_EQ(load.num_waiting_uncached_tokens(), 700);
}

TEST(WorkerFiguresTest, WithoutAModelNothingIsUsed) {
  const vllm_wire::SchedulerLoad load = ToSchedulerLoad(v1::WorkerStatus());
  EXPECT_EQ(load.token_usage(), 0);
  EXPECT_EQ(load.cache_hit_rate(), 0);
  EXPECT_EQ(load.max_total_num_tokens(), 0);
}

TEST(WorkerFiguresTest, FiguresBeyondTheirFieldsAreTheMost) {
  v1::WorkerStatus status;
  status.mutable_kv_blocks()->set_total(4'000'000'000);
  status.mutable_kv_blocks()->set_tokens_per_block(4096);
  status.mutable_queue()->set_waiting_tokens(uint64_t{1} << 40);
  EXPECT_EQ(ToSchedulerLoad(status).max_total_num_tokens(), 0x7FFFFFFF);
  EXPECT_EQ(ToSchedulerLoad(status).num_used_tokens(), 0x7FFFFFFF);
  EXPECT_EQ(ToSchedulerLoad(status).num_waiting_uncached_tokens(), 0x7FFFFFFF);
}

TEST(WorkerFiguresTest, ServerInfo) {
  v1::WorkerStatus status = Busy();
  vllm_wire::GetServerInfoResponse info = ToServerInfo(status);
  EXPECT_EQ(info.active_requests(), 5u);
  EXPECT_FALSE(info.is_paused());
  EXPECT_EQ(info.uptime_seconds(), 90);
  EXPECT_EQ(info.block_size(), 16);
  EXPECT_EQ(info.max_num_seqs(), 16);
  EXPECT_EQ(info.data_parallel_size(), 1);
  status.set_state(v1::WORKER_STATE_DRAINING);
  EXPECT_TRUE(ToServerInfo(status).is_paused());
}

TEST(WorkerFiguresTest, ServerInfoSaysWhereConstraintsStart) {
  v1::WorkerStatus status = Busy();
  status.mutable_model()->set_thinking_end_token_id(7);
  EXPECT_EQ(ToServerInfo(status).constrained_decoding_start(), "");
  status.mutable_model()->set_constraints_supported(true);
  EXPECT_EQ(ToServerInfo(status).constrained_decoding_start(), "after_reasoning");
  status.mutable_model()->clear_thinking_end_token_id();
  EXPECT_EQ(ToServerInfo(status).constrained_decoding_start(), "first_token");
  status.clear_model();
  EXPECT_EQ(ToServerInfo(status).constrained_decoding_start(), "");
}

TEST(WorkerFiguresTest, ModelInfo) {
  v1::ModelDescription model;
  model.set_model_id("qwen");
  model.set_digest("sha256-tree:abcd");
  model.set_architecture("qwen2");
  model.set_vocab(151936);
  model.set_context_length(2048);
  model.add_eog_token_ids(151643);
  model.add_eog_token_ids(151645);
  const vllm_wire::GetModelInfoResponse info = ToModelInfo(model);
  EXPECT_EQ(info.served_model_name(), "qwen");
  EXPECT_TRUE(info.is_generation());
  EXPECT_EQ(info.max_context_length(), 2048u);
  EXPECT_EQ(info.max_req_input_len(), 2047);
  EXPECT_EQ(info.vocab_size(), 151936u);
  EXPECT_EQ(info.model_type(), "qwen2");
  EXPECT_THAT(info.architectures(), ElementsAre("Qwen2ForCausalLM"));
  EXPECT_THAT(info.eos_token_ids(), ElementsAre(151643, 151645));
  // The path is absolute so that it is not the name of a model on a hub, and differs for another
  // model.
  EXPECT_THAT(info.tokenizer_path(), StartsWith("/"));
  EXPECT_THAT(info.tokenizer_path(), HasSubstr("abcd"));
  EXPECT_EQ(info.model_path(), info.tokenizer_path());
}

TEST(WorkerFiguresTest, EveryArchitectureHasTheNameOfItsClass) {
  for (const Architecture* architecture : AllArchitectures()) {
    v1::ModelDescription model;
    model.set_architecture(std::string(architecture->name));
    EXPECT_EQ(ToModelInfo(model).architectures_size(), 1) << architecture->name;
  }
}

}  // namespace
}  // namespace orcd
