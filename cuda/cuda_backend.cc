#include "cuda/cuda_backend.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cuda/device.h"
#include "cuda/device_memory.h"
#include "cuda/device_weights.h"
#include "cuda/forward.h"
#include "cuda/in_flight.h"
#include "cuda/memory_plan.h"
#include "cuda/state_layout.h"
#include "cuda/status.h"
#include "cuda/step_tables.h"
#include "runtime/backend/batch_checker.h"
#include "runtime/backend/expert_load.h"
#include "runtime/base/error.h"
#include "runtime/base/steady_time.h"
#include "runtime/model/predict_block.h"
#include "runtime/model/rope.h"

namespace orcd {
namespace {

using cuda::CreateEvent;
using cuda::DeviceInfo;
using cuda::DeviceMemory;
using cuda::DeviceWeights;
using cuda::DrawResult;
using cuda::Event;
using cuda::Forward;
using cuda::ForwardBuffers;
using cuda::Graph;
using cuda::kMaxInFlight;
using cuda::kMaxPredictions;
using cuda::MemoryPlan;
using cuda::PinnedMemory;
using cuda::SlotState;
using cuda::StepShape;
using cuda::Stream;
using cuda::TableLayout;
using cuda::TablesInUse;

// WaitMode::kBlock polls for this long before it sleeps: waking up takes longer than waiting for a
// step that ends sooner.
constexpr absl::Duration kLooksBeforeBlocking = absl::Microseconds(50);

// CUDA graphs of a decode step of one shape, one for each set of tables that it may read.
struct StepGraph {
  StepShape shape;
  Graph whole[kMaxInFlight];
  // Without the sampler, for steps without drafts whose masks follow. It is a graph of its own, so
  // that other steps keep the overlap of the sampler's launch with the head.
  Graph up_to_logits[kMaxInFlight];
};

// The parts of a backend. Later ones refer to earlier ones.
struct Parts {
  std::shared_ptr<const Model> model;
  // The model's and, if tokens are predicted, its block's (WithBlock).
  ModelSpec spec;
  DeviceInfo device;
  MemoryPlan plan;
  DeviceWeights weights;
  DeviceMemory activations;
  DeviceMemory kv;
  cuda::KvCaches kv_views;
  // Recurrent states of slots, then of cells (StatePlan).
  DeviceMemory states;
  // Tables of the steps in flight, one after another.
  DeviceMemory tables;
  // One for each step in flight.
  PinnedMemory host_tables[kMaxInFlight];
  Event copied[kMaxInFlight];
  Event done[kMaxInFlight];
  // Around the step's predictions.
  Event predict_begin[kMaxInFlight];
  Event predict_end[kMaxInFlight];
  // [step in flight][sequences and drafts]
  PinnedMemory results;
  // [step in flight][kMaxPredictions][max_seqs]; empty if no tokens are predicted.
  PinnedMemory predictions;
  // [step in flight][max_seqs], copy of ForwardBuffers::not_finite after a step in which some
  // sequence drew nothing.
  PinnedMemory not_finite;
  // [step in flight], the load of experts of all steps up to it; stale after a step that ran no
  // layer with experts.
  PinnedMemory expert_loads;
  std::optional<ForwardBuffers> buffers;
  std::optional<Forward> forward;
  Stream stream;
  // Copies a step's tables while the step before computes.
  Stream copies;
  // In ascending order of sequences: those of steps without drafts, and of steps with drafts.
  std::vector<StepGraph> graphs;
  std::vector<StepGraph> draft_graphs;

  bool predicts() const { return weights.predict_block().has_value(); }
  DrawResult* host_predictions(int turn) const {
    return reinterpret_cast<DrawResult*>(predictions.data()) +
           turn * kMaxPredictions * plan.options.max_seqs;
  }
  int32_t* host_not_finite(int turn) const {
    return reinterpret_cast<int32_t*>(not_finite.data()) + turn * plan.options.max_seqs;
  }
  ExpertLoad* host_expert_load(int turn) const {
    return reinterpret_cast<ExpertLoad*>(expert_loads.data()) + turn;
  }
  // Tables of the step in flight `turn`.
  uint8_t* device_tables(int turn) const {
    return tables.data() + turn * (tables.size() / kMaxInFlight);
  }
};

// A step in flight, as Wait needs it to read the results.
struct Pending {
  struct Part {
    int32_t slot;
    bool sample;
    // Range in Pending::drafts.
    size_t first_draft;
    size_t drafts;
  };
  // A part for which tokens are predicted, if there is room behind its draws.
  struct Predicting {
    size_t part;
    int predictions;
    // Positions for which there is room behind the part's tokens.
    int room;
  };
  int turn = 0;
  uint32_t number = 0;
  // The shape that was launched.
  StepShape shape;
  int rows = 0;
  // Masks in the tables, behind which those that follow have their rows.
  int masks = 0;
  // In the order of the batch.
  std::vector<Part> parts;
  std::vector<int32_t> drafts;
  // In the order of the entries in the step's tables.
  std::vector<Predicting> predicting;

