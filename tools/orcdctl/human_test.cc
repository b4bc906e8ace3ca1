#include "tools/orcdctl/human.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

void SetDuration(google::protobuf::Duration* out, absl::Duration value) {
  out->set_seconds(absl::ToInt64Seconds(value));
  out->set_nanos(static_cast<int>(absl::ToInt64Nanoseconds(value % absl::Seconds(1))));
}

v1::ModelDescription Model() {
  v1::ModelDescription model;
  model.set_model_id("qwen");
  model.set_name("Qwen2.5 Coder");
  model.set_file("qwen.gguf");
  model.set_digest("sha256-tree:abc");
  model.set_architecture("qwen2");
  model.set_quantization("Q4_K 12, F32 5");
  model.set_parameters(494'032'768);
  model.set_size_bytes(491'400'032);
  model.set_layers(24);
  model.set_hidden(896);
  model.set_heads(14);
  model.set_kv_heads(2);
  model.set_head_dim(64);
  model.set_ffn(4864);
  model.set_vocab(151936);
  model.set_context_length(32768);
  model.set_chat_supported(true);
  return model;
}

TEST(HumanTest, Bytes) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.0 KiB");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(HumanBytes(491'400'032), "468.6 MiB");
  EXPECT_EQ(HumanBytes(uint64_t{3} << 30), "3.0 GiB");
  EXPECT_EQ(HumanBytes(std::numeric_limits<uint64_t>::max()), "16384.0 PiB");
}

