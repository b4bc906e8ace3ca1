#include "worker/host/status_figures.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "worker/base/to_proto.h"

namespace orcd {
namespace {

RateMeter::Totals Sum(const RateMeter::Totals& ended, const EngineStats& stats) {
  return {.generated_tokens = ended.generated_tokens + stats.generated_tokens,
          .finished_requests = ended.finished_requests + stats.finished_requests,
          .prompt_tokens = ended.prompt_tokens + stats.computed_prompt_tokens};
}

void Fill(v1::ConstraintFigures& figures, const ConstraintStats& stats, int64_t forced_tokens) {
  figures.set_live(static_cast<uint32_t>(stats.live));
  figures.set_cache_bytes(stats.cache_bytes);
  figures.set_compiled(static_cast<uint64_t>(stats.compiled));
  figures.set_cache_hits(static_cast<uint64_t>(stats.cache_hits));
  figures.set_refused_invalid(static_cast<uint64_t>(stats.refused_invalid));
  figures.set_refused_too_large(static_cast<uint64_t>(stats.refused_too_large));
  figures.set_refused_unsupported(static_cast<uint64_t>(stats.refused_unsupported));
  figures.set_refused_busy(static_cast<uint64_t>(stats.refused_busy));
  figures.set_refused_unsatisfiable(static_cast<uint64_t>(stats.refused_unsatisfiable));
  figures.set_forced_tokens(static_cast<uint64_t>(forced_tokens));
}

}  // namespace

uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t total_pages = 0;
  uint64_t resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

void StatusFigures::AddEnded(const EngineStats& stats) { ended_ = Sum(ended_, stats); }

v1::WorkerStatus StatusFigures::Measure(const Engine* engine, const ConstraintCompiler* constraints,
                                        uint64_t resident_bytes) {
  const absl::Time now = SteadyNow();
  v1::WorkerStatus status = idle_;
  *status.mutable_uptime() = ToProto(now - start_);
  v1::MemoryUsage* memory = status.mutable_memory();
  memory->set_process_resident_bytes(resident_bytes);
  const EngineStats stats = engine == nullptr ? EngineStats() : engine->stats();
  const RateMeter::Totals totals = Sum(ended_, stats);
  if (const auto rates = rate_meter_.Measure(std::chrono::steady_clock::now(), totals)) {
    *status.mutable_rates() = ToProto(*rates);
  }
  v1::Queue* queue = status.mutable_queue();
  queue->set_finished_requests(totals.finished_requests);
  queue->set_generated_tokens(totals.generated_tokens);
  if (engine == nullptr) return status;
  const BackendInfo& backend = engine->backend_info();
  // The idle status has more of the GPU.
  status.mutable_device()->MergeFrom(DescribeDevice(backend));
  memory->set_weights_bytes(backend.weights_bytes);
  memory->set_kv_bytes(backend.kv_bytes);
  memory->set_workspace_bytes(backend.workspace_bytes);
  memory->set_state_bytes(backend.state_bytes);
  const SpeculationInfo speculation = engine->speculation();
  memory->set_draft_bytes(speculation.bytes);
  if (IsAskedFor(speculation)) {
    v1::SpeculationFigures* figures = status.mutable_speculation();
    figures->set_draft_tokens(static_cast<uint64_t>(stats.draft_tokens));
    figures->set_accepted_draft_tokens(static_cast<uint64_t>(stats.accepted_draft_tokens));
  }
  if (stats.expert_load.tokens > 0) {
    v1::ExpertFigures* figures = status.mutable_experts();
    for (const uint64_t count : stats.expert_load.experts) figures->add_by_tokens(count);
    figures->set_tokens(stats.expert_load.tokens);
  }
  queue->set_running_requests(stats.running);
  queue->set_waiting_requests(stats.waiting);
  queue->set_max_waiting_requests(stats.max_waiting);
  queue->set_max_running_requests(stats.max_running);
  queue->set_max_waiting_tokens(stats.max_waiting_tokens);
  queue->set_waiting_tokens(stats.waiting_tokens);
  queue->set_prompt_tokens(stats.prompt_tokens);
  queue->set_cached_prompt_tokens(stats.cached_prompt_tokens);
  queue->set_preemptions(stats.preemptions);
  v1::KvBlocks* kv = status.mutable_kv_blocks();
  kv->set_cached(stats.kv_blocks_cached);
  kv->set_total(stats.kv_blocks_total);
  kv->set_free(stats.kv_blocks_free);
  kv->set_window_total(stats.window_blocks_total);
  kv->set_window_free(stats.window_blocks_free);
  kv->set_tokens_per_block(stats.block_tokens);
  if (backend.recurrent) {
    v1::StateCells* states = status.mutable_state_cells();
    states->set_total(stats.state_cells_total);
    states->set_held(stats.state_cells_held);
    states->set_cached(stats.state_cells_cached);
    states->set_bytes_per_cell(backend.state_cell_bytes);
    states->set_saved(static_cast<uint64_t>(stats.saved_checkpoints));
    states->set_hits(static_cast<uint64_t>(stats.checkpoint_hits));
    states->set_hit_tokens(static_cast<uint64_t>(stats.checkpoint_tokens));
  }
  Fill(*status.mutable_constraints(), constraints->stats(), stats.forced_tokens);
  if (stats.last_step != absl::InfinitePast()) {
    *status.mutable_last_step_age() =
        ToProto(std::max(now - stats.last_step, absl::ZeroDuration()));
  }
  return status;
}

}  // namespace orcd
