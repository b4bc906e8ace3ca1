// A step's description on its way from the engine's batch to the kernels: written by the host into
// pinned memory, copied to VRAM as one piece.
#ifndef ORCD_CUDA_STEP_TABLES_H_
#define ORCD_CUDA_STEP_TABLES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/forward.h"
#include "cuda/in_flight.h"
#include "cuda/kernels/common/delta_net.h"
#include "cuda/kernels/common/predict.h"
#include "cuda/kernels/common/sample.h"
#include "cuda/kernels/common/step.h"
#include "runtime/backend/backend.h"
#include "runtime/model/spec.h"
#include "runtime/sampling/params.h"
#include "runtime/sampling/token_mask.h"

namespace orcd::cuda {

// Upper bounds on the contents of a step.
struct StepLimits {
  int max_tokens = 0;
  // Sequences and drafts, each of which may draw.
  int max_seqs = 0;
  // Totals over all sequences: KV blocks, logit biases.
  int64_t max_blocks = 0;
  // As max_blocks; 0 if no layer has a window.
  int64_t max_window_blocks = 0;
  int64_t max_biases = 0;
  // Words of a mask. Every draw may have one.
  int64_t mask_words = 0;
  // True if there are StepRuns with saves.
  bool recurrent = false;
  // Sequences for which tokens are predicted; above 0, there are StepRuns.
  int max_predicting = 0;
  // Positions of a sequence, for which predictions have room.
  int context = 0;
};

// Layout of the tables of a step of some shape, in host or GPU memory. Each table begins at the
// same offset in all steps of a shape, so that a CUDA graph can refer to it.
struct TableLayout {
  // If `memory` is null, only `bytes` is meaningful.
  TableLayout(const StepShape& shape, const StepLimits& limits, uint8_t* memory);

  // The tables that kernels read.
  StepTables tables() const;
  StepRuns step_runs() const { return {runs, run_of_token, saves}; }
  // The step's draws, of which `buffers` have the tokens.
  StepDraws step_draws(const ForwardBuffers& buffers) const {
    return {tables(), step_runs(), draws, buffers.last_sample};
  }
  PredictTables predictions() const { return {predicting, predict_draws}; }

  TokenEntry* tokens;        // [shape.tokens]
  SequenceEntry* sequences;  // [shape.sequences]
  DrawEntry* draws;          // [shape.logit_rows]
  int32_t* logit_tokens;     // [shape.logit_rows]
  // [shape.sequences]; this and run_of_token null without recurrent layers and predictions, and
  // `saves` without such layers.
  RunEntry* runs;
  int32_t* run_of_token;  // [shape.tokens]
  RunSave* saves;         // [kMaxStateSaves * shape.sequences]
  // A step uses few entries of these tables. They come after the others, so that the copy ends at
  // the last entry in use.
  int32_t* blocks;
  int32_t* window_blocks;  // at the same indices; null if no layer has a window
  LogitBias* biases;
  // Copied on their own, as most steps have none and others get them late.
  uint32_t* masks;  // [limits.max_seqs, mask_words]
  int64_t mask_words;
  // Copied on their own, as many steps have none; null without predictions.
  PredictEntry* predicting;  // [limits.max_predicting]
  DrawEntry* predict_draws;  // [limits.max_predicting]
  int context;
  size_t bytes;
};

// The entries of a step's tables that hold something.
struct TablesInUse {
  // Bytes of the tables before the masks, from the layout's first byte on.
  size_t bytes = 0;
  // Rows of masks: those of the batch, and behind them those of masks that follow.
  int masks = 0;
  int masks_to_follow = 0;
  // The part of the batch for which each entry of `predicting` is: those with more predictions
  // first.
  std::vector<int> predicting = {};
};

// Largest size of a step's tables, in bytes.
size_t TableBytes(const StepLimits& limits);

// State of a sequence that a backend keeps between steps, one per slot.
struct SlotState {
  SamplingParams params;
  int32_t prompt_tokens = 0;
  // The token that kPreviousSample stands for if the last draw was that of a draft, which the GPU
  // did not draw for this slot; else kPreviousSample.
  int32_t last_drawn = kPreviousSample;
};

// The exact shape of a batch, without padding.
StepShape ShapeOf(const StepBatch& batch, const LayerSpec& layer);

// Positions of a sequence for which predictions have room.
int PredictRoom(const StepSequence& seq, int block_tokens, int context);

// The numbers of sequences that decode steps are padded to, up to `max_seqs`.
std::vector<int> DecodeBuckets(int max_seqs);

// The shape of a decode step of `sequences` sequences, or of sequences and drafts together.
StepShape DecodeShape(int sequences, const LayerSpec& layer, bool drafts = false);

// Largest number of key tiles, over all sequences of a decode step, if several blocks share the
// keys of a sequence.
int MaxSplitKeyTiles(const LayerSpec& layer, int max_seqs, int max_context);

// Identifies a step, and says at which index its results begin.
struct StepName {
  uint32_t number = 0;
  int first_result = 0;
};

// Writes a batch into `host`, and marks the entries of `shape` beyond the batch as unused. Masks
// that follow have their rows, but no contents yet. A draft becomes a sequence of its own, of one
// token and one draw, behind its part: it shares the part's blocks, and has one of the slots behind
// those of `slots` for the length of the step. In the StepRuns it belongs to its part.
TablesInUse WriteTables(const StepBatch& batch, const LayerSpec& layer, int block_tokens,
                        const std::vector<SlotState>& slots, const StepShape& shape,
                        const StepName& name, const TableLayout& host);

// Writes masks into the rows of `host` from `first_row` on.
void WriteMasks(std::span<const TokenMask> masks, int first_row, const TableLayout& host);

// The sampler's arguments for a step whose logits a Forward has left in `buffers`. `results` has
// the results of all steps in flight.
SampleArgs SampleArgsOf(const TableLayout& tables, const StepShape& shape,
                        const ForwardBuffers& buffers, const ModelSpec& spec, int block_tokens,
                        DrawResult* results);

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_STEP_TABLES_H_
