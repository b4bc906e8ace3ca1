#include "cuda/step_tables.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "cuda/device_memory.h"
#include "cuda/kernels/common/attention.h"
#include "runtime/backend/drafts.h"
#include "runtime/sampling/exact_exp.h"

namespace orcd::cuda {
namespace {

// Blocks over which decode attention is spread if there are few sequences.
constexpr int kAttentionBlocks = 256;
constexpr int kMaxKeySplits = 32;

int QueryTiles(int tokens, const LayerSpec& layer) {
  return (tokens * (layer.heads / layer.kv_heads) + kQueryRows - 1) / kQueryRows;
}

// The draw of a sequence with the parameters of `state`.
DrawEntry DrawOf(const SequenceEntry& entry, int32_t sequence, const SlotState& state) {
  const SamplingParams& params = state.params;
  return {.sequence = sequence,
          .slot = entry.slot,
          .position = entry.first_position + entry.tokens,
          .octave_scale = params.greedy() ? 0 : OctaveScale(params.temperature),
          .top_k = params.top_k,
          .typical_p = params.typical_p,
          .top_p = params.top_p,
          .min_p_distance = params.min_p_distance(),
          .filter_scale = params.greedy() ? 0 : OctaveScale(params.filter_temperature()),
          .min_p_first = params.temperature_first ? 1 : 0,
          .repetition_penalty = params.repetition_penalty,
          .frequency_penalty = params.frequency_penalty,
          .presence_penalty = params.presence_penalty,
          .has_penalties = params.has_penalties() ? 1 : 0,
          .first_counted = params.count_prompt ? 0 : state.prompt_tokens,
          .first_bias = 0,
          .biases = static_cast<int32_t>(params.logit_bias.size()),
          .mask = -1,
          .logprobs = params.logprobs,
          .masked_logprobs = params.masked_logprobs ? 1 : 0,
          .result = 0,
          .step = 0,
          .seed_low = static_cast<uint32_t>(params.seed),
          .seed_high = static_cast<uint32_t>(params.seed >> 32)};
}

}  // namespace

TableLayout::TableLayout(const StepShape& shape, const StepLimits& limits, uint8_t* memory) {
  Carver carver(memory);
  tokens = carver.Take<TokenEntry>(shape.tokens);
  sequences = carver.Take<SequenceEntry>(shape.sequences);
  draws = carver.Take<DrawEntry>(shape.logit_rows);
  logit_tokens = carver.Take<int32_t>(shape.logit_rows);
  const bool has_runs = limits.recurrent || limits.max_predicting > 0;
  runs = has_runs ? carver.Take<RunEntry>(shape.sequences) : nullptr;
  run_of_token = has_runs ? carver.Take<int32_t>(shape.tokens) : nullptr;
  saves = limits.recurrent ? carver.Take<RunSave>(kMaxStateSaves * shape.sequences) : nullptr;
  blocks = carver.Take<int32_t>(limits.max_blocks);
  window_blocks =
      limits.max_window_blocks == 0 ? nullptr : carver.Take<int32_t>(limits.max_window_blocks);
  biases = carver.Take<LogitBias>(limits.max_biases);
  mask_words = limits.mask_words;
  masks = carver.Take<uint32_t>(limits.max_seqs * mask_words);
  const bool predicts = limits.max_predicting > 0;
  predicting = predicts ? carver.Take<PredictEntry>(limits.max_predicting) : nullptr;
  predict_draws = predicts ? carver.Take<DrawEntry>(limits.max_predicting) : nullptr;
  context = limits.context;
  bytes = carver.taken();
}

size_t TableBytes(const StepLimits& limits) {
  const StepShape largest = {
      .tokens = limits.max_tokens, .sequences = limits.max_seqs, .logit_rows = limits.max_seqs};
  return TableLayout(largest, limits, nullptr).bytes;
}

StepTables TableLayout::tables() const {
  return {.tokens = tokens,
          .sequences = sequences,
          .blocks = blocks,
          .window_blocks = window_blocks,
          .logit_tokens = logit_tokens};
}

int PredictRoom(const StepSequence& seq, int block_tokens, int context) {
  return std::min(static_cast<int>(std::ssize(seq.blocks)) * block_tokens, context);
}

std::vector<int> DecodeBuckets(int max_seqs) {
  std::vector<int> buckets;
  for (int size = 1; size < max_seqs; size += size < 4 ? 1 : size < 8 ? 4 : size < 64 ? 8 : 32) {
    buckets.push_back(size);
  }
  buckets.push_back(max_seqs);
  return buckets;
}

StepShape DecodeShape(int sequences, const LayerSpec& layer, bool drafts) {
  return {
      .tokens = sequences,
      .sequences = sequences,
      .logit_rows = sequences,
      .decode = true,
      .drafts = drafts,
      .key_splits = std::clamp(kAttentionBlocks / (sequences * layer.kv_heads), 1, kMaxKeySplits)};
}

int MaxSplitKeyTiles(const LayerSpec& layer, int max_seqs, int max_context) {
  // With more sequences than this, key_splits is 1: a block takes all keys of a sequence.
  const int sequences = std::min(max_seqs, kAttentionBlocks / (2 * layer.kv_heads));
  return sequences * KeyTiles(max_context);
}

StepShape ShapeOf(const StepBatch& batch, const LayerSpec& layer) {
  StepShape shape;
  for (const StepSequence& seq : batch.seqs) {
    const int tokens = static_cast<int>(seq.tokens.size());
    const int drafts = static_cast<int>(seq.drafts.size());
    shape.tokens += tokens + drafts;
    shape.sequences += 1 + drafts;
    shape.logit_rows += seq.sample ? 1 + drafts : 0;
    shape.query_tiles += QueryTiles(tokens, layer) + drafts * QueryTiles(1, layer);
  }
  return shape;
}

namespace {

// Fills a step's tables, entry after entry.
class TableWriter {
 public:
  TableWriter(const LayerSpec& layer, int block_tokens, const std::vector<SlotState>& slots,
              const StepName& name, const TableLayout& host)
      : layer_(layer), block_tokens_(block_tokens), slots_(slots), name_(name), host_(host) {
    draft_slot_ = static_cast<int>(slots.size());
  }