  // True if every sequence draws, and its DrawResult says whether it is finite.
  bool all_sample() const { return rows == static_cast<int>(parts.size() + drafts.size()); }
};

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(std::unique_ptr<Parts> parts);
  ~CudaBackend() override;

  const BackendInfo& info() const override { return info_; }
  absl::Status Launch(const StepBatch& batch) override;
  absl::Status GiveMasks(std::span<const TokenMask> masks) override;
  absl::StatusOr<StepResult> Wait() override;
  std::vector<float> RecurrentState(int32_t slot) const override;

 private:
  // The smallest graph that computes a batch; null if there is none.
  const StepGraph* FindGraph(const StepBatch& batch) const;
  // Returns OK once `pending` has its results in host memory, or else the GPU's error.
  absl::Status WaitFor(const Pending& pending, std::span<const DrawResult> drawn) const;
  // The load of experts of a step that was waited for.
  ExpertLoad TakeExpertLoad(const Pending& pending);
  // Adds the predictions of a step that was waited for, of which the parts of `untrusted` get none.
  absl::Status TakePredictions(const Pending& pending, const std::vector<bool>& untrusted,
                               StepResult& result) const;
  // Moves recurrent states on by the drafts of a step that were right.
  absl::Status Replay(const Pending& pending, const StepResult& result);

  const std::unique_ptr<Parts> parts_;
  BackendInfo info_;
  std::optional<BatchChecker> checker_;
  std::vector<SlotState> slots_;
  // Tokens after which each slot's recurrent state stands.
  std::vector<int64_t> state_tokens_;
  std::deque<Pending> pending_;
  uint32_t steps_ = 0;
  // The load of experts of all steps that were waited for.
  ExpertLoad expert_load_;
};

absl::Status EnqueueLogits(Parts& p, const StepShape& shape, int turn, ActivationTap* tap) {
  const TableLayout device(shape, p.plan.step, p.device_tables(turn));
  return p.forward->Enqueue(device.tables(), device.step_runs(), shape, turn, p.stream.get(), tap,
                            p.host_expert_load(turn));
}

// Before the step, whose kernels save states.
absl::Status RestoreStates(Parts& p, const StepBatch& batch) {
  const int64_t bytes = p.plan.states.bytes_each();
  for (const StepSequence& seq : batch.seqs) {
    if (seq.restore_state < 0) continue;
    const uint8_t* const cell = p.states.data() + (p.plan.states.slots + seq.restore_state) * bytes;
    ORCD_RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(p.states.data() + seq.slot * bytes, cell, bytes,
                                              cudaMemcpyDeviceToDevice, p.stream.get()),
                              "copying a recurrent state");
  }
  return absl::OkStatus();
}

// `all_sample`: as in Pending.
absl::Status EnqueueDraws(Parts& p, const StepShape& shape, int turn, bool all_sample) {
  if (shape.logit_rows > 0) {
    const TableLayout device(shape, p.plan.step, p.device_tables(turn));
    ORCD_RETURN_IF_CUDA_ERROR(
        p.device.kernels->sample(
            cuda::SampleArgsOf(device, shape, *p.buffers, p.spec, p.plan.options.block_tokens,
                               reinterpret_cast<DrawResult*>(p.results.data())),
            p.device.traits, p.stream.get()),
        "drawing tokens");
  }
  // Comes after the sampler, so that the sampler's launch still overlaps the head.
  if (!all_sample) {
    ORCD_RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(p.host_not_finite(turn), p.buffers->not_finite,
                                              sizeof(int32_t) * p.plan.options.max_seqs,
                                              cudaMemcpyDeviceToHost, p.stream.get()),
                              "copying what is not finite");
  }
  return absl::OkStatus();
}

// Behind the draws.
absl::Status EnqueueBlock(Parts& p, const StepShape& shape, int turn) {
  if (!p.predicts()) return absl::OkStatus();
  const TableLayout device(shape, p.plan.step, p.device_tables(turn));
  return p.forward->FollowSequences(device.step_draws(*p.buffers), shape, p.stream.get());
}

// Behind the block.
absl::Status EnqueuePredictions(Parts& p, const Pending& pending) {
  if (pending.predicting.empty()) return absl::OkStatus();
  // Those with more predictions come first.
  std::vector<int> rows;
  for (auto left = std::ssize(pending.predicting); left > 0;) {
    const int before = static_cast<int>(rows.size());
    while (left > 0 && pending.predicting[left - 1].predictions <= before) --left;
    if (left > 0) rows.push_back(static_cast<int>(left));
  }
  const int turn = pending.turn;
  const TableLayout device(pending.shape, p.plan.step, p.device_tables(turn));
  ORCD_RETURN_IF_CUDA_ERROR(cudaEventRecord(p.predict_begin[turn].get(), p.stream.get()),
                            "predicting tokens");
  ORCD_RETURN_IF_ERROR(p.forward->Predict(device.step_draws(*p.buffers), device.predictions(), rows,
                                          p.host_predictions(turn), p.plan.options.max_seqs,
                                          p.stream.get()));
  ORCD_RETURN_IF_CUDA_ERROR(cudaEventRecord(p.predict_end[turn].get(), p.stream.get()),
                            "predicting tokens");
  return absl::OkStatus();
}

