#include "runtime/cpu/delta_nets.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <utility>

#include "runtime/cpu/ops.h"
#include "runtime/cpu/rows.h"

namespace orcd::cpu {
namespace {

using enum TapPoint;

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double Softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

// Floats that a layer keeps of a draft.
int64_t DraftFloats(const DeltaNetSpec& spec) {
  return int64_t{spec.channels()} + 2 * int64_t{spec.value_heads};
}

// Writes to `state` the last `keep` of the rows of `before`, [keep, size], and of `count` further
// ones, `stride` floats from one to the next. `before` may be `state`.
void KeepLast(int64_t keep, int64_t size, const float* before, const float* rows, int64_t count,
              int64_t stride, float* state) {
  for (int64_t i = 0; i < keep; ++i) {
    const int64_t from = count + i;
    const float* const row = from < keep ? before + from * size : rows + (from - keep) * stride;
    if (row != state + i * size) std::copy_n(row, size, state + i * size);
  }
}

}  // namespace

DeltaSizes::DeltaSizes(const ModelSpec& spec) {
  for (const LayerSpec& layer : spec.layers) {
    if (!layer.recurrent()) continue;
    channels = std::max(channels, int64_t{layer.delta.channels()});
    values = std::max(values, int64_t{layer.delta.value_size()});
    factors = std::max(factors, 2 * int64_t{layer.delta.value_heads});
    draft += DraftFloats(layer.delta);
  }
}

DeltaNets::DeltaNets(const KernelTable& kernels, ThreadPool& pool, MatMul& matmul,
                     const ModelSpec& spec, const ModelWeights& weights,
                     const DeltaBuffers& buffers, int max_rows, int max_seqs)
    : kernels_(kernels),
      pool_(pool),
      matmul_(matmul),
      spec_(spec),
      weights_(weights),
      buffers_(buffers),
      draft_floats_(DeltaSizes(spec).draft),
      nets_(spec.layers.size()) {
  int64_t state_offset = 0;
  int64_t draft_offset = 0;
  int64_t fused = 0;
  for (int i = 0; i < spec.num_layers(); ++i) {
    const DeltaNetSpec& delta = SpecOf(i);
    if (!spec.layers[i].recurrent()) continue;
    const DeltaNetWeights& w = weights.layers[i].delta;
    Net& net = nets_[i];
    net.state_offset = state_offset;
    net.draft_offset = draft_offset;
    state_offset += delta.state_floats();
    draft_offset += DraftFloats(delta);
    const int64_t channels = delta.channels();
    net.conv.resize(delta.conv * channels);
    std::array<float, kMaxConvolution> taps;
    for (int64_t c = 0; c < channels; ++c) {
      kernels.dequantize(w.conv.type, w.conv.row(c), delta.conv, taps.data());
      for (int tap = 0; tap < delta.conv; ++tap) net.conv[tap * channels + c] = taps[tap];
    }
    const int64_t size = delta.head_dim;
    scratch_floats_ = std::max(scratch_floats_, size * size);
    if (w.qkv_gate.data != nullptr) fused = std::max(fused, w.qkv_gate.rows);
  }
  scratch_.resize(pool.threads() * scratch_floats_);
  fused_.resize(max_rows * fused);
  sequences_.reserve(max_seqs);
  first_drafts_.reserve(max_seqs);
  if (state_offset > 0) sequence_of_row_.reserve(max_rows);
}

uint64_t DeltaNets::workspace_bytes() const {
  uint64_t floats = scratch_.size() + fused_.size();
  for (const Net& net : nets_) floats += net.conv.size();
  return floats * sizeof(float) + sequence_of_row_.capacity() * sizeof(int32_t);
}

void DeltaNets::Plan(std::span<const DeltaRows> sequences) {
  sequences_.assign(sequences.begin(), sequences.end());
  first_drafts_.clear();
  sequence_of_row_.clear();
  int64_t drafts = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    first_drafts_.push_back(drafts);
    drafts += sequences[i].drafts;
    sequence_of_row_.insert(sequence_of_row_.end(), sequences[i].rows, static_cast<int32_t>(i));
  }
}