  void Add(const StepSequence& seq, TablesInUse& used) {
    const SlotState& state = slots_[seq.slot];
    const int first_block = AddBlocks(seq);
    const int first_bias = biases_;
    first_blocks_.push_back(first_block);
    if (host_.runs != nullptr) AddRun(seq);
    AddEntry(seq.slot, seq.start_params != nullptr, seq.tokens, seq.start_position, first_block,
             state.last_drawn);
    if (!seq.sample) return;
    for (const auto& [token, bias] : state.params.logit_bias) {
      host_.biases[biases_++] = {token, bias};
    }
    AddDraw(state, first_bias, seq.mask);
    if (seq.mask_follows) host_.draws[rows_ - 1].mask = used.masks + used.masks_to_follow++;
    const int32_t after = seq.start_position + static_cast<int32_t>(seq.tokens.size());
    for (size_t i = 0; i < seq.drafts.size(); ++i) {
      // Starts, so that a draft whose keys are not finite leaves no trace in the slot.
      AddEntry(draft_slot_++, /*starts=*/true, seq.drafts.subspan(i, 1),
               after + static_cast<int32_t>(i), first_block, kPreviousSample);
      AddDraw(state, first_bias, seq.draft_masks[i]);
    }
  }

  // Adds a prediction's entry, after all parts.
  void AddPredicting(const StepSequence& seq, int part) {
    const int room = RoomOf(seq);
    const int end = seq.start_position + static_cast<int>(RowsOf(seq)) + seq.predictions;
    host_.predicting[predicting_] = {.run = part,
                                     .room = room,
                                     .first_block = first_blocks_[part],
                                     .first_key_tile = predict_key_tiles_};
    predict_key_tiles_ += KeyTiles(std::min(end, room));
    SlotState greedy;
    greedy.params.temperature = 0;
    SequenceEntry entry = {};
    entry.slot = predicting_;
    DrawEntry& draw = host_.predict_draws[predicting_];
    draw = DrawOf(entry, predicting_, greedy);
    draw.result = predicting_;
    draw.step = name_.number;
    ++predicting_;
  }