absl::StatusOr<Graph> CaptureGraph(Parts& p, const StepShape& shape, int turn, bool draws) {
  ORCD_RETURN_IF_CUDA_ERROR(
      cudaStreamBeginCapture(p.stream.get(), cudaStreamCaptureModeThreadLocal),
      "capturing a graph");
  absl::Status enqueued = EnqueueLogits(p, shape, turn, nullptr);
  if (enqueued.ok() && draws) enqueued = EnqueueDraws(p, shape, turn, /*all_sample=*/true);
  if (enqueued.ok() && draws) enqueued = EnqueueBlock(p, shape, turn);
  cudaGraph_t captured = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(p.stream.get(), &captured);
  ORCD_RETURN_IF_ERROR(enqueued);
  ORCD_RETURN_IF_CUDA_ERROR(ended, "capturing a graph");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&executable, captured, 0);
  static_cast<void>(cudaGraphDestroy(captured));
  ORCD_RETURN_IF_CUDA_ERROR(made, "making a graph");
  Graph graph(executable);
  ORCD_RETURN_IF_CUDA_ERROR(cudaGraphUpload(graph.get(), p.stream.get()), "making a graph");
  return graph;
}

// Captures the graphs of up to `most` sequences, or sequences and drafts.
absl::Status CaptureGraphs(Parts& p, int most, bool drafts, std::vector<StepGraph>& graphs) {
  for (const int sequences : cuda::DecodeBuckets(most)) {
    StepGraph& graph = graphs.emplace_back();
    graph.shape = cuda::DecodeShape(sequences, p.spec.layers[0], drafts);
    for (int turn = 0; turn < kMaxInFlight; ++turn) {
      ORCD_ASSIGN_OR_RETURN(graph.whole[turn], CaptureGraph(p, graph.shape, turn, true));
      if (drafts) continue;
      ORCD_ASSIGN_OR_RETURN(graph.up_to_logits[turn], CaptureGraph(p, graph.shape, turn, false));
    }
  }
  return absl::OkStatus();
}

absl::Status CaptureAllGraphs(Parts& p) {
  ORCD_RETURN_IF_ERROR(CaptureGraphs(p, p.plan.options.max_seqs, /*drafts=*/false, p.graphs));
  if (p.plan.max_step_drafts == 0) return absl::OkStatus();
  const int most = std::min(p.plan.step.max_seqs, p.plan.step.max_tokens);
  return CaptureGraphs(p, most, /*drafts=*/true, p.draft_graphs);
}

// Copies a part of the host's tables of the step in flight `turn` to its place on the GPU.
cudaError_t CopyPart(Parts& p, int turn, const void* from, size_t bytes) {
  const auto offset = static_cast<const uint8_t*>(from) - p.host_tables[turn].data();
  return cudaMemcpyAsync(p.device_tables(turn) + offset, from, bytes, cudaMemcpyHostToDevice,
                         p.copies.get());
}

// Copies `count` masks from row `first` of `host` on.
cudaError_t CopyMasks(Parts& p, int turn, const TableLayout& host, int first, int count) {
  if (count == 0) return cudaSuccess;
  return CopyPart(p, turn, host.masks + first * host.mask_words,
                  sizeof(uint32_t) * count * host.mask_words);
}

// Copies the tables of predictions.
cudaError_t CopyPredicting(Parts& p, int turn, const TableLayout& host, size_t count) {
  if (count == 0) return cudaSuccess;
  const auto* const begin = reinterpret_cast<const uint8_t*>(host.predicting);
  const auto* const end = reinterpret_cast<const uint8_t*>(host.predict_draws + count);
  return CopyPart(p, turn, begin, static_cast<size_t>(end - begin));
}

// Copies the tables of the step in flight `turn`, and has the coming step wait for the copy.
absl::Status CopyTables(Parts& p, int turn, const TableLayout& host, const TablesInUse& used) {
  // Wait() returns once results are visible in pinned memory, which can precede the end of the step
  // that used these tables before. The copy waits for that step's completion event.
  for (const cudaError_t error :
       {cudaStreamWaitEvent(p.copies.get(), p.done[turn].get()),
        CopyPart(p, turn, host.tokens, used.bytes), CopyMasks(p, turn, host, 0, used.masks),
        CopyPredicting(p, turn, host, used.predicting.size()),
        cudaEventRecord(p.copied[turn].get(), p.copies.get()),
        cudaStreamWaitEvent(p.stream.get(), p.copied[turn].get())}) {
    ORCD_RETURN_IF_CUDA_ERROR(error, "copying a step's tables");
  }
  return absl::OkStatus();
}

