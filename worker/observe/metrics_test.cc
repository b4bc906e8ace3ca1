#include "worker/observe/metrics.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/text_serializer.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Text(const std::vector<prometheus::MetricFamily>& families) {
  return prometheus::TextSerializer().Serialize(families);
}
std::string Text(const Metrics& metrics) { return Text(metrics.Collect()); }

FinishedEvent Finished(int prompt, int generated) {
  FinishedEvent event;
  event.reason = FinishReason::kMaxTokens;
  event.prompt_tokens = prompt;
  event.cached_prompt_tokens = 2;
  event.generated_tokens = generated;
  event.queue_time = absl::Milliseconds(10);
  event.prefill_time = absl::Milliseconds(200);
  event.decode_time = absl::Seconds(3);
  return event;
}

TEST(MetricsTest, CountsRequestsAndTheirTokens) {
  Metrics metrics;
  metrics.OnFirstToken(absl::Milliseconds(210));
  metrics.OnTokens(1, absl::ZeroDuration(), /*first=*/true);
  metrics.OnTokens(4, absl::Milliseconds(40), /*first=*/false);
  metrics.OnRequestEnded(Finished(7, 6), absl::StatusCode::kOk, "FINISH_REASON_MAX_TOKENS",
                         absl::Seconds(4), /*hidden_tokens=*/1);
  const std::string text = Text(metrics);
  EXPECT_THAT(text, HasSubstr("orcd_requests_total{code=\"OK\",finish_reason=\"FINISH_REASON_MAX_"
                              "TOKENS\"} 1"));
  EXPECT_THAT(text, HasSubstr("\norcd_prompt_tokens_total 7\n"));
  EXPECT_THAT(text, HasSubstr("\norcd_cached_prompt_tokens_total 2\n"));
  EXPECT_THAT(text, HasSubstr("\norcd_generated_tokens_total 6\n"));
  EXPECT_THAT(text, HasSubstr("orcd_inter_token_latency_seconds_count 4\n"));
  // Four tokens in 40 ms.
  EXPECT_THAT(text, HasSubstr("orcd_inter_token_latency_seconds_bucket{le=\"0.01\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("orcd_time_to_first_token_seconds_bucket{le=\"0.15\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("orcd_time_to_first_token_seconds_bucket{le=\"0.25\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("orcd_request_decode_seconds_sum 3\n"));
}

TEST(MetricsTest, CountsRulesThatFailWhileTheyRun) {
  Metrics metrics;
  const auto end = [&](const std::string& reason, absl::Duration queue_time) {
    FinishedEvent event = Finished(7, 3);
    event.status = MakeError(absl::StatusCode::kResourceExhausted, "", {.reason = reason});
    event.queue_time = queue_time;
    metrics.OnRequestEnded(event, event.status.code(), "none", absl::Seconds(1),
                           /*hidden_tokens=*/0);
  };
  end("CONSTRAINT_FAILED", absl::Milliseconds(1));
  end("CONSTRAINT_FAILED", absl::Milliseconds(1));
  end("CONSTRAINT_LIMIT", absl::Milliseconds(1));
  // Refused when it was compiled, which the status counts.
  end("CONSTRAINT_LIMIT", absl::ZeroDuration());
  end("SLOW_READER", absl::Milliseconds(1));
  const std::string text = Text(metrics);
  EXPECT_THAT(text, HasSubstr("orcd_constraint_failed_total{reason=\"CONSTRAINT_FAILED\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("orcd_constraint_failed_total{reason=\"CONSTRAINT_LIMIT\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("orcd_constraint_failed_total{reason=\"SLOW_READER\"}")));
}

TEST(MetricsTest, CountsWhatWasRefusedByItsReason) {
  Metrics metrics;
  metrics.OnRequestRefused(absl::StatusCode::kResourceExhausted, "QUEUE_FULL");
  metrics.OnRequestRefused(absl::StatusCode::kUnauthenticated, "");
  const std::string text = Text(metrics);
  EXPECT_THAT(text, HasSubstr("orcd_rejections_total{reason=\"QUEUE_FULL\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("orcd_rejections_total{reason=\"UNAUTHENTICATED\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("orcd_requests_total{code=\"RESOURCE_EXHAUSTED\",finish_reason=\"none\"} "
                        "1\n"));
  EXPECT_THAT(text, HasSubstr("orcd_request_e2e_seconds_count 0\n"));
}

TEST(MetricsTest, CountersStartAtZeroAndAreNotAbsent) {
  const std::string text = Text(Metrics());
  for (const char* line :
       {"orcd_heartbeats_total{result=\"failed\"} 0\n",
        "orcd_gpu_faults_total{kind=\"BACKEND_FAULT\"} 0\n",
        "orcd_rejections_total{reason=\"QUEUE_FULL\"} 0\n", "orcd_model_load_seconds_count 0\n",
        "orcd_cancel_to_release_seconds_count 0\n", "orcd_spans_total{result=\"dropped\"} 0\n",
        "orcd_constraint_failed_total{reason=\"CONSTRAINT_FAILED\"} 0\n",
        "orcd_constraint_compile_seconds_count 0\n", "orcd_constraint_mask_seconds_count 0\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  const std::string of_status = Text(StatusMetrics({}));
  for (const char* line :
       {"orcd_constraint_refused_total{reason=\"CONSTRAINT_LIMIT\"} 0\n",
        "\norcd_constraint_cache_hits_total 0\n", "\norcd_forced_tokens_total 0\n",
        "orcd_draft_tokens_total{result=\"accepted\"} 0\n",
        "orcd_draft_tokens_total{result=\"rejected\"} 0\n", "\norcd_expert_tokens_count 0\n"}) {
    EXPECT_THAT(of_status, HasSubstr(line));
  }
}

TEST(MetricsTest, ACertificatesTimesAreThoseOfTheLast) {
  Metrics metrics;
  EXPECT_THAT(Text(metrics), Not(HasSubstr("orcd_tls_certificate")));
  metrics.OnCertificate("tls-cert", absl::FromUnixSeconds(1), absl::FromUnixSeconds(20));
  metrics.OnCertificate("tls-cert", absl::FromUnixSeconds(10), absl::FromUnixSeconds(30));
  const std::string text = Text(metrics);
  EXPECT_THAT(
      text, HasSubstr("orcd_tls_certificate_not_before_timestamp_seconds{file=\"tls-cert\"} 10\n"));
  EXPECT_THAT(text,
              HasSubstr("orcd_tls_certificate_expiry_timestamp_seconds{file=\"tls-cert\"} 30\n"));
}

TEST(MetricsTest, OnlyLoadsThatSucceedAreTimed) {
  Metrics metrics;
  metrics.OnLoadEnded(absl::NotFoundError(""), absl::Seconds(1));
  metrics.OnLoadEnded(absl::OkStatus(), absl::Seconds(3));
  EXPECT_THAT(Text(metrics), HasSubstr("orcd_model_load_seconds_sum 3\n"));
  EXPECT_THAT(Text(metrics), HasSubstr("orcd_model_loads_total{code=\"NOT_FOUND\"} 1\n"));
}

TEST(MetricsTest, ExpertsAreAHistogramWithoutALabel) {
  v1::WorkerStatus status;
  // Four experts with a token, two with up to 4, one with more than 2048.
  for (const int count : {4, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}) {
    status.mutable_experts()->add_by_tokens(count);
  }
  status.mutable_experts()->set_tokens(3011);
  const std::string text = Text(StatusMetrics(status));
  for (const char* line :
       {"# TYPE orcd_expert_tokens histogram\n", "\norcd_expert_tokens_count 7\n",
        "\norcd_expert_tokens_sum 3011\n", "orcd_expert_tokens_bucket{le=\"1\"} 4\n",
        "orcd_expert_tokens_bucket{le=\"2\"} 4\n", "orcd_expert_tokens_bucket{le=\"4\"} 6\n",
        "orcd_expert_tokens_bucket{le=\"2048\"} 6\n",
        "orcd_expert_tokens_bucket{le=\"+Inf\"} 7\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(MetricsTest, AStatusIsGauges) {
  v1::WorkerStatus status;
  status.set_state(v1::WORKER_STATE_DRAINING);
  status.mutable_queue()->set_running_requests(3);
  status.mutable_queue()->set_waiting_requests(5);
  status.mutable_kv_blocks()->set_total(200);
  status.mutable_kv_blocks()->set_free(50);
  status.mutable_kv_blocks()->set_window_total(40);
  status.mutable_kv_blocks()->set_window_free(30);
  status.mutable_state_cells()->set_total(20);
  status.mutable_state_cells()->set_held(3);
  status.mutable_state_cells()->set_cached(12);
  status.mutable_state_cells()->set_saved(70);
  status.mutable_state_cells()->set_hits(8);
  status.mutable_state_cells()->set_hit_tokens(4000);
  status.mutable_memory()->set_state_bytes(640);
  status.mutable_memory()->set_weights_bytes(4096);
  status.mutable_memory()->set_draft_bytes(512);
  status.mutable_speculation()->set_draft_tokens(9);
  status.mutable_speculation()->set_accepted_draft_tokens(6);
  status.mutable_last_step_age()->set_nanos(500'000'000);
  status.mutable_rates()->set_generated_tokens_per_second(12.5);
  status.mutable_rates()->set_prompt_tokens_per_second(300);
  std::string text = Text(StatusMetrics(status));
  EXPECT_THAT(text, HasSubstr("orcd_worker_state{state=\"WORKER_STATE_DRAINING\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("orcd_worker_state{state=\"WORKER_STATE_READY\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("\norcd_requests_running 3\n"));
  EXPECT_THAT(text, HasSubstr("\norcd_requests_waiting 5\n"));
  EXPECT_THAT(text, HasSubstr("\norcd_kv_cache_usage_ratio 0.75\n"));
  EXPECT_THAT(text, HasSubstr("\norcd_kv_window_usage_ratio 0.25\n"));
  EXPECT_THAT(text, HasSubstr("\norcd_state_cells{state=\"held\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("\norcd_state_cells{state=\"cached\"} 12\n"));
  EXPECT_THAT(text, HasSubstr("\norcd_state_cells{state=\"free\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("\norcd_state_checkpoints_total 70\n"));
  EXPECT_THAT(text, HasSubstr("\norcd_state_checkpoint_hits_total 8\n"));
  EXPECT_THAT(text, HasSubstr("\norcd_state_checkpoint_tokens_total 4000\n"));
  EXPECT_THAT(text, HasSubstr("orcd_vram_bytes{kind=\"state\"} 640\n"));
  EXPECT_THAT(text, HasSubstr("orcd_vram_bytes{kind=\"weights\"} 4096\n"));
  EXPECT_THAT(text, HasSubstr("orcd_vram_bytes{kind=\"draft\"} 512\n"));
  EXPECT_THAT(text, HasSubstr("orcd_draft_tokens_total{result=\"accepted\"} 6\n"));
  EXPECT_THAT(text, HasSubstr("orcd_draft_tokens_total{result=\"rejected\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("\norcd_last_step_age_seconds 0.5\n"));
  EXPECT_THAT(text, HasSubstr("\norcd_generated_tokens_per_second 12.5\n"));
  EXPECT_THAT(text, HasSubstr("\norcd_prompt_tokens_per_second 300\n"));
  EXPECT_THAT(text, Not(HasSubstr("kind=\"total\"")));
  status.mutable_device()->mutable_gpu()->set_memory_total_bytes(80);
  EXPECT_THAT(Text(StatusMetrics(status)), HasSubstr("orcd_vram_bytes{kind=\"total\"} 80\n"));
}

TEST(MetricsTest, ADeviceIsNamedAndItsErrorsAreThoseThatAreKnown) {
  v1::WorkerStatus status;
  status.set_version("1");
  v1::Device& device = *status.mutable_device();
  device.set_backend("cuda");
  device.set_name("NVIDIA L4");
  device.set_kernels("portable");
  device.set_numeric_identity("portable-89");
  device.mutable_gpu()->set_driver_version("580.1");
  std::string text = Text(StatusMetrics(status));
  EXPECT_THAT(text, HasSubstr("orcd_build_info{version=\"1\",backend=\"cuda\",device=\"NVIDIA L4\","
                              "kernels=\"portable\",numeric_identity=\"portable-89\","
                              "driver=\"580.1\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("orcd_gpu_ecc")));
  EXPECT_THAT(text, Not(HasSubstr("orcd_gpu_row_remap")));
  EXPECT_THAT(text, Not(HasSubstr("orcd_gpu_xids")));
  v1::GpuErrors& errors = *device.mutable_gpu()->mutable_errors();
  errors.set_ecc_corrected(7);
  errors.set_ecc_uncorrected(0);
  errors.set_row_remap_pending(true);
  errors.set_row_remap_failed(false);
  errors.set_xids(2);
  text = Text(StatusMetrics(status));
  EXPECT_THAT(text, HasSubstr("# TYPE orcd_gpu_ecc_errors_total counter\n"));
  EXPECT_THAT(text, HasSubstr("orcd_gpu_ecc_errors_total{kind=\"corrected\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("orcd_gpu_ecc_errors_total{kind=\"uncorrected\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("orcd_gpu_row_remap{state=\"pending\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("orcd_gpu_row_remap{state=\"failed\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("\norcd_gpu_xids_total 2\n"));
}

TEST(MetricsTest, ConstraintsAreTimedAndCounted) {
  Metrics metrics;
  metrics.constraint_times()->OnCompiled(absl::Milliseconds(3));
  metrics.constraint_times()->OnMask(absl::Microseconds(20));
  metrics.constraint_times()->OnMask(absl::Microseconds(30));
  const std::string timed = Text(metrics);
  EXPECT_THAT(timed, HasSubstr("orcd_constraint_compile_seconds_bucket{le=\"0.005\"} 1\n"));
  EXPECT_THAT(timed, HasSubstr("orcd_constraint_mask_seconds_bucket{le=\"2.5e-05\"} 1\n"));
  EXPECT_THAT(timed, HasSubstr("orcd_constraint_mask_seconds_count 2\n"));

  v1::WorkerStatus status;
  v1::ConstraintFigures& figures = *status.mutable_constraints();
  figures.set_live(3);
  figures.set_cache_bytes(4096);
  figures.set_compiled(5);
  figures.set_cache_hits(6);
  figures.set_refused_invalid(7);
  figures.set_refused_too_large(8);
  figures.set_refused_unsupported(9);
  figures.set_refused_busy(10);
  figures.set_refused_unsatisfiable(12);
  figures.set_forced_tokens(11);
  const std::string text = Text(StatusMetrics(status));
  EXPECT_THAT(text, HasSubstr("\norcd_constraints_live 3\n"));
  EXPECT_THAT(text, HasSubstr("\norcd_constraint_cache_bytes 4096\n"));
  EXPECT_THAT(text, HasSubstr("\norcd_constraint_compiled_total 5\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE orcd_constraint_cache_hits_total counter\n"));
  EXPECT_THAT(text, HasSubstr("\norcd_constraint_cache_hits_total 6\n"));
  EXPECT_THAT(text, HasSubstr("orcd_constraint_refused_total{reason=\"CONSTRAINT_INVALID\"} 7\n"));
  EXPECT_THAT(text,
              HasSubstr("orcd_constraint_refused_total{reason=\"CONSTRAINT_TOO_LARGE\"} 8\n"));
  EXPECT_THAT(text,
              HasSubstr("orcd_constraint_refused_total{reason=\"CONSTRAINT_UNSUPPORTED\"} 9\n"));
  EXPECT_THAT(text, HasSubstr("orcd_constraint_refused_total{reason=\"CONSTRAINT_LIMIT\"} 10\n"));
  EXPECT_THAT(text,
              HasSubstr("orcd_constraint_refused_total{reason=\"CONSTRAINT_UNSATISFIABLE\"} 12\n"));
  EXPECT_THAT(text, HasSubstr("\norcd_forced_tokens_total 11\n"));
}

// Names from the model server protocol of
// https://github.com/kubernetes-sigs/gateway-api-inference-extension
TEST(MetricsTest, AStatusHasTheNamesThatTheGatewayScrapes) {
  v1::WorkerStatus status;
  status.mutable_queue()->set_running_requests(3);
  status.mutable_queue()->set_waiting_requests(5);
  status.mutable_kv_blocks()->set_total(100);
  status.mutable_kv_blocks()->set_free(25);
  status.mutable_kv_blocks()->set_tokens_per_block(16);
  const std::string text = Text(StatusMetrics(status));
  EXPECT_THAT(text, HasSubstr("# TYPE vllm:num_requests_running gauge\n"));
  EXPECT_THAT(text, HasSubstr("\nvllm:num_requests_running 3\n"));
  EXPECT_THAT(text, HasSubstr("\nvllm:num_requests_waiting 5\n"));
  EXPECT_THAT(text, HasSubstr("\nvllm:kv_cache_usage_perc 0.75\n"));
  EXPECT_THAT(text,
              HasSubstr("\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1\n"));
  EXPECT_THAT(Text(StatusMetrics({})), HasSubstr("\nvllm:kv_cache_usage_perc 0\n"));
}

TEST(MetricsTest, LoadProgressCountsStagesAlike) {
  v1::WorkerStatus status;
  EXPECT_THAT(Text(StatusMetrics(status)), HasSubstr("orcd_model_load_progress_ratio 0\n"));
  status.mutable_load()->set_stage(v1::LOAD_STAGE_PLACE);
  status.mutable_load()->set_bytes_done(50);
  status.mutable_load()->set_bytes_total(100);
  EXPECT_THAT(Text(StatusMetrics(status)), HasSubstr("orcd_model_load_progress_ratio 0.625\n"));
  status.clear_load();
  status.mutable_model();
  EXPECT_THAT(Text(StatusMetrics(status)), HasSubstr("orcd_model_load_progress_ratio 1\n"));
}

}  // namespace
}  // namespace orcd
