// The loops that take most of the time, compiled once per instruction set and chosen when the
// program starts. Sums run in the same order in all of them; instruction sets with a fused
// multiply-add round once, others twice.
#ifndef ORCD_RUNTIME_CPU_KERNELS_H_
#define ORCD_RUNTIME_CPU_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/gguf/block_formats.h"

namespace orcd::cpu {

// Columns that the matrix product sums at a time; see MatMul.
inline constexpr int64_t kPanelCols = 1024;
// Positions whose keys lie side by side; a KV block is a whole number of such groups.
inline constexpr int kKvGroup = 16;
// Groups, and positions, that attention takes at a time.
inline constexpr int kAttendGroups = 8;
inline constexpr int kAttendTile = kAttendGroups * kKvGroup;
// Query heads that attention takes at a time.
inline constexpr int kAttendHeads = 16;

// y[i, r] = or += sum over cols of weights[r, c] * x[i, c]. Strides in floats.
struct MultiplyArgs {
  const float* weights;  // [weight_rows, cols]
  int64_t weight_stride;
  int64_t weight_rows;
  const float* x;  // [x_rows, cols]
  int64_t x_stride;
  int64_t x_rows;
  int64_t cols;
  float* y;  // [x_rows, weight_rows]
  int64_t y_stride;
  bool accumulate;
};

// One query position, one key-value head and query heads that share it, over one tile.
struct AttendArgs {
  const float* q;  // [heads, head_dim]
  int heads;       // [1, kAttendHeads]
  int head_dim;
  int padded_head_dim;  // head_dim rounded up to 16
  float scale;          // of the scores
  float softcap;        // if above 0, a score s becomes softcap * tanh(s / softcap)
  int groups;           // [1, kAttendGroups]
  // For each group: keys [head_dim, 16], values [16, padded_head_dim], and those of the 16
  // positions that are attended to, [first, end) (at least one). Halves or floats.
  const void* keys[kAttendGroups];
  const void* values[kAttendGroups];
  int first[kAttendGroups];
  int end[kAttendGroups];
  // The running softmax of each head: greatest score so far, sum of weights relative to it, and
  // weighted sum of values. The initial values are -infinity, 0 and zeros, or a sink, 1 and zeros.
  float* max;  // [heads]
  float* sum;  // [heads]
  float* out;  // [heads, padded_head_dim]
};

// A value head of a delta net (DeltaNetSpec) and consecutive tokens of a sequence. Strides are
// between tokens, in floats.
struct DeltaArgs {
  float* state;  // [head_dim of keys, head_dim of values]; that after the last token is written
  int head_dim;  // a multiple of 16
  int64_t tokens;
  const float* q;  // [tokens, head_dim], as the next two
  const float* k;
  const float* v;
  int64_t stride;
  const float* decay;  // [tokens], as the next
  const float* beta;
  int64_t factor_stride;
  float* out;  // [tokens, head_dim]
  int64_t out_stride;
};

// The causal convolution of a delta net for one token: out = silu(sum over taps of weights[tap] *
// inputs[tap]).
struct ConvolveArgs {
  const float* weights;        // [taps, channels]
  const float* const* inputs;  // [taps], each [channels], the oldest token's first
  int taps;
  int64_t channels;  // a multiple of 16
  float* out;        // [channels]
};

struct KernelTable {
  // Name of the instruction set: `avx512`, `avx2`, `baseline`.
  const char* name;
  // As orcd::Dequantize, bit for bit.
  void (*dequantize)(TensorType type, const std::byte* src, int64_t count, float* dst);
  void (*multiply)(const MultiplyArgs& args);
  // The sum over cols of weights[c] * x[c], bit for bit as `multiply` computes it from the values
  // that `dequantize` stores, but without storing them. Cols are a multiple of 16.
  float (*dot)(TensorType type, const std::byte* weights, const float* x, int64_t cols);
  void (*attend_f16)(const AttendArgs& args);
  void (*attend_f32)(const AttendArgs& args);
  // gate = activation(gate) * up.
  void (*silu_multiply)(const float* up, int64_t count, float* gate);
  void (*gelu_multiply)(const float* up, int64_t count, float* gate);
  // gate = g * sigmoid(1.702 g) * (u + 1), with g and u as Activation::kClampedSwiglu clamps them.
  void (*clamped_swiglu_multiply)(const float* up, int64_t count, float* gate);
  // gate = sigmoid(gate) * up.
  void (*sigmoid_multiply)(const float* up, int64_t count, float* gate);
  void (*advance_delta_state)(const DeltaArgs& args);
  void (*convolve)(const ConvolveArgs& args);
};

// The fastest kernels that this processor can run.
const KernelTable& BestKernels();

// All kernels that this processor can run, fastest first. For tests.
std::span<const KernelTable* const> SupportedKernels();

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_KERNELS_H_