// Enqueues the predictions of a step, and marks its end.
absl::Status EndStep(Parts& p, const Pending& pending) {
  ORCD_RETURN_IF_ERROR(EnqueuePredictions(p, pending));
  ORCD_RETURN_IF_CUDA_ERROR(cudaEventRecord(p.done[pending.turn].get(), p.stream.get()),
                            "launching a step");
  return absl::OkStatus();
}

TableLayout HostTables(Parts& p, const Pending& pending) {
  return {pending.shape, p.plan.step, p.host_tables[pending.turn].data()};
}

SampledToken SampleOf(const DrawResult& draw) {
  SampledToken sample = {
      .token = draw.token, .logprob = draw.logprob, .top = {}, .finite = draw.finite != 0};
  for (int i = 0; i < draw.top_count; ++i) {
    sample.top.push_back({draw.top_tokens[i], draw.top_logprobs[i]});
  }
  return sample;
}

CudaBackend::CudaBackend(std::unique_ptr<Parts> parts)
    : parts_(std::move(parts)),
      slots_(parts_->plan.options.max_seqs),
      state_tokens_(parts_->plan.options.max_seqs) {
  const Parts& p = *parts_;
  info_.name = "cuda";
  info_.device = p.device.name;
  info_.gpu = {.uuid = p.device.uuid,
               .driver_version = p.device.driver_version,
               .memory_total_bytes = p.device.total_bytes,
               .memory_free_bytes = p.device.free_bytes};
  info_.kernels = p.device.kernels->name;
  info_.numeric_identity = p.device.kernels->numeric_identity;
  info_.max_seqs = p.plan.options.max_seqs;
  info_.max_step_tokens = p.plan.options.max_step_tokens;
  info_.block_tokens = p.plan.options.block_tokens;
  info_.kv_blocks = p.kv_views.whole.blocks;
  info_.window_blocks = p.kv_views.windows.blocks;
  info_.max_in_flight = kMaxInFlight;
  info_.late_masks = true;
  info_.max_drafts = std::min(cuda::kMaxDrafts, p.plan.max_step_drafts);
  info_.max_step_drafts = p.plan.max_step_drafts;
  info_.max_predictions = p.predicts() ? kMaxPredictions : 0;
  info_.recurrent = p.spec.recurrent();
  if (info_.recurrent) {
    info_.state_cells = p.plan.states.cells;
    info_.state_bytes = p.plan.state_bytes();
    info_.state_cell_bytes = static_cast<uint64_t>(p.plan.states.bytes_each());
  }
  info_.max_context = p.plan.forward.context_length;
  info_.weights_bytes = p.plan.weights_bytes;
  info_.kv_bytes = p.kv.size();
  info_.workspace_bytes = p.activations.size() + p.tables.size();
  checker_.emplace(info_, p.spec);
}

CudaBackend::~CudaBackend() {
  // No kernel may run on memory that is being freed. Every copy of tables is waited for by a step.
  static_cast<void>(cudaStreamSynchronize(parts_->stream.get()));
}

const StepGraph* CudaBackend::FindGraph(const StepBatch& batch) const {
  if (batch.tap != nullptr) return nullptr;
  size_t drafts = 0;
  bool masks_follow = false;
  for (const StepSequence& seq : batch.seqs) {
    if (seq.tokens.size() != 1 || !seq.sample) return nullptr;
    drafts += seq.drafts.size();
    masks_follow = masks_follow || seq.mask_follows;
  }
  if (drafts > 0 && masks_follow) return nullptr;
  const std::vector<StepGraph>& graphs = drafts > 0 ? parts_->draft_graphs : parts_->graphs;
  const auto graph = std::find_if(graphs.begin(), graphs.end(), [&](const auto& candidate) {
    return static_cast<size_t>(candidate.shape.sequences) >= batch.seqs.size() + drafts;
  });
  return graph == graphs.end() ? nullptr : &*graph;
}

