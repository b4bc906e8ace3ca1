// A step's description on its way from the engine's batch to the kernels: written by the host into
// pinned memory, copied to VRAM as one piece.
#ifndef ORCD_CUDA_STEP_TABLES_H_
#define ORCD_CUDA_STEP_TABLES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/forward.h"
#include "cuda/kernels/sample.h"
#include "cuda/kernels/step.h"
#include "runtime/backend.h"
#include "runtime/sampling/params.h"

namespace orcd::cuda {

// Steps that are enqueued and not yet waited for, each with tables of its own.
inline constexpr int kMaxInFlight = 2;

// What a step has most of.
struct StepLimits {
  int max_tokens = 0;
  int max_seqs = 0;
  // KV blocks of all sequences together, and logit biases and forbidden tokens of all of them.
  int64_t max_blocks = 0;
  int64_t max_biases = 0;
  int64_t max_forbidden = 0;
};

// Where the tables of a step of some shape lie in a piece of memory, the host's or the GPU's. What
// all steps of a shape have begins at the same places, so that a graph can refer to them.
struct TableLayout {
  // With null `memory` only `bytes` is set.
  TableLayout(const StepShape& shape, const StepLimits& limits, uint8_t* memory);

  // What kernels read.
  StepTables tables() const;

  TokenEntry* tokens;        // [shape.tokens]
  SequenceEntry* sequences;  // [shape.sequences]
  DrawEntry* draws;          // [shape.logit_rows]
  int32_t* logit_tokens;     // [shape.logit_rows]
  // A step uses few of these; they come last, so that no more need be copied.
  int32_t* blocks;
  LogitBias* biases;
  int32_t* forbidden;
  size_t bytes;
};

// What the tables of a step take, at most.
size_t TableBytes(const StepLimits& limits);

// What a backend keeps of a sequence between steps.
struct SlotState {
  SamplingParams params;
  int32_t prompt_tokens = 0;
};

// The shape of a batch itself.
StepShape ShapeOf(const StepBatch& batch, const ModelConfig& config);

// The numbers of sequences that decode steps are padded to, up to `max_seqs`.
std::vector<int> DecodeBuckets(int max_seqs);

// The shape of a decode step of `sequences` sequences.
StepShape DecodeShape(int sequences, const ModelConfig& config);

// Tiles of keys, of all sequences of a step together, that several blocks share at most.
int MaxSplitKeyTiles(const ModelConfig& config, int max_seqs, int max_context);

// Which step it is, and where its results go.
struct StepName {
  uint32_t number = 0;
  int first_result = 0;
};

// Writes a batch into `host`; entries of the shape that the batch has not are marked as such.
// Returns how many bytes of the layout are in use.
size_t WriteTables(const StepBatch& batch, const ModelConfig& config, int block_tokens,
                   const std::vector<SlotState>& slots, const StepShape& shape,
                   const StepName& name, const TableLayout& host);

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_STEP_TABLES_H_
