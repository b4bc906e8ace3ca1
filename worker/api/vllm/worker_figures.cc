#include "worker/api/vllm/worker_figures.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "runtime/base/error.h"
#include "worker/base/to_proto.h"

namespace orcd {
namespace {

int32_t Saturate(uint64_t value) {
  return static_cast<int32_t>(std::min<uint64_t>(value, std::numeric_limits<int32_t>::max()));
}

// The names that Hugging Face's config.json gives the classes of these models, by
// general.architecture.
struct ModelClass {
  std::string_view architecture;
  std::string_view name;
};
constexpr ModelClass kModelClasses[] = {
    {"cohere2", "Cohere2ForCausalLM"},
    {"gemma2", "Gemma2ForCausalLM"},
    {"gemma3", "Gemma3ForCausalLM"},
    {"glm4", "Glm4ForCausalLM"},
    {"granite", "GraniteForCausalLM"},
    {"llama", "LlamaForCausalLM"},
    {"mistral3", "Ministral3ForCausalLM"},
    {"olmo2", "Olmo2ForCausalLM"},
    {"phi3", "Phi3ForCausalLM"},
    {"qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "Qwen3ForCausalLM"},
    {"qwen3vl", "Qwen3VLForConditionalGeneration"},
    {"seed_oss", "SeedOssForCausalLM"},
    {"smollm3", "SmolLM3ForCausalLM"},
    {"glm4moe", "Glm4MoeForCausalLM"},
    {"gpt-oss", "GptOssForCausalLM"},
    {"qwen2moe", "Qwen2MoeForCausalLM"},
    {"qwen3moe", "Qwen3MoeForCausalLM"},
    {"granitemoe", "GraniteMoeForCausalLM"},
    {"qwen35", "Qwen3_5ForConditionalGeneration"},
    {"qwen35moe", "Qwen3_5MoeForConditionalGeneration"},
    {"qwen3next", "Qwen3NextForCausalLM"},
};

}  // namespace

absl::Status CheckReady(const v1::WorkerStatus& status) {
  if (status.state() == v1::WORKER_STATE_READY) return absl::OkStatus();
  std::string state = v1::WorkerState_Name(status.state());
  state.erase(0, state.rfind('_') + 1);
  return MakeError(
      absl::StatusCode::kUnavailable,
      absl::StrCat("this worker takes no requests, it is ", state,
                   status.reason().empty() ? "" : ": ", status.reason(), "; use another worker"),
      {.reason = "NOT_READY", .subject = state});
}

vllm_wire::SchedulerLoad ToSchedulerLoad(const v1::WorkerStatus& status) {
  const v1::Queue& queue = status.queue();
  const v1::KvBlocks& blocks = status.kv_blocks();
  const uint64_t used = blocks.total() - blocks.free();
  vllm_wire::SchedulerLoad load;
  load.set_num_running_reqs(Saturate(queue.running_requests()));
  load.set_num_waiting_reqs(Saturate(queue.waiting_requests()));
  load.set_num_total_reqs(Saturate(uint64_t{queue.running_requests()} + queue.waiting_requests()));
  load.set_num_used_tokens(Saturate(used * blocks.tokens_per_block()));
  load.set_max_total_num_tokens(Saturate(uint64_t{blocks.total()} * blocks.tokens_per_block()));
  if (blocks.total() > 0) {
    load.set_token_usage(static_cast<double>(used) / static_cast<double>(blocks.total()));
  }
  load.set_gen_throughput(status.rates().generated_tokens_per_second());
  if (queue.prompt_tokens() > 0) {
    load.set_cache_hit_rate(static_cast<double>(queue.cached_prompt_tokens()) /
                            static_cast<double>(queue.prompt_tokens()));
  }
  load.set_max_running_requests(Saturate(queue.max_running_requests()));
  load.set_num_waiting_uncached_tokens(Saturate(queue.waiting_tokens()));
  return load;
}

vllm_wire::EngineLoad ToEngineLoad(const vllm_wire::SchedulerLoad& load) {
  vllm_wire::EngineLoad engine;
  engine.set_running_requests(load.num_running_reqs());
  engine.set_waiting_requests(load.num_waiting_reqs());
  engine.set_waiting_uncached_tokens(load.num_waiting_uncached_tokens());
  engine.set_token_usage(load.token_usage());
  engine.set_gen_throughput(load.gen_throughput());
  engine.set_max_running_requests(load.max_running_requests());
  engine.set_cache_hit_rate(load.cache_hit_rate());
  engine.set_num_used_tokens(load.num_used_tokens());
  engine.set_max_total_num_tokens(load.max_total_num_tokens());
  return engine;
}

vllm_wire::GetLoadsResponse ToLoads(const v1::WorkerStatus& status, absl::Time now) {
  vllm_wire::GetLoadsResponse loads;
  loads.set_timestamp(absl::FormatTime("%Y-%m-%dT%H:%M:%E6S+00:00", now, absl::UTCTimeZone()));
  loads.set_version(status.version());
  loads.set_dp_rank_count(1);
  *loads.add_loads() = ToSchedulerLoad(status);
  return loads;
}

vllm_wire::GetServerInfoResponse ToServerInfo(const v1::WorkerStatus& status) {
  const v1::Queue& queue = status.queue();
  vllm_wire::GetServerInfoResponse info;
  info.set_active_requests(queue.running_requests() + queue.waiting_requests());
  info.set_is_paused(status.state() == v1::WORKER_STATE_DRAINING ||
                     status.state() == v1::WORKER_STATE_DRAINED);
  info.set_uptime_seconds(absl::ToDoubleSeconds(FromProto(status.uptime())));
  info.set_server_type("worker-orcd");
  info.set_data_parallel_size(1);
  info.set_block_size(Saturate(status.kv_blocks().tokens_per_block()));
  info.set_max_num_seqs(Saturate(queue.max_running_requests()));
  if (status.model().constraints_supported()) {
    info.set_constrained_decoding_start(
        status.model().has_thinking_end_token_id() ? "after_reasoning" : "first_token");
  }
  return info;
}

vllm_wire::GetModelInfoResponse ToModelInfo(const v1::ModelDescription& model) {
  vllm_wire::GetModelInfoResponse info;
  const std::string path = absl::StrCat(
      "/worker-orcd/", absl::StrReplaceAll(model.digest(), {{"sha256-tree:", "sha256-tree/"}}));
  info.set_model_path(path);
  info.set_tokenizer_path(path);
  info.set_is_generation(true);
  info.set_max_context_length(model.context_length());
  info.set_vocab_size(model.vocab());
  info.set_served_model_name(model.model_id());
  info.set_model_type(model.architecture());
  for (const ModelClass& known : kModelClasses) {
    if (known.architecture == model.architecture()) info.add_architectures(std::string(known.name));
  }
  for (uint32_t id : model.eog_token_ids()) info.add_eos_token_ids(Saturate(id));
  info.set_max_req_input_len(Saturate(std::max(model.context_length(), 1U) - 1));
  return info;
}

}  // namespace orcd