absl::Status CudaBackend::Launch(const StepBatch& batch) {
  Parts& p = *parts_;
  if (pending_.size() == kMaxInFlight) {
    return absl::FailedPreconditionError("a step was launched before an older was waited for");
  }
  ORCD_RETURN_IF_ERROR(checker_->Check(batch));
  ORCD_RETURN_IF_CUDA_ERROR(cudaSetDevice(p.device.index), "selecting the GPU");
  Pending pending;
  pending.turn = static_cast<int>(steps_ % kMaxInFlight);
  pending.number = ++steps_;
  for (const StepSequence& seq : batch.seqs) {
    if (seq.start_params != nullptr) {
      slots_[seq.slot] = {.params = *seq.start_params, .prompt_tokens = seq.start_prompt_tokens};
    }
    pending.rows += seq.sample ? 1 + static_cast<int>(seq.drafts.size()) : 0;
    pending.parts.push_back({.slot = seq.slot,
                             .sample = seq.sample,
                             .first_draft = pending.drafts.size(),
                             .drafts = seq.drafts.size()});
    pending.drafts.insert(pending.drafts.end(), seq.drafts.begin(), seq.drafts.end());
    state_tokens_[seq.slot] = seq.start_position + std::ssize(seq.tokens);
  }
  const LayerSpec& layer = p.spec.layers[0];
  const auto* const graph = FindGraph(batch);
  pending.shape = graph != nullptr ? graph->shape : cuda::ShapeOf(batch, layer);
  const TableLayout host = HostTables(p, pending);
  const TablesInUse used = cuda::WriteTables(
      batch, layer, p.plan.options.block_tokens, slots_, pending.shape,
      {.number = pending.number, .first_result = pending.turn * p.plan.step.max_seqs}, host);
  for (const StepSequence& seq : batch.seqs) {
    if (seq.sample) slots_[seq.slot].last_drawn = kPreviousSample;
  }
  pending.masks = used.masks;
  for (size_t i = 0; i < used.predicting.size(); ++i) {
    const auto part = static_cast<size_t>(used.predicting[i]);
    const StepSequence& seq = batch.seqs[part];
    const auto end = static_cast<int>(seq.start_position + std::ssize(seq.tokens));
    pending.predicting.push_back(
        {.part = part, .predictions = seq.predictions, .room = host.predicting[i].room - end});
  }
  ORCD_RETURN_IF_ERROR(CopyTables(p, pending.turn, host, used));
  const bool draws = used.masks_to_follow == 0;
  ORCD_RETURN_IF_ERROR(RestoreStates(p, batch));
  if (graph != nullptr) {
    const Graph& launched = (draws ? graph->whole : graph->up_to_logits)[pending.turn];
    ORCD_RETURN_IF_CUDA_ERROR(cudaGraphLaunch(launched.get(), p.stream.get()), "launching a step");
  } else {
    ORCD_RETURN_IF_ERROR(EnqueueLogits(p, pending.shape, pending.turn, batch.tap));
    if (draws) {
      ORCD_RETURN_IF_ERROR(EnqueueDraws(p, pending.shape, pending.turn, pending.all_sample()));
      ORCD_RETURN_IF_ERROR(EnqueueBlock(p, pending.shape, pending.turn));
    }
  }
  if (draws) ORCD_RETURN_IF_ERROR(EndStep(p, pending));
  pending_.push_back(std::move(pending));
  return absl::OkStatus();
}

absl::Status CudaBackend::GiveMasks(std::span<const TokenMask> masks) {
  Parts& p = *parts_;
  ORCD_RETURN_IF_ERROR(checker_->CheckMasks(masks));
  ORCD_RETURN_IF_CUDA_ERROR(cudaSetDevice(p.device.index), "selecting the GPU");
  const Pending& pending = pending_.back();
  const int turn = pending.turn;
  const TableLayout host = HostTables(p, pending);
  cuda::WriteMasks(masks, pending.masks, host);
  // The copy behind that of the step's tables overlaps the layers.
  for (const cudaError_t error :
       {CopyMasks(p, turn, host, pending.masks, static_cast<int>(masks.size())),
        cudaEventRecord(p.copied[turn].get(), p.copies.get()),
        cudaStreamWaitEvent(p.stream.get(), p.copied[turn].get())}) {
    ORCD_RETURN_IF_CUDA_ERROR(error, "copying masks");
  }
  ORCD_RETURN_IF_ERROR(EnqueueDraws(p, pending.shape, turn, pending.all_sample()));
  ORCD_RETURN_IF_ERROR(EnqueueBlock(p, pending.shape, turn));
  return EndStep(p, pending);
}

absl::StatusOr<StepResult> CudaBackend::Wait() {
  Parts& p = *parts_;
  if (pending_.empty()) return absl::FailedPreconditionError("there is no step to wait for");
  if (pending_.size() == 1 && checker_->masks_awaited() > 0) {
    return absl::FailedPreconditionError("a step was waited for before its masks were given");
  }
  const Pending pending = std::move(pending_.front());
  pending_.pop_front();
  checker_->OnWait();
  const std::span<const DrawResult> drawn(
      reinterpret_cast<const DrawResult*>(p.results.data()) + pending.turn * p.plan.step.max_seqs,
      pending.rows);
  ORCD_RETURN_IF_ERROR(WaitFor(pending, drawn));
  std::atomic_thread_fence(std::memory_order_acquire);
  StepResult result;
  result.expert_load = TakeExpertLoad(pending);
  std::vector<bool> untrusted(pending.parts.size());
  for (size_t row = 0; const Pending::Part& part : pending.parts) {
    PartResult& given = result.parts.emplace_back();
    if (!part.sample) {
      given.finite = p.host_not_finite(pending.turn)[part.slot] == 0;
      continue;
    }
    const std::span<const DrawResult> draws = drawn.subspan(row, 1 + part.drafts);
    row += draws.size();
    given.finite = draws[0].finite != 0;
    given.samples.push_back(SampleOf(draws[0]));
    for (size_t i = 0; i < part.drafts; ++i) {
      const DrawResult& next = draws[i + 1];
      const bool right = draws[i].token == pending.drafts[part.first_draft + i];
      const bool finite = draws[i].finite != 0 && next.finite != 0;
      // The GPU has predicted what follows the draft.
      if (right && !finite) untrusted[result.parts.size() - 1] = true;
      if (!right || !finite) break;
      given.samples.push_back(SampleOf(next));
    }
    if (part.drafts > 0) slots_[part.slot].last_drawn = given.samples.back().token;
  }
  ORCD_RETURN_IF_ERROR(TakePredictions(pending, untrusted, result));
  if (info_.recurrent) ORCD_RETURN_IF_ERROR(Replay(pending, result));
  return result;
}