float* DeltaNets::ConvState(int layer, std::span<float> state) const {
  return state.data() + nets_[layer].state_offset;
}

float* DeltaNets::MatrixOf(int layer, std::span<float> state, int64_t value_head) const {
  const DeltaNetSpec& spec = SpecOf(layer);
  return ConvState(layer, state) + spec.conv_floats() +
         value_head * int64_t{spec.head_dim} * spec.head_dim;
}

DeltaNets::DraftRow DeltaNets::KeptDraft(int layer, int64_t draft) const {
  float* const row = buffers_.drafts + draft * draft_floats_ + nets_[layer].draft_offset;
  return {.qkv = row, .factors = row + SpecOf(layer).channels()};
}

void DeltaNets::Run(int layer, const float* x, int64_t rows, float* out, ActivationTap* tap) {
  const DeltaNetSpec& spec = SpecOf(layer);
  const DeltaNetWeights& w = weights_.layers[layer].delta;
  const DeltaBuffers& b = buffers_;
  const int64_t values = spec.value_size();
  Project(layer, x, rows);
  Tap(tap, kDeltaQkv, layer, b.qkv, rows, spec.channels());
  for (const DeltaRows& sequence : sequences_) {
    if (sequence.begins) std::fill_n(ConvState(layer, sequence.state), spec.conv_floats(), 0.0f);
  }
  pool_.ParallelFor(rows, [&](int64_t row, int) {
    const DeltaRows& sequence = sequences_[sequence_of_row_[row]];
    Convolve(layer, ConvState(layer, sequence.state), b.qkv + sequence.first_row * spec.channels(),
             spec.channels(), row - sequence.first_row, b.convolved + row * spec.channels());
    ComputeFactors(layer, row, rows);
  });
  Tap(tap, kDeltaConv, layer, b.convolved, rows, spec.channels());
  Tap(tap, kDeltaFactors, layer, b.factors, rows, 2 * int64_t{spec.value_heads});
  AdvanceStates(layer);
  Tap(tap, kDeltaOut, layer, b.out, rows, values);
  pool_.ParallelFor(rows, [&](int64_t row, int) {
    const std::span<float> of_row = Row(b.out, row, values);
    RmsNormParts(w.norm, spec_.norm_eps, of_row);
    kernels_.silu_multiply(of_row.data(), values, Row(b.gate, row, values).data());
  });
  Tap(tap, kDeltaGated, layer, b.gate, rows, values);
  const Product output = {&w.output, {}, b.gate, rows, out};
  matmul_.Run({&output, 1});
}

bool DeltaNets::IsFinite(int layer, int64_t row) const {
  const DeltaNetSpec& spec = SpecOf(layer);
  // A result of a head holds a sum over each element of its state.
  return AllFinite(Row(buffers_.qkv, row, spec.channels())) &&
         AllFinite(Row(buffers_.out, row, spec.value_size()));
}

void DeltaNets::Project(int layer, const float* x, int64_t rows) {
  const DeltaNetSpec& spec = SpecOf(layer);
  const DeltaNetWeights& w = weights_.layers[layer].delta;
  const DeltaBuffers& b = buffers_;
  const bool fused_inputs = w.qkv_gate.data != nullptr;
  const bool fused_factors = w.beta_alpha.data != nullptr;
  std::array<Product, 4> products;
  size_t count = 0;
  if (fused_inputs) {
    products[count++] = {&w.qkv_gate, {}, x, rows, fused_.data()};
  } else {
    products[count++] = {&w.qkv, {}, x, rows, b.qkv};
    products[count++] = {&w.gate, {}, x, rows, b.gate};
  }
  if (fused_factors) {
    products[count++] = {&w.beta_alpha, {}, x, rows, b.raw_factors};
  } else {
    products[count++] = {&w.beta, {}, x, rows, b.raw_factors};
    products[count++] = {&w.alpha, {}, x, rows, b.raw_factors + rows * spec.value_heads};
  }
  matmul_.Run(std::span(products).first(count));
  if (fused_inputs) {
    pool_.ParallelFor(rows, [&](int64_t row, int) { SplitInputs(layer, row); });
  }
}