  // Marks the entries of `shape` behind those that were added as unused.
  void Pad(const StepShape& shape) {
    for (int i = tokens_; i < shape.tokens; ++i) {
      host_.tokens[i] = {.id = 0, .sequence = -1, .position = 0};
    }
    for (int i = sequences_; i < shape.sequences; ++i) host_.sequences[i] = {};
    for (int i = rows_; i < shape.logit_rows; ++i) {
      host_.draws[i] = {};
      host_.draws[i].slot = -1;
      host_.logit_tokens[i] = 0;
    }
    if (host_.runs == nullptr) return;
    std::fill(host_.runs + runs_, host_.runs + shape.sequences, RunEntry{});
    std::fill(host_.run_of_token + tokens_, host_.run_of_token + shape.tokens, -1);
  }

  // Bytes in use of the tables before the masks.
  size_t bytes() const {
    const int32_t* const last = host_.window_blocks != nullptr ? host_.window_blocks : host_.blocks;
    const auto* const end = biases_ > 0 ? reinterpret_cast<const uint8_t*>(host_.biases + biases_)
                                        : reinterpret_cast<const uint8_t*>(last + blocks_);
    return static_cast<size_t>(end - reinterpret_cast<const uint8_t*>(host_.tokens));
  }

 private:
  int RoomOf(const StepSequence& seq) const {
    return PredictRoom(seq, block_tokens_, host_.context);
  }

  // Returns the index of the first block.
  int AddBlocks(const StepSequence& seq) {
    const auto rows_end = static_cast<int>(seq.start_position + RowsOf(seq));
    const int end = std::max(rows_end, std::min(rows_end + seq.predictions, RoomOf(seq)));
    const int used_blocks = (end + block_tokens_ - 1) / block_tokens_;
    std::copy_n(seq.blocks.begin(), used_blocks, host_.blocks + blocks_);
    if (host_.window_blocks != nullptr) {
      const auto of_windows = std::min<int64_t>(used_blocks, std::ssize(seq.window_blocks));
      std::copy_n(seq.window_blocks.begin(), of_windows, host_.window_blocks + blocks_);
    }
    blocks_ += used_blocks;
    return blocks_ - used_blocks;
  }

  // Before the part's entries.
  void AddRun(const StepSequence& seq) {
    const auto drafts = static_cast<int32_t>(seq.drafts.size());
    host_.runs[runs_] = {.slot = seq.slot,
                         .first_token = tokens_,
                         .tokens = static_cast<int32_t>(seq.tokens.size()),
                         .drafts = drafts,
                         .first_position = seq.start_position,
                         .first_draft = drafts_,
                         .first_save = saves_,
                         .saves = static_cast<int32_t>(seq.save_states.size()),
                         .first_row = rows_};
    // Cells are behind the slots.
    const auto slots = static_cast<int32_t>(slots_.size());
    for (const StateSave& save : seq.save_states) {
      host_.saves[saves_++] = {.tokens = save.tokens, .state = slots + save.cell};
    }
    std::fill_n(host_.run_of_token + tokens_, RowsOf(seq), runs_);
    drafts_ += drafts;
    ++runs_;
  }

  // `previous`: what kPreviousSample stands for.
  void AddEntry(int32_t slot, bool starts, std::span<const int32_t> ids, int32_t position,
                int first_block, int32_t previous) {
    const int count = static_cast<int>(ids.size());
    host_.sequences[sequences_] = {.slot = slot,
                                   .starts = starts ? 1 : 0,
                                   .first_token = tokens_,
                                   .tokens = count,
                                   .first_position = position,
                                   .first_block = first_block,
                                   .first_query_tile = query_tiles_,
                                   .first_key_tile = key_tiles_};
    for (int i = 0; i < count; ++i) {
      host_.tokens[tokens_++] = {.id = ids[i] == kPreviousSample ? previous : ids[i],
                                 .sequence = sequences_,
                                 .position = position + i};
    }
    ++sequences_;
    query_tiles_ += QueryTiles(count, layer_);
    key_tiles_ += KeyTiles(position + count);
  }