absl::Status CudaBackend::TakePredictions(const Pending& pending,
                                          const std::vector<bool>& untrusted,
                                          StepResult& result) const {
  if (pending.predicting.empty()) return absl::OkStatus();
  const Parts& p = *parts_;
  const DrawResult* const predicted = p.host_predictions(pending.turn);
  for (size_t i = 0; i < pending.predicting.size(); ++i) {
    const Pending::Predicting& of = pending.predicting[i];
    PartResult& part = result.parts[of.part];
    if (!part.finite || untrusted[of.part] || !part.samples.back().finite) continue;
    const int right = static_cast<int>(part.samples.size()) - 1;
    for (int n = 0; n < std::min(of.predictions, of.room - right); ++n) {
      const DrawResult& draw =
          predicted[int64_t{n} * p.plan.options.max_seqs + static_cast<int64_t>(i)];
      if (draw.finite == 0) break;
      part.predictions.push_back(draw.token);
    }
  }
  float milliseconds = 0;
  ORCD_RETURN_IF_CUDA_ERROR(cudaEventElapsedTime(&milliseconds, p.predict_begin[pending.turn].get(),
                                                 p.predict_end[pending.turn].get()),
                            "timing predictions");
  result.prediction_seconds = double{milliseconds} / 1000;
  return absl::OkStatus();
}

absl::Status CudaBackend::Replay(const Pending& pending, const StepResult& result) {
  // The slot of a step with drafts is not used again before the step was waited for.
  std::vector<cuda::DeltaReplayArgs::Replay> replays;
  for (size_t i = 0; i < pending.parts.size(); ++i) {
    const Pending::Part& part = pending.parts[i];
    if (part.drafts == 0) continue;
    const auto right = static_cast<int32_t>(result.parts[i].samples.size()) - 1;
    if (right == 0) continue;
    int64_t& tokens = state_tokens_[part.slot];
    replays.push_back({.slot = part.slot,
                       .first_draft = static_cast<int32_t>(part.first_draft),
                       .drafts = right,
                       .position = static_cast<int32_t>(tokens)});
    tokens += right;
  }
  if (replays.empty()) return absl::OkStatus();
  ORCD_RETURN_IF_CUDA_ERROR(cudaSetDevice(parts_->device.index), "selecting the GPU");
  return parts_->forward->Replay(replays, pending.turn, parts_->stream.get());
}

std::vector<float> CudaBackend::RecurrentState(int32_t slot) const {
  if (!info_.recurrent) return {};
  const Parts& p = *parts_;
  std::vector<float> state(p.plan.states.floats);
  const int64_t bytes = p.plan.states.bytes_each();
  const bool copied = cudaSetDevice(p.device.index) == cudaSuccess &&
                      cudaMemcpyAsync(state.data(), p.states.data() + slot * bytes, bytes,
                                      cudaMemcpyDeviceToHost, p.stream.get()) == cudaSuccess &&
                      cudaStreamSynchronize(p.stream.get()) == cudaSuccess;
  if (!copied) return {};
  return cuda::FromDeviceState(p.spec, state, state_tokens_[slot]);
}

ExpertLoad CudaBackend::TakeExpertLoad(const Pending& pending) {
  const ExpertLoad& total = *parts_->host_expert_load(pending.turn);
  ExpertLoad taken;
  if (total.tokens <= expert_load_.tokens) return taken;
  for (size_t i = 0; i < ExpertLoad::kBuckets; ++i) {
    taken.experts[i] = total.experts[i] - expert_load_.experts[i];
  }
  taken.tokens = total.tokens - expert_load_.tokens;
  expert_load_ = total;
  return taken;
}

absl::Status CudaBackend::WaitFor(const Pending& pending, std::span<const DrawResult> drawn) const {
  const WaitMode mode = parts_->plan.options.wait;
  cudaEvent_t done = parts_->done[pending.turn].get();
  // Draws are visible in host memory before the runtime reports the end of the step. But only the
  // runtime reports errors, that not_finite has been copied, and that tokens have been predicted.
  const bool draws_tell_all = pending.all_sample() && pending.predicting.empty();
  constexpr int kLooksBetweenQueries = 256;
  const absl::Time begin = SteadyNow();
  for (size_t complete = 0;;) {
    for (int look = 0; draws_tell_all && look < kLooksBetweenQueries; ++look) {
      if (complete == drawn.size()) return absl::OkStatus();
      if (*const_cast<const volatile uint32_t*>(&drawn[complete].step) == pending.number) {
        ++complete;
      }
    }
    const cudaError_t state = cudaEventQuery(done);
    if (state == cudaSuccess) return absl::OkStatus();
    if (state != cudaErrorNotReady) return cuda::ToStatus(state, "computing a step");
    if (mode == WaitMode::kYield) sched_yield();
    if (mode == WaitMode::kBlock && SteadyNow() - begin > kLooksBeforeBlocking) {
      ORCD_RETURN_IF_CUDA_ERROR(cudaEventSynchronize(done), "computing a step");
      return absl::OkStatus();
    }
  }
}

