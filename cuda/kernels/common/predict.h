// The launches of the block that predicts tokens (runtime/model/predict_block.h) beside those of a
// layer. Every Launch function is asynchronous on `stream` and runs on any GPU.
//
// The block follows the sequences in all slots. For each token of a step it gets a row, of the
// token and of the hidden state before it, whose keys and values lie at the token's position. The
// token that a step draws gets its row in the next step, as it is run; predictions that begin with
// it write that row and those behind it before, and nobody reads them until they are written again.
#ifndef ORCD_CUDA_KERNELS_COMMON_PREDICT_H_
#define ORCD_CUDA_KERNELS_COMMON_PREDICT_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/activations.h"
#include "cuda/kernels/common/delta_net.h"
#include "cuda/kernels/common/sample.h"
#include "cuda/kernels/common/step.h"
#include "cuda/kernels/common/tile_format.h"

namespace orcd::cuda {

// A step as the host launches it, and the tokens that it draws then.
struct StepDraws {
  StepTables step = {};
  StepRuns runs = {};
  const DrawEntry* draws = nullptr;      // [rows with logits]
  const int32_t* last_sample = nullptr;  // [slots]; a draft has one of its own
};

// Hidden states: what the model's head takes, or for further predictions what the block's own
// takes, before it becomes F16.
struct HiddenStates {
  // That of each slot's last position; null: see PredictInputsArgs.
  float* of_slots = nullptr;    // [slots, hidden]
  const float* rows = nullptr;  // [rows, hidden]
};

// The block's inputs: a row's pair is the norm of the embedding of its token, then the norm of the
// hidden state before it. Also clears the rows of the residual, to which the projection is added.
struct PredictInputsArgs {
  // With runs, the rows are the tokens of a step, whose ids are in the KV blocks. The hidden state
  // before the first token of a run is the slot's, or zeros if the sequence starts; that before
  // each other token is the row before. Without, a row is the one token of a sequence, and the
  // hidden state before it the slot's or, if of_slots are null, the row itself.
  StepTables step = {};
  StepRuns runs = {};
  const int32_t* block_token_ids = nullptr;
  int block_tokens = 0;
  HiddenStates states = {};
  TiledMatrix embedding = {};
  const float* embedding_norm = nullptr;  // [hidden]
  const float* hidden_norm = nullptr;     // [hidden]
  float eps = 0;
  // At most kMaxNormHidden.
  int hidden = 0;
  int tokens = 0;
  Activations pairs = {};     // [tokens, 2 * hidden]
  float* residual = nullptr;  // [tokens, hidden]
};
cudaError_t LaunchPredictInputs(const PredictInputsArgs& args, cudaStream_t stream);

// Keeps for each slot of the step the hidden state of the last position that is part of the
// sequence: that of the last of its tokens and of its drafts that were right.
struct KeepHiddenArgs {
  StepDraws of = {};
  // Their number, unused ones included.
  int runs = 0;
  // Copies from `rows` to `of_slots`.
  HiddenStates states = {};
  // A multiple of 4.
  int hidden = 0;
};
cudaError_t LaunchKeepHidden(const KeepHiddenArgs& args, cudaStream_t stream);

// A part of a step for which tokens are predicted.
struct PredictEntry {
  // Index among the step's runs.
  int32_t run;
  // Positions for which there is room: in its blocks, and in the model's context.
  int32_t room;
  // As SequenceEntry::first_block, and first_key_tile for the last of its predictions.
  int32_t first_block;
  int32_t first_key_tile;
};

// Writes tables of a step of one token a sequence: the draw of each entry, or the prediction that
// came last, at its position. An entry without room is unused.
struct PredictTokensArgs {
  StepDraws of = {};
  const PredictEntry* entries = nullptr;  // [count]
  int count = 0;
  // Predictions before this one, and the last of them.
  int before = 0;
  const int32_t* predicted = nullptr;  // [count]
  TokenEntry* tokens = nullptr;        // [count]
  SequenceEntry* sequences = nullptr;  // [count]
};
cudaError_t LaunchPredictTokens(const PredictTokensArgs& args, cudaStream_t stream);

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_PREDICT_H_