  // Adds the draw after the last entry.
  void AddDraw(const SlotState& state, int first_bias, const TokenMask& mask) {
    const int sequence = sequences_ - 1;
    DrawEntry& draw = host_.draws[rows_];
    draw = DrawOf(host_.sequences[sequence], sequence, state);
    draw.first_bias = first_bias;
    draw.result = name_.first_result + rows_;
    draw.step = name_.number;
    if (!mask.empty()) {
      draw.mask = masks_++;
      WriteMasks({&mask, 1}, draw.mask, host_);
    }
    host_.logit_tokens[rows_++] = tokens_ - 1;
  }

  const LayerSpec& layer_;
  const int block_tokens_;
  const std::vector<SlotState>& slots_;
  const StepName name_;
  const TableLayout& host_;
  int draft_slot_;
  int tokens_ = 0;
  int sequences_ = 0;
  int rows_ = 0;
  int blocks_ = 0;
  int query_tiles_ = 0;
  int key_tiles_ = 0;
  int biases_ = 0;
  int masks_ = 0;
  int runs_ = 0;
  int drafts_ = 0;
  int saves_ = 0;
  // One for each part.
  std::vector<int> first_blocks_;
  int predicting_ = 0;
  int predict_key_tiles_ = 0;
};

}  // namespace

TablesInUse WriteTables(const StepBatch& batch, const LayerSpec& layer, int block_tokens,
                        const std::vector<SlotState>& slots, const StepShape& shape,
                        const StepName& name, const TableLayout& host) {
  TablesInUse used;
  const auto is_mask = [](const TokenMask& mask) { return !mask.empty(); };
  for (const StepSequence& seq : batch.seqs) {
    if (!seq.sample) continue;
    used.masks += (is_mask(seq.mask) ? 1 : 0) +
                  static_cast<int>(std::ranges::count_if(seq.draft_masks, is_mask));
  }
  TableWriter writer(layer, block_tokens, slots, name, host);
  for (const StepSequence& seq : batch.seqs) writer.Add(seq, used);
  for (int part = 0; part < static_cast<int>(std::ssize(batch.seqs)); ++part) {
    if (batch.seqs[part].predictions > 0) used.predicting.push_back(part);
  }
  std::ranges::stable_sort(used.predicting, std::ranges::greater(),
                           [&](int part) { return batch.seqs[part].predictions; });
  for (const int part : used.predicting) writer.AddPredicting(batch.seqs[part], part);
  writer.Pad(shape);
  used.bytes = writer.bytes();
  return used;
}

void WriteMasks(std::span<const TokenMask> masks, int first_row, const TableLayout& host) {
  uint32_t* to = host.masks + first_row * host.mask_words;
  for (const TokenMask& mask : masks) {
    if (mask.empty()) {
      std::fill_n(to, host.mask_words, ~0u);
    } else {
      std::ranges::copy(mask.words, to);
    }
    to += host.mask_words;
  }
}

SampleArgs SampleArgsOf(const TableLayout& tables, const StepShape& shape,
                        const ForwardBuffers& buffers, const ModelSpec& spec, int block_tokens,
                        DrawResult* results) {
  return {.step = tables.tables(),
          .draws = tables.draws,
          .biases = tables.biases,
          .masks = tables.masks,
          .block_token_ids = buffers.block_token_ids,
          .block_tokens = block_tokens,
          .not_finite = buffers.not_finite,
          .logits = buffers.logits,
          .vocab = spec.vocab,
          .rows = shape.logit_rows,
          .results = results,
          .last_sample = buffers.last_sample};
}

}  // namespace orcd::cuda
