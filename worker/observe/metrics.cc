#include "worker/observe/metrics.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "prometheus/client_metric.h"
#include "prometheus/gauge.h"
#include "runtime/backend/expert_load.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

namespace orcd {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildHistogram;
using prometheus::ClientMetric;
using prometheus::Counter;
using prometheus::Family;
using prometheus::Histogram;
using prometheus::MetricFamily;
using prometheus::MetricType;
using prometheus::Registry;
using Labels = std::vector<ClientMetric::Label>;

// Bucket boundaries in seconds: for one token, the first token, a request, the release of a
// cancelled request, which takes up to two steps, and a model load.
const Histogram::BucketBoundaries kTokenBuckets = {.001, .0025, .005, .0075, .01, .015, .02, .03,
                                                   .05,  .075,  .1,   .15,   .25, .5,   1,   2.5};
const Histogram::BucketBoundaries kFirstTokenBuckets = {.005, .01, .025, .05, .075, .1, .15, .25,
                                                        .5,   .75, 1,    2.5, 5,    10, 30,  60};
const Histogram::BucketBoundaries kRequestBuckets = {.001, .005, .01, .05, .1, .25, .5,  1,
                                                     2.5,  5,    10,  20,  30, 60,  120, 300};
const Histogram::BucketBoundaries kReleaseBuckets = {
    .001, .0025, .005, .0075, .01, .015, .02, .03, .05, .075, .1, .15, .25, .5, 1, 2.5, 5, 10};
const Histogram::BucketBoundaries kLoadBuckets = {.1, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600};

Family<Counter>& NewCounters(Registry& registry, const char* name, const char* help) {
  return BuildCounter().Name(name).Help(help).Register(registry);
}

Family<prometheus::Gauge>& NewGauges(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

Counter& OneCounter(Registry& registry, const char* name, const char* help) {
  return NewCounters(registry, name, help).Add({});
}

Histogram& OneHistogram(Registry& registry, const char* name, const char* help,
                        const Histogram::BucketBoundaries& buckets) {
  return BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
}

std::string CodeName(absl::StatusCode code) { return absl::StatusCodeToString(code); }

struct Value {
  template <typename Number>
  Value(Labels l, Number n) : labels(std::move(l)), number(static_cast<double>(n)) {}

  Labels labels;
  double number;
};

MetricFamily Figures(MetricType type, const char* name, const char* help,
                     std::vector<Value> values) {
  MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = type;
  for (Value& value : values) {
    ClientMetric metric;
    metric.label = std::move(value.labels);
    for (ClientMetric::Label& label : metric.label) label.value = ReplaceInvalidUtf8(label.value);
    (type == MetricType::Gauge ? metric.gauge.value : metric.counter.value) = value.number;
    family.metric.push_back(std::move(metric));
  }
  return family;
}

MetricFamily Gauge(const char* name, const char* help, std::vector<Value> values) {
  return Figures(MetricType::Gauge, name, help, std::move(values));
}

MetricFamily Total(const char* name, const char* help, std::vector<Value> values) {
  return Figures(MetricType::Counter, name, help, std::move(values));
}

// A histogram of the experts of steps by their tokens. The last bucket has no limit.
MetricFamily ExpertTokens(const v1::ExpertFigures& figures) {
  MetricFamily family;
  family.name = "orcd_expert_tokens";
  family.help =
      "Tokens that chose an expert in one step and layer, for each expert that any chose, since "
      "the "
      "model was loaded. A step reads an expert's weights once for all its tokens.";
  family.type = MetricType::Histogram;
  ClientMetric::Histogram& histogram = family.metric.emplace_back().histogram;
  for (size_t i = 0; i < ExpertLoad::kBuckets; ++i) {
    const bool last = i + 1 == ExpertLoad::kBuckets;
    if (static_cast<int>(i) < figures.by_tokens_size()) {
      histogram.sample_count += figures.by_tokens(static_cast<int>(i));
    }
    histogram.bucket.push_back({.cumulative_count = histogram.sample_count,
                                .upper_bound = last ? std::numeric_limits<double>::infinity()
                                                    : static_cast<double>(ExpertLoad::Limit(i))});
  }
  histogram.sample_sum = static_cast<double>(figures.tokens());
  return family;
}

double UsedShare(uint32_t total, uint32_t free) {
  return total == 0 ? 0 : static_cast<double>(total - free) / total;
}

// The errors of a GPU; no values where the driver gives none.
std::vector<MetricFamily> GpuErrorMetrics(const v1::GpuErrors& errors) {
  std::vector<Value> ecc;
  if (errors.has_ecc_corrected()) ecc.push_back({{{"kind", "corrected"}}, errors.ecc_corrected()});
  if (errors.has_ecc_uncorrected()) {
    ecc.push_back({{{"kind", "uncorrected"}}, errors.ecc_uncorrected()});
  }
  std::vector<Value> remap;
  if (errors.has_row_remap_pending()) {
    remap.push_back({{{"state", "pending"}}, errors.row_remap_pending() ? 1 : 0});
    remap.push_back({{{"state", "failed"}}, errors.row_remap_failed() ? 1 : 0});
  }
  std::vector<Value> xids;
  if (errors.has_xids()) xids.push_back({{}, errors.xids()});
  return {Total("orcd_gpu_ecc_errors_total",
                "Errors of the GPU's memory since its driver was loaded, by whether ECC corrected "
                "them.",
                std::move(ecc)),
          Gauge("orcd_gpu_row_remap",
                "1 if faulty rows of the GPU's memory wait for a reset to be replaced (pending), "
                "or could not be (failed).",
                std::move(remap)),
          Total("orcd_gpu_xids_total",
                "Xids of the GPU since the worker started, whichever process caused them.",
                std::move(xids))};
}

// Returns the progress of the whole load; each stage counts the same.
double LoadProgress(const v1::WorkerStatus& status) {
  // While a replacement is verified, the status still has the old model.
  if (status.has_model() && status.state() != v1::WORKER_STATE_LOADING) return 1;
  if (!status.has_load()) return 0;
  const v1::LoadProgress& load = status.load();
  constexpr double kStages = v1::LoadStage_MAX;
  const double within = load.bytes_total() == 0 ? 0
                                                : static_cast<double>(load.bytes_done()) /
                                                      static_cast<double>(load.bytes_total());
  return (load.stage() - 1 + within) / kStages;
}

}  // namespace

Metrics::Metrics()
    : registry_(std::make_shared<Registry>()),
      requests_(NewCounters(*registry_, "orcd_requests_total",
                            "Generate calls that have ended, by status code and finish reason.")),
      rejections_(NewCounters(*registry_, "orcd_rejections_total",
                              "Generate calls that were refused before they were queued.")),
      prompt_tokens_(OneCounter(*registry_, "orcd_prompt_tokens_total",
                                "Prompt tokens of requests that have ended.")),
      cached_prompt_tokens_(OneCounter(*registry_, "orcd_cached_prompt_tokens_total",
                                       "Those of them whose KV was there already.")),
      generated_tokens_(OneCounter(*registry_, "orcd_generated_tokens_total",
                                   "Tokens that were drawn for requests.")),
      failed_constraints_(NewCounters(*registry_, "orcd_constraint_failed_total",
                                      "Requests whose rule failed while they ran, by reason.")),
      gpu_faults_(NewCounters(*registry_, "orcd_gpu_faults_total",
                              "Faults after which the device or the model cannot be trusted.")),
      heartbeats_(NewCounters(
          *registry_, "orcd_heartbeats_total",
          "Heartbeats, and calls of Register that gave no lease, by what came of them.")),
      loads_(
          NewCounters(*registry_, "orcd_model_loads_total", "Loads that ended, by status code.")),
      spans_(NewCounters(*registry_, "orcd_spans_total", "Trace spans, by what became of them.")),
      transport_refusals_(NewCounters(
          *registry_, "orcd_transport_refusals_total",
          "Calls and connections that were refused or ended before gRPC saw them, by reason.")),
      certificate_begin_(NewGauges(
          *registry_, "orcd_tls_certificate_not_before_timestamp_seconds",
          "When the certificates in use became valid, since 1970, by the flag that names them.")),
      certificate_end_(NewGauges(*registry_, "orcd_tls_certificate_expiry_timestamp_seconds",
                                 "When the certificates in use expire, since 1970, by the flag "
                                 "that names them: of the own "
                                 "certificate and its chain the first, of authorities the last.")),
      time_to_first_token_(OneHistogram(*registry_, "orcd_time_to_first_token_seconds",
                                        "From a request's arrival to its first token.",
                                        kFirstTokenBuckets)),
      inter_token_latency_(OneHistogram(*registry_, "orcd_inter_token_latency_seconds",
                                        "From one token of a request to the next.", kTokenBuckets)),
      request_queue_(OneHistogram(*registry_, "orcd_request_queue_seconds",
                                  "From arrival to the first step.", kRequestBuckets)),
      request_prefill_(OneHistogram(*registry_, "orcd_request_prefill_seconds",
                                    "From the first step to the first token.", kRequestBuckets)),
      request_decode_(OneHistogram(*registry_, "orcd_request_decode_seconds",
                                   "From the first token to the last.", kRequestBuckets)),
      request_e2e_(OneHistogram(*registry_, "orcd_request_e2e_seconds",
                                "From arrival to the end of the request.", kRequestBuckets)),
      model_load_(OneHistogram(*registry_, "orcd_model_load_seconds",
                               "Loads that succeeded, whole.", kLoadBuckets)),
      cancel_to_release_(OneHistogram(*registry_, "orcd_cancel_to_release_seconds",
                                      "From the wish to end a request to its memory being free.",
                                      kReleaseBuckets)) {
  // An unused counter must be zero and not absent, for the sake of rates and alerts.
  for (const char* result : {"ok", "failed", "unknown_lease", "superseded", "unregistered"}) {
    heartbeats_.Add({{"result", result}});
  }
  for (const char* result : {"exported", "failed", "dropped"}) spans_.Add({{"result", result}});
  for (const char* reason : {"QUEUE_FULL", "DRAINING", "LOADING", "MODEL_NOT_LOADED"}) {
    rejections_.Add({{"reason", reason}});
  }
  for (const char* reason : {"CONSTRAINT_FAILED", "CONSTRAINT_LIMIT"}) {
    failed_constraints_.Add({{"reason", reason}});
  }
  for (const char* kind : {"BACKEND_FAULT", "ENGINE_STALLED", "GPU_MEMORY_ERROR"}) {
    gpu_faults_.Add({{"kind", kind}});
  }
  requests_.Add({{"code", "OK"}, {"finish_reason", "FINISH_REASON_EOG"}});
  loads_.Add({{"code", "OK"}});
  NewGauges(*registry_, "orcd_start_time_seconds", "When the process started, since 1970.")
      .Add({})
      .SetToCurrentTime();
}

void Metrics::OnRequestRefused(absl::StatusCode code, const std::string& reason) {
  rejections_.Add({{"reason", reason.empty() ? CodeName(code) : reason}}).Increment();
  requests_.Add({{"code", CodeName(code)}, {"finish_reason", "none"}}).Increment();
}

void Metrics::OnFirstToken(absl::Duration since_arrival) {
  time_to_first_token_.Observe(absl::ToDoubleSeconds(since_arrival));
}

void Metrics::OnTokens(int tokens, absl::Duration gap, bool first) {
  generated_tokens_.Increment(tokens);
  if (first) return;
  for (int i = 0; i < tokens; ++i) {
    inter_token_latency_.Observe(absl::ToDoubleSeconds(gap / tokens));
  }
}

void Metrics::OnRequestEnded(const FinishedEvent& event, absl::StatusCode code,
                             std::string_view finish_reason, absl::Duration since_arrival,
                             int hidden_tokens) {
  requests_.Add({{"code", CodeName(code)}, {"finish_reason", std::string(finish_reason)}})
      .Increment();
  prompt_tokens_.Increment(event.prompt_tokens);
  cached_prompt_tokens_.Increment(event.cached_prompt_tokens);
  generated_tokens_.Increment(std::max(hidden_tokens, 0));
  // A request whose rule was refused has waited for no step.
  const std::string reason = GetErrorDetails(event.status).reason;
  if (event.queue_time > absl::ZeroDuration() && reason.starts_with("CONSTRAINT_")) {
    failed_constraints_.Add({{"reason", reason}}).Increment();
  }
  request_queue_.Observe(absl::ToDoubleSeconds(event.queue_time));
  if (event.generated_tokens > 0) {
    request_prefill_.Observe(absl::ToDoubleSeconds(event.prefill_time));
    request_decode_.Observe(absl::ToDoubleSeconds(event.decode_time));
  }
  request_e2e_.Observe(absl::ToDoubleSeconds(since_arrival));
}

void Metrics::OnReleased(absl::Duration after) {
  cancel_to_release_.Observe(absl::ToDoubleSeconds(after));
}

void Metrics::OnLoadEnded(const absl::Status& status, absl::Duration took) {
  loads_.Add({{"code", CodeName(status.code())}}).Increment();
  if (status.ok()) model_load_.Observe(absl::ToDoubleSeconds(took));
}

void Metrics::OnHeartbeat(std::string_view result) {
  heartbeats_.Add({{"result", std::string(result)}}).Increment();
}

void Metrics::OnFault(const std::string& kind) { gpu_faults_.Add({{"kind", kind}}).Increment(); }

void Metrics::OnSpans(std::string_view result, size_t count) {
  spans_.Add({{"result", std::string(result)}}).Increment(static_cast<double>(count));
}

void Metrics::OnTransportRefused(std::string_view what, std::string_view reason) {
  transport_refusals_.Add({{"what", std::string(what)}, {"reason", std::string(reason)}})
      .Increment();
}

void Metrics::OnCertificate(std::string_view file, absl::Time begin, absl::Time end) {
  const prometheus::Labels labels = {{"file", std::string(file)}};
  certificate_begin_.Add(labels).Set(static_cast<double>(absl::ToUnixSeconds(begin)));
  certificate_end_.Add(labels).Set(static_cast<double>(absl::ToUnixSeconds(end)));
}

std::vector<MetricFamily> Metrics::Collect() const {
  std::vector<MetricFamily> families = registry_->Collect();
  families.push_back(constraint_times_->compile().Collect());
  families.push_back(constraint_times_->mask().Collect());
  return families;
}

std::vector<MetricFamily> StatusMetrics(const v1::WorkerStatus& status) {
  const v1::KvBlocks& kv = status.kv_blocks();
  const double kv_used = UsedShare(kv.total(), kv.free());
  std::vector<Value> states;
  for (int i = v1::WorkerState_MIN + 1; i <= v1::WorkerState_MAX; ++i) {
    const auto state = static_cast<v1::WorkerState>(i);
    states.push_back({{{"state", v1::WorkerState_Name(state)}}, status.state() == state ? 1 : 0});
  }
  const v1::MemoryUsage& memory = status.memory();
  std::vector<Value> vram = {{{{"kind", "weights"}}, memory.weights_bytes()},
                             {{{"kind", "kv"}}, memory.kv_bytes()},
                             {{{"kind", "workspace"}}, memory.workspace_bytes()},
                             {{{"kind", "state"}}, memory.state_bytes()},
                             {{{"kind", "draft"}}, memory.draft_bytes()}};
  if (status.device().has_gpu()) {
    vram.push_back({{{"kind", "total"}}, status.device().gpu().memory_total_bytes()});
  }
  const double step_age = absl::ToDoubleSeconds(absl::Seconds(status.last_step_age().seconds()) +
                                                absl::Nanoseconds(status.last_step_age().nanos()));
  const v1::Queue& queue = status.queue();
  const v1::ConstraintFigures& constraints = status.constraints();
  const v1::SpeculationFigures& speculation = status.speculation();
  const v1::StateCells& cells = status.state_cells();
  const v1::Device& device = status.device();
  std::vector<MetricFamily> families = {
      Gauge("orcd_build_info", "1; the labels say what runs.",
            {{{{"version", status.version()},
               {"backend", device.backend()},
               {"device", device.name()},
               {"kernels", device.kernels()},
               {"numeric_identity", device.numeric_identity()},
               {"driver", device.gpu().driver_version()}},
              1}}),
      Gauge("orcd_worker_state", "1 for the state that the worker is in.", std::move(states)),
      Gauge("orcd_requests_running", "Requests that run.", {{{}, queue.running_requests()}}),
      Gauge("orcd_requests_waiting", "Requests that wait.", {{{}, queue.waiting_requests()}}),
      Gauge("orcd_requests_running_max", "Requests that may run together.",
            {{{}, queue.max_running_requests()}}),
      Gauge("orcd_requests_waiting_max", "Requests that may wait.",
            {{{}, queue.max_waiting_requests()}}),
      Gauge("orcd_kv_cache_usage_ratio", "Share of the KV blocks in use.", {{{}, kv_used}}),
      Gauge("orcd_kv_window_usage_ratio",
            "Share of the KV blocks in use that layers with a sliding window have.",
            {{{}, UsedShare(kv.window_total(), kv.window_free())}}),
      Gauge("orcd_state_cells",
            "Cells for recurrent states, by their state: held by requests, cached for requests of "
            "the same prefix, or free.",
            {{{{"state", "held"}}, cells.held()},
             {{{"state", "cached"}}, cells.cached()},
             {{{"state", "free"}}, cells.total() - cells.held() - cells.cached()}}),
      Total("orcd_state_checkpoints_total",
            "Recurrent states that were saved for the prefix cache since the model was loaded.",
            {{{}, cells.saved()}}),
      Total("orcd_state_checkpoint_hits_total",
            "Sequences since the model was loaded that began with a saved state.",
            {{{}, cells.hits()}}),
      Total("orcd_state_checkpoint_tokens_total",
            "Tokens that these sequences did not have to compute.", {{{}, cells.hit_tokens()}}),
      Gauge("orcd_model_load_progress_ratio", "Of the load under way; 1 once a model is there.",
            {{{}, LoadProgress(status)}}),
      Gauge(
          "orcd_vram_bytes",
          "Memory where the model computes (on the CPU backend the machine's), by what it is for.",
          std::move(vram)),
      Gauge("orcd_process_resident_bytes", "Resident memory of the process.",
            {{{}, memory.process_resident_bytes()}}),
      Gauge("orcd_last_step_age_seconds", "Since the engine's last step ended; 0 before the first.",
            {{{}, step_age}}),
      Gauge("orcd_generated_tokens_per_second",
            "Tokens drawn, as the worker's status and heartbeats have it: over the last seconds.",
            {{{}, status.rates().generated_tokens_per_second()}}),
      Gauge("orcd_prompt_tokens_per_second",
            "Tokens of prompts computed, as the worker's status and heartbeats have it: over the "
            "last seconds.",
            {{{}, status.rates().prompt_tokens_per_second()}}),
      Gauge("orcd_constraints_live", "Sequences that run with a constraint.",
            {{{}, constraints.live()}}),
      Gauge("orcd_constraint_cache_bytes", "Estimated memory of compiled rules that are kept.",
            {{{}, constraints.cache_bytes()}}),
      Total("orcd_constraint_compiled_total", "Rules compiled since the model was loaded.",
            {{{}, constraints.compiled()}}),
      Total("orcd_constraint_cache_hits_total",
            "Requests since the model was loaded whose rule was compiled already.",
            {{{}, constraints.cache_hits()}}),
      Total("orcd_constraint_refused_total",
            "Requests since the model was loaded whose rule was refused, by reason.",
            {{{{"reason", "CONSTRAINT_INVALID"}}, constraints.refused_invalid()},
             {{{"reason", "CONSTRAINT_TOO_LARGE"}}, constraints.refused_too_large()},
             {{{"reason", "CONSTRAINT_UNSUPPORTED"}}, constraints.refused_unsupported()},
             {{{"reason", "CONSTRAINT_LIMIT"}}, constraints.refused_busy()},
             {{{"reason", "CONSTRAINT_UNSATISFIABLE"}}, constraints.refused_unsatisfiable()}}),
      Total("orcd_forced_tokens_total",
            "Generated tokens since the model was loaded that a constraint left no choice about.",
            {{{}, constraints.forced_tokens()}}),
      Total("orcd_draft_tokens_total",
            "Guesses of tokens that were verified since the model was loaded; accepted: they were "
            "right.",
            {{{{"result", "accepted"}}, speculation.accepted_draft_tokens()},
             {{{"result", "rejected"}},
              speculation.draft_tokens() - speculation.accepted_draft_tokens()}}),
      ExpertTokens(status.experts()),
      // Names by which the Gateway API Inference Extension picks pods.
      Gauge("vllm:num_requests_running", "As orcd_requests_running.",
            {{{}, queue.running_requests()}}),
      Gauge("vllm:num_requests_waiting", "As orcd_requests_waiting.",
            {{{}, queue.waiting_requests()}}),
      Gauge("vllm:kv_cache_usage_perc", "As orcd_kv_cache_usage_ratio: 0 to 1, for all its name.",
            {{{}, kv_used}}),
      Gauge("vllm:cache_config_info", "1; the labels say how the KV cache is cut.",
            {{{{"block_size", std::to_string(kv.tokens_per_block())},
               {"num_gpu_blocks", std::to_string(kv.total())}},
              1}}),
  };
  for (MetricFamily& family : GpuErrorMetrics(device.gpu().errors())) {
    if (!family.metric.empty()) families.push_back(std::move(family));
  }
  return families;
}

}  // namespace orcd
