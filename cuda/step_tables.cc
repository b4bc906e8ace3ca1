#include "cuda/step_tables.h"

#include <algorithm>

#include "cuda/device_memory.h"
#include "cuda/kernels/common/attention.h"
#include "runtime/sampling/exact_exp.h"

namespace orcd::cuda {
namespace {

// Blocks over which decode attention is spread if there are few sequences.
constexpr int kAttentionBlocks = 256;
constexpr int kMaxKeySplits = 32;

int QueryTiles(int tokens, const LayerSpec& layer) {
  return (tokens * (layer.heads / layer.kv_heads) + kQueryRows - 1) / kQueryRows;
}

DrawEntry DrawOf(const StepSequence& seq, int32_t sequence, const SlotState& state) {
  const SamplingParams& params = state.params;
  return {.sequence = sequence,
          .slot = seq.slot,
          .position = seq.start_position + static_cast<int32_t>(seq.tokens.size()),
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
  blocks = carver.Take<int32_t>(limits.max_blocks);
  window_blocks =
      limits.max_window_blocks == 0 ? nullptr : carver.Take<int32_t>(limits.max_window_blocks);
  biases = carver.Take<LogitBias>(limits.max_biases);
  mask_words = limits.mask_words;
  masks = carver.Take<uint32_t>(limits.max_seqs * mask_words);
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

std::vector<int> DecodeBuckets(int max_seqs) {
  std::vector<int> buckets;
  for (int size = 1; size < max_seqs; size += size < 4 ? 1 : size < 8 ? 4 : size < 64 ? 8 : 32) {
    buckets.push_back(size);
  }
  buckets.push_back(max_seqs);
  return buckets;
}

StepShape DecodeShape(int sequences, const LayerSpec& layer) {
  return {
      .tokens = sequences,
      .sequences = sequences,
      .logit_rows = sequences,
      .decode = true,
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
    shape.tokens += tokens;
    shape.sequences += 1;
    shape.logit_rows += seq.sample ? 1 : 0;
    shape.query_tiles += QueryTiles(tokens, layer);
  }
  return shape;
}

TablesInUse WriteTables(const StepBatch& batch, const LayerSpec& layer, int block_tokens,
                        const std::vector<SlotState>& slots, const StepShape& shape,
                        const StepName& name, const TableLayout& host) {
  TablesInUse used;
  used.masks = static_cast<int>(std::ranges::count_if(
      batch.seqs, [](const StepSequence& seq) { return seq.sample && !seq.mask.empty(); }));
  int tokens = 0;
  int sequences = 0;
  int rows = 0;
  int blocks = 0;
  int query_tiles = 0;
  int key_tiles = 0;
  int biases = 0;
  int masks = 0;
  for (const StepSequence& seq : batch.seqs) {
    const int count = static_cast<int>(seq.tokens.size());
    const int end = seq.start_position + count;
    host.sequences[sequences] = {.slot = seq.slot,
                                 .starts = seq.start_params != nullptr ? 1 : 0,
                                 .first_token = tokens,
                                 .tokens = count,
                                 .first_position = seq.start_position,
                                 .first_block = blocks,
                                 .first_query_tile = query_tiles,
                                 .first_key_tile = key_tiles};
    for (int i = 0; i < count; ++i) {
      host.tokens[tokens + i] = {
          .id = seq.tokens[i], .sequence = sequences, .position = seq.start_position + i};
    }
    const int used_blocks = (end + block_tokens - 1) / block_tokens;
    std::copy_n(seq.blocks.begin(), used_blocks, host.blocks + blocks);
    if (host.window_blocks != nullptr) {
      std::copy_n(seq.window_blocks.begin(), used_blocks, host.window_blocks + blocks);
    }
    if (seq.sample) {
      const SamplingParams& params = slots[seq.slot].params;
      DrawEntry& draw = host.draws[rows];
      draw = DrawOf(seq, sequences, slots[seq.slot]);
      draw.first_bias = biases;
      draw.result = name.first_result + rows;
      draw.step = name.number;
      for (const auto& [token, bias] : params.logit_bias) host.biases[biases++] = {token, bias};
      if (seq.mask_follows) {
        draw.mask = used.masks + used.masks_to_follow++;
      } else if (!seq.mask.empty()) {
        draw.mask = masks++;
        WriteMasks({&seq.mask, 1}, draw.mask, host);
      }
      host.logit_tokens[rows++] = tokens + count - 1;
    }
    tokens += count;
    ++sequences;
    blocks += used_blocks;
    query_tiles += QueryTiles(count, layer);
    key_tiles += KeyTiles(end);
  }
  for (int i = tokens; i < shape.tokens; ++i)
    host.tokens[i] = {.id = 0, .sequence = -1, .position = 0};
  for (int i = sequences; i < shape.sequences; ++i) host.sequences[i] = {};
  for (int i = rows; i < shape.logit_rows; ++i) {
    host.draws[i] = {};
    host.draws[i].slot = -1;
    host.logit_tokens[i] = 0;
  }
  const int32_t* const last = host.window_blocks != nullptr ? host.window_blocks : host.blocks;
  const auto* const end = biases > 0 ? reinterpret_cast<const uint8_t*>(host.biases + biases)
                                     : reinterpret_cast<const uint8_t*>(last + blocks);
  used.bytes = end - reinterpret_cast<const uint8_t*>(host.tokens);
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