// Number of threads that read weights. More than a few do not raise the memory's throughput.
int Readers(const BackendOptions& options) {
  constexpr int kMaxReaders = 8;
  const int threads =
      options.threads > 0 ? options.threads : static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(threads, 1, kMaxReaders);
}

// Computes the angles of every kind of RoPE, and copies them to the GPU.
absl::Status CopyAngles(Parts& p) {
  const ModelSpec& spec = p.spec;
  const std::vector<RopeSpec> ropes = cuda::RopesOf(spec);
  for (size_t i = 0; i < ropes.size(); ++i) {
    const std::vector<float> table =
        RopeTable(ropes[i], p.model->weights(), ContextOf(spec, p.plan.options),
                  p.plan.forward.context_length);
    ORCD_RETURN_IF_CUDA_ERROR(cudaMemcpy(p.buffers->angles[i], table.data(),
                                         table.size() * sizeof(float), cudaMemcpyHostToDevice),
                              "copying RoPE's angles");
  }
  // Other streams do not wait for this one.
  ORCD_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(nullptr), "copying RoPE's angles");
  return absl::OkStatus();
}

// The caches in their memory, one after the other.
cuda::KvCaches CachesAt(uint8_t* data, const ModelSpec& spec, const MemoryPlan& plan) {
  const auto view = [&](uint8_t* from, int64_t blocks) {
    return cuda::KvCacheView{.data = reinterpret_cast<__half*>(from),
                             .blocks = static_cast<int>(blocks),
                             .block_tokens = plan.options.block_tokens,
                             .kv_heads = spec.layers[0].kv_heads,
                             .head_dim = spec.layers[0].head_dim};
  };
  return {
      .whole = view(data, plan.kv.blocks),
      .windows = view(data + plan.kv.blocks * plan.kv.block_bytes.whole, plan.kv.window_blocks)};
}

absl::Status AllocatePredictions(Parts& p) {
  if (!p.predicts()) return absl::OkStatus();
  for (int i = 0; i < kMaxInFlight; ++i) {
    ORCD_ASSIGN_OR_RETURN(p.predict_begin[i], CreateEvent(cudaEventDefault));
    ORCD_ASSIGN_OR_RETURN(p.predict_end[i], CreateEvent(cudaEventDefault));
  }
  ORCD_ASSIGN_OR_RETURN(p.predictions,
                        PinnedMemory::Allocate(sizeof(DrawResult) * kMaxInFlight * kMaxPredictions *
                                                   p.plan.options.max_seqs,
                                               "predictions"));
  return absl::OkStatus();
}