void DeltaNets::SplitInputs(int layer, int64_t row) {
  const DeltaNetSpec& spec = SpecOf(layer);
  const int64_t size = spec.head_dim;
  const int64_t values = size * (spec.value_heads / spec.key_heads);
  const float* from = fused_.data() + row * (spec.channels() + spec.value_size());
  float* q = Row(buffers_.qkv, row, spec.channels()).data();
  float* k = q + spec.key_size();
  float* v = k + spec.key_size();
  float* gate = Row(buffers_.gate, row, spec.value_size()).data();
  for (int head = 0; head < spec.key_heads; ++head) {
    for (const auto& [to, count] :
         {std::pair{&q, size}, {&k, size}, {&v, values}, {&gate, values}}) {
      std::copy_n(from, count, *to);
      from += count;
      *to += count;
    }
  }
}

void DeltaNets::ComputeFactors(int layer, int64_t row, int64_t rows) {
  const DeltaNetSpec& spec = SpecOf(layer);
  const DeltaNetWeights& w = weights_.layers[layer].delta;
  const int64_t heads = spec.value_heads;
  const int64_t group = heads / spec.key_heads;
  const float* const raw = buffers_.raw_factors;
  const std::span<float> factors = Row(buffers_.factors, row, 2 * heads);
  for (int64_t head = 0; head < heads; ++head) {
    float beta, alpha;
    if (w.beta_alpha.data != nullptr) {
      const float* const of_group = raw + row * 2 * heads + head / group * 2 * group;
      beta = of_group[head % group];
      alpha = of_group[group + head % group];
    } else {
      beta = raw[row * heads + head];
      alpha = raw[(rows + row) * heads + head];
    }
    factors[head] = static_cast<float>(
        std::exp(double{w.a[head]} * Softplus(double{alpha} + double{w.dt_bias[head]})));
    factors[heads + head] = static_cast<float>(Sigmoid(beta));
  }
}

void DeltaNets::Convolve(int layer, const float* state, const float* qkv, int64_t stride,
                         int64_t row, float* out) {
  const DeltaNetSpec& spec = SpecOf(layer);
  const int64_t channels = spec.channels();
  std::array<const float*, kMaxConvolution> inputs;
  for (int tap = 0; tap < spec.conv; ++tap) {
    const int64_t index = row - (spec.conv - 1 - tap);
    inputs[tap] = index >= 0 ? qkv + index * stride : state + (spec.conv - 1 + index) * channels;
  }
  kernels_.convolve({.weights = nets_[layer].conv.data(),
                     .inputs = inputs.data(),
                     .taps = spec.conv,
                     .channels = channels,
                     .out = out});
  const size_t keys = spec.key_size();
  const float query_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(spec.head_dim)));
  NormalizeParts(spec.head_dim, spec_.norm_eps, query_scale, {out, keys});
  NormalizeParts(spec.head_dim, spec_.norm_eps, 1, {out + keys, keys});
}

DeltaArgs DeltaNets::ArgsOf(const DeltaNetSpec& spec, int64_t value_head, const float* convolved,
                            int64_t stride, const float* factors, int64_t factor_stride) {
  const float* const q =
      convolved + int64_t{spec.key_head_of(static_cast<int>(value_head))} * spec.head_dim;
  DeltaArgs args = {};
  args.head_dim = spec.head_dim;
  args.q = q;
  args.k = q + spec.key_size();
  args.v = convolved + 2 * int64_t{spec.key_size()} + value_head * spec.head_dim;
  args.stride = stride;
  args.decay = factors + value_head;
  args.beta = factors + spec.value_heads + value_head;
  args.factor_stride = factor_stride;
  return args;
}

void DeltaNets::AdvanceState(DeltaArgs& args, int64_t tokens) const {
  args.tokens = tokens;
  kernels_.advance_delta_state(args);
  args.q += tokens * args.stride;
  args.k += tokens * args.stride;
  args.v += tokens * args.stride;
  args.decay += tokens * args.factor_stride;
  args.beta += tokens * args.factor_stride;
  args.out += tokens * args.out_stride;
}