TEST(HumanTest, Counts) {
  EXPECT_EQ(HumanCount(999), "999");
  EXPECT_EQ(HumanCount(151'936), "152 K");
  EXPECT_EQ(HumanCount(494'032'768), "494 M");
  EXPECT_EQ(HumanCount(1'543'714'304), "1.54 B");
}

TEST(HumanTest, Durations) {
  EXPECT_EQ(HumanDuration(absl::ZeroDuration()), "0 ms");
  EXPECT_EQ(HumanDuration(-absl::Seconds(1)), "0 ms");
  EXPECT_EQ(HumanDuration(absl::Milliseconds(850)), "850 ms");
  EXPECT_EQ(HumanDuration(absl::Milliseconds(999.7)), "1.0 s");
  EXPECT_EQ(HumanDuration(absl::Milliseconds(1520)), "1.5 s");
  EXPECT_EQ(HumanDuration(absl::Milliseconds(59'970)), "1 min 0 s");
  EXPECT_EQ(HumanDuration(absl::Seconds(125)), "2 min 5 s");
  EXPECT_EQ(HumanDuration(absl::Minutes(200)), "3 h 20 min");
  EXPECT_EQ(HumanDuration(absl::Hours(98)), "4 d 2 h");
}

TEST(HumanTest, StatusOfAReadyWorkerIsAnAlignedTable) {
  v1::WorkerStatus status;
  status.set_worker_id("gpu-0");
  status.set_instance_id("f00d");
  status.set_version("0.1.0");
  status.set_state(v1::WORKER_STATE_READY);
  *status.mutable_model() = Model();
  status.mutable_device()->set_backend("cpu");
  status.mutable_device()->set_name("EPYC");
  status.mutable_device()->set_threads(2);
  status.mutable_memory()->set_weights_bytes(1 << 20);
  status.mutable_memory()->set_kv_bytes(2 << 20);
  status.mutable_queue()->set_running_requests(1);
  status.mutable_queue()->set_max_running_requests(16);
  status.mutable_queue()->set_max_waiting_requests(256);
  status.mutable_queue()->set_generated_tokens(1);
  status.mutable_kv_blocks()->set_total(200);
  status.mutable_kv_blocks()->set_free(150);
  status.mutable_kv_blocks()->set_tokens_per_block(16);
  SetDuration(status.mutable_last_step_age(), absl::Milliseconds(1200));
  SetDuration(status.mutable_uptime(), absl::Seconds(61));
  EXPECT_EQ(DescribeStatus(status),
            "state      READY\n"
            "model      qwen (Qwen2.5 Coder)\n"
            "file       qwen.gguf · 468.6 MiB\n"
            "digest     sha256-tree:abc\n"
            "weights    qwen2 · 494 M parameters · Q4_K 12, F32 5\n"
            "shape      24 layers · hidden 896 · 14 heads, 2 for KV, of 64 · ffn 4864 · vocab "
            "151936\n"
            "context    32768 tokens · chat supported\n"
            "device     cpu · EPYC · 2 threads\n"
            "memory     weights 1.0 MiB · KV 2.0 MiB · workspace 0 B · resident 0 B\n"
            "queue      1 of 16 running · 0 of 256 waiting · 0 finished · 1 token generated\n"
            "KV         150 of 200 blocks free (75%) · 16 tokens a block\n"
            "last step  1.2 s ago\n"
            "worker     gpu-0 · instance f00d · version 0.1.0\n"
            "uptime     1 min 1 s\n");
}

TEST(HumanTest, LayersWithAWindowAreCounted) {
  v1::WorkerStatus status;
  *status.mutable_model() = Model();
  status.mutable_model()->set_window_layers(15);
  status.mutable_model()->set_window(512);
  status.mutable_kv_blocks()->set_total(200);
  status.mutable_kv_blocks()->set_free(150);
  status.mutable_kv_blocks()->set_tokens_per_block(16);
  status.mutable_kv_blocks()->set_window_total(80);
  status.mutable_kv_blocks()->set_window_free(60);
  EXPECT_THAT(DescribeStatus(status),
              HasSubstr("context  32768 tokens (15 layers: the last 512) · chat supported\n"));
  EXPECT_THAT(DescribeStatus(status),
              HasSubstr("KV       150 of 200 blocks free (75%) · 16 tokens a block · windows 60 of "
                        "80 blocks free\n"));
}

TEST(HumanTest, CellsOfRecurrentStatesAreCounted) {
  v1::WorkerStatus status;
  status.mutable_state_cells()->set_total(64);
  status.mutable_state_cells()->set_held(2);
  status.mutable_state_cells()->set_cached(30);
  status.mutable_state_cells()->set_bytes_per_cell(63 << 20);
  status.mutable_state_cells()->set_hits(7);
  status.mutable_memory()->set_state_bytes(1 << 20);
  EXPECT_THAT(DescribeStatus(status), HasSubstr("KV 0 B · states 1.0 MiB · workspace 0 B"));
  EXPECT_THAT(DescribeStatus(status),
              HasSubstr("states  32 of 64 cells used (63.0 MiB each) · 7 hits\n"));
}

TEST(HumanTest, StatusOfAGpuAndItsRates) {
  v1::WorkerStatus status;
  v1::Gpu* gpu = status.mutable_device()->mutable_gpu();
  gpu->set_uuid("GPU-1");
  gpu->set_driver_version("580.1");
  gpu->set_memory_total_bytes(uint64_t{80} << 30);
  status.mutable_rates()->set_generated_tokens_per_second(1234.56);
  status.mutable_rates()->set_prompt_tokens_per_second(345.67);
  status.mutable_rates()->set_finished_requests_per_second(2.5);
  SetDuration(status.mutable_rates()->mutable_window(), absl::Seconds(10));
  const std::string text = DescribeStatus(status);
  EXPECT_THAT(text, HasSubstr("GPU     GPU-1 · driver 580.1 · 80.0 GiB\n"));
  EXPECT_THAT(text, Not(HasSubstr("GPU errors")));
  EXPECT_THAT(
      text,
      HasSubstr("rates   1234.6 tok/s · prompts 345.7 tok/s · 2.50 requests/s over 10.0 s\n"));
}

TEST(HumanTest, StatusOfAGpuSaysWhichKernelsItHasAndItsErrors) {
  v1::WorkerStatus status;
  v1::Device& device = *status.mutable_device();
  device.set_backend("cuda");
  device.set_name("NVIDIA L4");
  device.set_kernels("portable");
  device.set_numeric_identity("portable-89");
  v1::Gpu& gpu = *device.mutable_gpu();
  gpu.set_uuid("GPU-1");
  gpu.set_driver_version("580.1");
  gpu.set_memory_total_bytes(uint64_t{24} << 30);
  gpu.set_compute_capability("8.9");
  gpu.set_driver_cuda_version("13.1");
  gpu.set_required_driver("580");
  gpu.set_required_cuda_version("13.0");
  gpu.mutable_errors()->set_ecc_corrected(7);
  gpu.mutable_errors()->set_ecc_uncorrected(0);
  gpu.mutable_errors()->set_row_remap_pending(true);
  gpu.mutable_errors()->set_xids(1);
  gpu.mutable_errors()->set_last_xid(31);
  EXPECT_EQ(DescribeStatus(status),
            "state       UNSPECIFIED\n"
            "device      cuda · NVIDIA L4 · kernels portable\n"
            "numerics    portable-89\n"
            "GPU         GPU-1 · compute capability 8.9 · driver 580.1 (CUDA 13.1; needs 580 or "
            "CUDA 13.0) · 24.0 GiB\n"
            "GPU errors  ECC 0 uncorrected, 7 corrected · rows to replace at the next reset · 1 "
            "Xid, last 31\n"
            "worker       · instance  · version \n");
}

TEST(HumanTest, StatusSaysOnlyWhatIsThere) {
  v1::WorkerStatus status;
  status.set_state(v1::WORKER_STATE_IDLE);
  status.set_reason("load of x.gguf failed:\nline \x1b[2J two");
  const std::string text = DescribeStatus(status);
  EXPECT_THAT(text, HasSubstr("state   IDLE\n"));
  EXPECT_THAT(text, HasSubstr("reason  load of x.gguf failed: line  [2J two\n"));
  EXPECT_THAT(text, Not(HasSubstr("model")));
  EXPECT_THAT(text, Not(HasSubstr("KV")));
  EXPECT_THAT(text, Not(HasSubstr("last step")));
}

TEST(HumanTest, AStateOfANewerWorkerIsANumber) {
  EXPECT_EQ(StateName(static_cast<v1::WorkerState>(99)), "99");
}

TEST(HumanTest, Progress) {
  v1::LoadProgress progress;
  progress.set_stage(v1::LOAD_STAGE_VERIFY);
  progress.set_bytes_done(1 << 20);
  progress.set_bytes_total(4 << 20);
  SetDuration(progress.mutable_elapsed(), absl::Milliseconds(500));
  SetDuration(progress.mutable_eta(), absl::Milliseconds(1500));
  EXPECT_EQ(DescribeProgress(progress, 8),
            "verify     [##......]  25%  1.0 MiB of 4.0 MiB  500 ms  1.5 s left");
  EXPECT_EQ(DescribeProgress(progress, 0),
            "verify      25%  1.0 MiB of 4.0 MiB  500 ms  1.5 s left");
  // More bytes than the total show as 100%.
  progress.set_bytes_done(5 << 20);
  EXPECT_THAT(DescribeProgress(progress, 8), HasSubstr("[########] 100%"));

  v1::LoadProgress uncounted;
  uncounted.set_stage(v1::LOAD_STAGE_SELF_CHECK);
  EXPECT_EQ(DescribeProgress(uncounted, 8), "self-check");
  uncounted.set_bytes_done(4);
  uncounted.set_bytes_total(16);
  EXPECT_EQ(DescribeProgress(uncounted, 8), "self-check [##......]  25%");
}

TEST(HumanTest, Drain) {
  v1::DrainResponse drain;
  drain.set_running_requests(3);
  drain.set_waiting_requests(1);
  SetDuration(drain.mutable_remaining(), absl::Seconds(29));
  EXPECT_EQ(DescribeDrain(drain), "draining: 3 running, 1 waiting, ended in 29.0 s at the latest");
  drain.set_safe_to_delete(true);
  EXPECT_EQ(DescribeDrain(drain), "drained: the worker may be deleted");
}

TEST(HumanTest, StatsCountTheFirstTokenToThePrefill) {
  v1::GenerateStarted started;
  started.set_request_id("r-1");
  started.set_seed(18446744073709551615u);
  v1::GenerateFinished finished;
  finished.set_reason(v1::FINISH_REASON_STOP_STRING);
  finished.set_stop_string("\n\n");
  finished.mutable_usage()->set_prompt_tokens(30);
  finished.mutable_usage()->set_cached_prompt_tokens(10);
  finished.mutable_usage()->set_generated_tokens(41);
  SetDuration(finished.mutable_timings()->mutable_queue(), absl::Milliseconds(3));
  SetDuration(finished.mutable_timings()->mutable_prefill(), absl::Milliseconds(500));
  SetDuration(finished.mutable_timings()->mutable_decode(), absl::Seconds(2));
  EXPECT_EQ(DescribeStats(started, finished),
            "41 tokens in 2.5 s, 20.0 tok/s · prompt 30 tokens (10 cached) in 500 ms, 40.0 tok/s · "
            "queued 3 ms · stop string \"  \" · seed 18446744073709551615 · request r-1");
  finished.mutable_usage()->set_forced_tokens(9);
  EXPECT_THAT(DescribeStats(started, finished), StartsWith("41 tokens (9 forced) in 2.5 s"));
  finished.mutable_usage()->set_draft_tokens(36);
  finished.mutable_usage()->set_accepted_draft_tokens(30);
  EXPECT_THAT(DescribeStats(started, finished),
              StartsWith("41 tokens (9 forced, guesses: 30 of 36 right) in 2.5 s"));
}

TEST(HumanTest, AModelShowsWhatItsFileRecommends) {
  v1::ModelDescription model = Model();
  EXPECT_THAT(DescribeModel(model), Not(HasSubstr("sampling")));
  model.set_chat_tools_supported(true);
  model.mutable_sampling_defaults()->set_temperature(0.5f);
  model.mutable_sampling_defaults()->set_top_k(20);
  EXPECT_THAT(DescribeModel(model), HasSubstr("chat supported, with tools\n"));
  EXPECT_THAT(DescribeModel(model), HasSubstr("sampling  temperature 0.5 · top-k 20\n"));
}

TEST(HumanTest, TheDrafterAndItsGuesses) {
  v1::WorkerStatus status;
  *status.mutable_model() = Model();
  EXPECT_THAT(DescribeStatus(status), Not(HasSubstr("drafter")));
  v1::Speculation& speculation = *status.mutable_model()->mutable_speculation();
  speculation.set_drafter("model");
  speculation.set_draft_model("small.gguf");
  status.mutable_memory()->set_draft_bytes(3 << 20);
  status.mutable_speculation()->set_draft_tokens(20);
  status.mutable_speculation()->set_accepted_draft_tokens(15);
  const std::string text = DescribeStatus(status);
  EXPECT_THAT(text, HasSubstr("drafter  model · small.gguf\n"));
  EXPECT_THAT(text, HasSubstr("workspace 0 B · draft model 3.0 MiB · resident 0 B\n"));
  EXPECT_THAT(text, HasSubstr("guesses  15 of 20 right\n"));
  speculation.set_drafter("none");
  speculation.clear_draft_model();
  speculation.set_warning("The backend verifies no guesses.");
  EXPECT_THAT(DescribeModel(status.model()),
              HasSubstr("drafter  none · The backend verifies no guesses.\n"));
}

TEST(HumanTest, AMixturesExpertsArePartOfItsShape) {
  v1::ModelDescription model = Model();
  model.set_experts(128);
  model.set_experts_used(8);
  EXPECT_THAT(DescribeModel(model),
              HasSubstr("ffn 4864 · 128 experts, 8 a token · vocab 151936\n"));
}

TEST(HumanTest, StatsOfNothingDivideByNothing) {
  EXPECT_EQ(DescribeStats({}, {}),
            "0 tokens in 0 ms · prompt 0 tokens in 0 ms · queued 0 ms · ended · seed 0 · request ");
}

TEST(HumanTest, FinishReasons) {
  v1::GenerateFinished finished;
  finished.set_reason(v1::FINISH_REASON_EOG);
  EXPECT_EQ(DescribeFinish(finished), "end of turn");
  finished.set_reason(v1::FINISH_REASON_STOP_TOKEN);
  finished.set_token_id(42);
  EXPECT_EQ(DescribeFinish(finished), "stop id 42");
  finished.set_reason(v1::FINISH_REASON_CONTEXT_LENGTH);
  EXPECT_EQ(DescribeFinish(finished), "context full");
}

TEST(HumanTest, JsonKeepsTheProtosNamesOnOneLine) {
  v1::CancelResponse cancel;
  EXPECT_EQ(JsonLine(cancel), "{\"found\":false}\n");
  v1::GenerateResponse response;
  response.mutable_delta()->set_text("a\nb");
  response.mutable_delta()->add_token_ids(7);
  EXPECT_EQ(JsonLine(response),
            "{\"delta\":{\"text\":\"a\\nb\",\"token_ids\":[7],\"logprobs\":[],\"sample\":0,"
            "\"prompt_logprobs\":[]}}\n");
}

}  // namespace
}  // namespace orcd::ctl