absl::Status AllocateWorkspace(Parts& p) {
  const ModelSpec& spec = p.spec;
  const BackendOptions& options = p.plan.options;
  const ForwardBuffers counted(spec, p.weights, p.plan.forward, nullptr);
  ORCD_ASSIGN_OR_RETURN(p.activations, DeviceMemory::Allocate(counted.bytes, "activations"));
  // Counters must begin at zero. Padding tokens begin at zero too: they take part in products, but
  // nothing uses their results, whatever they are.
  ORCD_RETURN_IF_CUDA_ERROR(cudaMemset(p.activations.data(), 0, p.activations.size()),
                            "clearing activations");
  p.buffers.emplace(spec, p.weights, p.plan.forward, p.activations.data());
  ORCD_RETURN_IF_ERROR(CopyAngles(p));
  for (int i = 0; i < spec.num_layers(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    const float* const bias = p.weights.layers()[i].qkv_bias;
    if (bias == nullptr || !cuda::SplitsQueries(layer.head_dim)) continue;
    int32_t* const parts = p.buffers->query_split + i * layer.kv_heads;
    if (layer.sinks) {
      // An error that all scores share cancels out in a softmax, but not beside a sink.
      const std::vector<int32_t> two(layer.kv_heads, 2);
      ORCD_RETURN_IF_CUDA_ERROR(
          cudaMemcpy(parts, two.data(), two.size() * sizeof(int32_t), cudaMemcpyHostToDevice),
          "choosing the parts of queries");
      continue;
    }
    ORCD_RETURN_IF_CUDA_ERROR(cuda::LaunchQuerySplit(bias + layer.q_size(), layer.kv_heads,
                                                     layer.head_dim, parts, p.stream.get()),
                              "choosing the parts of queries");
  }

  const size_t table_bytes = cuda::TableBytes(p.plan.step);
  ORCD_ASSIGN_OR_RETURN(p.tables,
                        DeviceMemory::Allocate(kMaxInFlight * table_bytes, "steps' tables"));
  for (int i = 0; i < kMaxInFlight; ++i) {
    ORCD_ASSIGN_OR_RETURN(p.host_tables[i], PinnedMemory::Allocate(table_bytes, "a step's tables"));
    ORCD_ASSIGN_OR_RETURN(p.copied[i], CreateEvent());
    ORCD_ASSIGN_OR_RETURN(
        p.done[i], CreateEvent(cudaEventDisableTiming |
                               (options.wait == WaitMode::kBlock ? cudaEventBlockingSync : 0)));
  }
  const size_t results_bytes = sizeof(DrawResult) * kMaxInFlight * p.plan.step.max_seqs;
  ORCD_ASSIGN_OR_RETURN(p.results, PinnedMemory::Allocate(results_bytes, "results"));
  std::fill_n(p.results.data(), results_bytes, uint8_t{0});
  ORCD_RETURN_IF_ERROR(AllocatePredictions(p));
  ORCD_ASSIGN_OR_RETURN(p.expert_loads, PinnedMemory::Allocate(sizeof(ExpertLoad) * kMaxInFlight,
                                                               "the load of experts"));
  std::fill_n(p.expert_loads.data(), p.expert_loads.size(), uint8_t{0});
  ORCD_ASSIGN_OR_RETURN(p.not_finite,
                        PinnedMemory::Allocate(sizeof(int32_t) * kMaxInFlight * options.max_seqs,
                                               "what is not finite"));
  return absl::OkStatus();
}

// The model's block, if it is asked for and the kernels compute it.
absl::StatusOr<std::optional<PredictBlock>> BlockOf(const Model& model,
                                                    const BackendOptions& options) {
  if (!options.predict) return std::nullopt;
  ORCD_ASSIGN_OR_RETURN(std::optional<PredictBlock> block,
                        PredictBlock::FromGguf(model.gguf(), model.spec(), model.weights()));
  // Predictions have no blocks of windows, and the projection is added as a branch.
  const bool computed =
      block.has_value() && block->spec.window == 0 && model.spec().residual_scale == 1;
  if (!computed) return std::nullopt;
  return block;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(std::shared_ptr<const Model> model,
                                                           const BackendOptions& options,
                                                           LoadObserver& observer) {
  auto parts = std::make_unique<Parts>();
  Parts& p = *parts;
  p.model = std::move(model);
  ORCD_ASSIGN_OR_RETURN(const std::optional<PredictBlock> block, BlockOf(*p.model, options));
  p.spec = p.model->spec();
  ModelWeights weights = p.model->weights();
  if (block.has_value()) {
    p.spec = cuda::WithBlock(std::move(p.spec), *block);
    weights = cuda::WithBlock(std::move(weights), *block);
  }
  const ModelSpec& spec = p.spec;
  const PredictBlock* const predict_block = block.has_value() ? &*block : nullptr;
  ORCD_ASSIGN_OR_RETURN(
      const DeviceWeights planned,
      DeviceWeights::Plan(spec, weights, Readers(options), nullptr, predict_block));
  ORCD_ASSIGN_OR_RETURN(p.device, cuda::SelectDevice(options.gpu, options.kernels));
  ORCD_ASSIGN_OR_RETURN(p.plan, cuda::PlanMemory(spec, planned, options, p.device));
  ORCD_RETURN_IF_CUDA_ERROR(p.device.kernels->prepare(p.device.traits, spec.vocab),
                            "preparing kernels");
  ORCD_ASSIGN_OR_RETURN(p.stream, cuda::CreateStream());
  ORCD_ASSIGN_OR_RETURN(p.copies, cuda::CreateStream());
  ORCD_ASSIGN_OR_RETURN(p.weights, DeviceWeights::Upload(spec, weights, Readers(options),
                                                         p.device.index, observer, predict_block));
  ORCD_RETURN_IF_ERROR(AllocateWorkspace(p));
  ORCD_ASSIGN_OR_RETURN(p.kv, DeviceMemory::Allocate(p.plan.kv_bytes(), "the KV cache"));
  // The KV cache must not hold a value that is not finite.
  ORCD_RETURN_IF_CUDA_ERROR(cudaMemset(p.kv.data(), 0, p.kv.size()), "clearing the KV cache");
  p.kv_views = CachesAt(p.kv.data(), spec, p.plan);
  if (spec.recurrent()) {
    ORCD_ASSIGN_OR_RETURN(p.states,
                          DeviceMemory::Allocate(p.plan.state_bytes(), "recurrent states"));
  }
  const cuda::DeltaStates states = {.data = reinterpret_cast<float*>(p.states.data()),
                                    .state_floats = p.plan.states.floats};
  p.forward.emplace(spec, p.weights, *p.buffers, p.kv_views, states, p.device);
  ORCD_RETURN_IF_ERROR(CaptureAllGraphs(p));
  ORCD_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(p.stream.get()), "making graphs");
  return std::make_unique<CudaBackend>(std::move(parts));
}

}  // namespace orcd