void DeltaNets::AdvanceStates(int layer) {
  const DeltaNetSpec& spec = SpecOf(layer);
  const int64_t heads = spec.value_heads;
  const int64_t channels = spec.channels();
  const int64_t values = spec.value_size();
  const int64_t matrix_floats = int64_t{spec.head_dim} * spec.head_dim;
  pool_.ParallelFor(std::ssize(sequences_) * heads, [&](int64_t index, int thread) {
    const DeltaRows& sequence = sequences_[index / heads];
    const int64_t head = index % heads;
    float* const matrix = MatrixOf(layer, sequence.state, head);
    if (sequence.begins) std::fill_n(matrix, matrix_floats, 0.0f);
    DeltaArgs args = ArgsOf(spec, head, buffers_.convolved + sequence.first_row * channels,
                            channels, buffers_.factors + sequence.first_row * 2 * heads, 2 * heads);
    args.state = matrix;
    args.out = buffers_.out + sequence.first_row * values + head * spec.head_dim;
    args.out_stride = values;
    const int64_t tokens = sequence.rows - sequence.drafts;
    int64_t done = 0;
    for (const SavedState& save : sequence.saves) {
      AdvanceState(args, save.tokens - done);
      std::copy_n(matrix, matrix_floats, MatrixOf(layer, save.state, head));
      done = save.tokens;
    }
    AdvanceState(args, tokens - done);
    if (sequence.drafts == 0) return;
    // Drafts may be wrong.
    args.state = scratch_.data() + thread * scratch_floats_;
    std::copy_n(matrix, matrix_floats, args.state);
    AdvanceState(args, sequence.drafts);
  });
  // The convolutions have read the states.
  pool_.ParallelFor(std::ssize(sequences_), [&](int64_t i, int) {
    const DeltaRows& sequence = sequences_[i];
    const int64_t tokens = sequence.rows - sequence.drafts;
    const float* const first = buffers_.qkv + sequence.first_row * channels;
    float* const state = ConvState(layer, sequence.state);
    for (const SavedState& save : sequence.saves) {
      KeepLast(spec.conv - 1, channels, state, first, save.tokens, channels,
               ConvState(layer, save.state));
    }
    KeepLast(spec.conv - 1, channels, state, first, tokens, channels, state);
    for (int64_t d = 0; d < sequence.drafts; ++d) {
      const DraftRow kept = KeptDraft(layer, first_drafts_[i] + d);
      const int64_t row = sequence.first_row + tokens + d;
      std::ranges::copy(Row(buffers_.qkv, row, channels), kept.qkv);
      std::ranges::copy(Row(buffers_.factors, row, 2 * heads), kept.factors);
    }
  });
}

void DeltaNets::Advance(size_t sequence, int64_t drafts) {
  if (drafts == 0) return;
  const DeltaRows& rows = sequences_[sequence];
  for (int layer = 0; layer < spec_.num_layers(); ++layer) {
    if (!spec_.layers[layer].recurrent()) continue;
    const DeltaNetSpec& spec = SpecOf(layer);
    const int64_t channels = spec.channels();
    const DraftRow first = KeptDraft(layer, first_drafts_[sequence]);
    float* const conv_state = ConvState(layer, rows.state);
    // Nothing of the step is in the buffers any more.
    pool_.ParallelFor(drafts, [&](int64_t row, int) {
      Convolve(layer, conv_state, first.qkv, draft_floats_, row,
               buffers_.convolved + row * channels);
    });
    pool_.ParallelFor(spec.value_heads, [&](int64_t head, int) {
      DeltaArgs args =
          ArgsOf(spec, head, buffers_.convolved, channels, first.factors, draft_floats_);
      args.state = MatrixOf(layer, rows.state, head);
      args.tokens = drafts;
      args.out = buffers_.out + head * spec.head_dim;
      args.out_stride = spec.value_size();
      kernels_.advance_delta_state(args);
    });
    KeepLast(spec.conv - 1, channels, conv_state, first.qkv, drafts, draft_floats_, conv_state);
  }
}

}  // namespace orcd::cpu
