#include "runtime/cpu/forward.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/cpu/rows.h"
#include "runtime/model/rope.h"

namespace orcd::cpu {
namespace {

using enum TapPoint;

// Rows that one task of the small operations takes.
constexpr int64_t kRowsPerTask = 4;
// Buffers begin at cache lines.
constexpr int64_t kAlignFloats = 16;

// Hands out consecutive aligned parts of a memory. If that is null, it only counts.
class Carver {
 public:
  explicit Carver(float* memory) : memory_(memory) {}

  float* Take(int64_t rows, int64_t cols) {
    float* part = memory_ == nullptr ? nullptr : memory_ + taken_;
    taken_ += (rows * cols + kAlignFloats - 1) / kAlignFloats * kAlignFloats;
    return part;
  }
  int64_t taken() const { return taken_; }

 private:
  float* memory_;
  int64_t taken_ = 0;
};

// The layers' specs, each once, in the order in which they first appear.
std::vector<RopeSpec> DistinctRopes(const ModelSpec& spec) {
  std::vector<RopeSpec> ropes;
  for (const LayerSpec& layer : spec.layers) {
    if (std::ranges::find(ropes, layer.rope) == ropes.end()) ropes.push_back(layer.rope);
  }
  return ropes;
}

}  // namespace

ForwardBuffers::ForwardBuffers(const ModelSpec& spec, const ForwardLimits& limits, float* memory) {
  Carver carver(memory);
  const int64_t rows = limits.step_tokens;
  // Sizes of attention are the same in all layers.
  const LayerSpec& layer = spec.layers[0];
  const FfnSizes ffn_sizes(spec);
  const DeltaSizes delta_sizes(spec);
  residual = carver.Take(rows, spec.hidden);
  normed = carver.Take(rows, spec.hidden);
  q = carver.Take(rows, layer.q_size());
  k = carver.Take(rows, layer.kv_size());
  v = carver.Take(rows, layer.kv_size());
  attention = carver.Take(rows, layer.q_size());
  q_gated = carver.Take(rows, layer.gated_attention ? layer.q_rows() : 0);
  gate = carver.Take(rows, layer.gated_attention ? layer.q_size() : 0);
  block_out = carver.Take(rows, spec.hidden);
  delta.qkv = carver.Take(rows, delta_sizes.channels);
  delta.convolved = carver.Take(rows, delta_sizes.channels);
  delta.gate = carver.Take(rows, delta_sizes.values);
  delta.out = carver.Take(rows, delta_sizes.values);
  delta.raw_factors = carver.Take(rows, delta_sizes.factors);
  delta.factors = carver.Take(rows, delta_sizes.factors);
  delta.drafts = carver.Take(limits.drafts, delta_sizes.draft);
  ffn.gate = carver.Take(rows, ffn_sizes.gate);
  ffn.up = carver.Take(rows, ffn_sizes.gate);
  ffn.router = carver.Take(rows, ffn_sizes.router);
  ffn.expert_rows = carver.Take(rows, ffn_sizes.expert_rows);
  angles = carver.Take(rows, std::ssize(DistinctRopes(spec)) * layer.head_dim);
  head_in = carver.Take(limits.logit_rows, spec.hidden);
  logits = carver.Take(limits.logit_rows, spec.vocab);
  floats = carver.taken();
}

absl::StatusOr<std::unique_ptr<Forward>> Forward::Create(const ModelSpec& spec,
                                                         const ModelWeights& weights,
                                                         const KernelTable& kernels,
                                                         ThreadPool& pool, KvCaches& caches,
                                                         const ForwardLimits& limits) {
  ORCD_ASSIGN_OR_RETURN(MappedMemory memory,
                        MappedMemory::Create(ActivationBytes(spec, limits), "activations"));
  return std::unique_ptr<Forward>(
      new Forward(spec, weights, kernels, pool, caches, limits, std::move(memory)));
}

uint64_t Forward::ActivationBytes(const ModelSpec& spec, const ForwardLimits& limits) {
  return ForwardBuffers(spec, limits, nullptr).floats * sizeof(float);
}

Forward::Forward(const ModelSpec& spec, const ModelWeights& weights, const KernelTable& kernels,
                 ThreadPool& pool, KvCaches& caches, const ForwardLimits& limits,
                 MappedMemory memory)
    : spec_(spec),
      weights_(weights),
      kernels_(kernels),
      pool_(pool),
      caches_(caches),
      memory_(std::move(memory)),
      buffers_(spec, limits, reinterpret_cast<float*>(memory_.bytes().data())),
      matmul_(kernels, pool),
      attention_(kernels, pool, spec, caches, limits.step_tokens, limits.seqs),
      delta_nets_(kernels, pool, matmul_, spec, weights, buffers_.delta, limits.step_tokens,
                  limits.seqs),
      ffn_(kernels, pool, matmul_, spec, weights, buffers_.ffn, limits.step_tokens) {
  const std::vector<RopeSpec> ropes = DistinctRopes(spec);
  for (const RopeSpec& rope : ropes) {
    ropes_.emplace_back(rope, RopeFrequencies(rope, weights, limits.context));
  }
  for (const LayerSpec& layer : spec.layers) {
    rope_of_layer_.push_back(std::ranges::find(ropes, layer.rope) - ropes.begin());
  }
  kv_rows_.reserve(limits.step_tokens);
  attention_rows_.reserve(limits.seqs);
  delta_rows_.reserve(limits.seqs);
}

uint64_t Forward::workspace_bytes() const {
  return memory_.bytes().size() + matmul_.workspace_bytes() + attention_.workspace_bytes() +
         delta_nets_.workspace_bytes() + ffn_.workspace_bytes();
}

std::span<float> Forward::activations() {
  return {reinterpret_cast<float*>(memory_.bytes().data()), static_cast<size_t>(buffers_.floats)};
}

void Forward::Run(std::span<const ForwardSequence> sequences, ActivationTap* tap) {
  Plan(sequences);
  Embed(sequences);
  Tap(tap, kEmbed, -1, buffers_.residual, rows_, spec_.hidden);
  for (int layer = 0; layer < spec_.num_layers(); ++layer) {
    RunMixer(layer, tap);
    RunFfn(layer, tap);
  }
  if (tap != nullptr) TapHead(*tap);
}

void Forward::RunLayer(std::span<const ForwardSequence> sequences, int layer,
                       std::span<const float> input, ActivationTap* tap) {
  Plan(sequences);
  if (input.empty()) {
    Embed(sequences);
    Tap(tap, kEmbed, -1, buffers_.residual, rows_, spec_.hidden);
  } else {
    std::copy(input.begin(), input.end(), buffers_.residual);
  }
  RunMixer(layer, tap);
  RunFfn(layer, tap);
}

void Forward::StoreLayer(std::span<const ForwardSequence> sequences, int layer,
                         std::span<const float> input) {
  const LayerSpec& spec = spec_.layers[layer];
  const LayerWeights& w = weights_.layers[layer];
  const ForwardBuffers& b = buffers_;
  Plan(sequences);
  const float* from = input.data();
  if (spec.form != LayerForm::kPostNorm) {
    Norm(w.attn_norm, from, rows_, b.normed);
    from = b.normed;
  }
  const Product products[] = {{&w.attn_k, w.attn_k_bias, from, rows_, b.k},
                              {&w.attn_v, w.attn_v_bias, from, rows_, b.v}};
  matmul_.Run(products);
  ForRows(rows_, [&](int64_t row) {
    if (spec.qk_norm != QkNorm::kNone) {
      RmsNormParts(w.attn_k_norm, spec_.norm_eps, Row(b.k, row, spec.kv_size()));
    }
    StoreRow(layer, row);
  });
}

void Forward::RunHeadOn(std::span<const float> input, ActivationTap& tap) {
  rows_ = 1;
  std::copy(input.begin(), input.end(), buffers_.residual);
  TapHead(tap);
}

void Forward::Plan(std::span<const ForwardSequence> sequences) {
  const int block_tokens = caches_.whole.shape().block_tokens;
  const bool windows = caches_.windows.has_value();
  kv_rows_.clear();
  attention_rows_.clear();
  delta_rows_.clear();
  for (const ForwardSequence& sequence : sequences) {
    attention_rows_.push_back({.first_row = static_cast<int64_t>(kv_rows_.size()),
                               .rows = static_cast<int64_t>(sequence.tokens.size()),
                               .first_position = sequence.first_position,
                               .blocks = sequence.blocks,
                               .first_key = sequence.first_key});
    delta_rows_.push_back({.first_row = static_cast<int64_t>(kv_rows_.size()),
                           .rows = static_cast<int64_t>(sequence.tokens.size()),
                           .drafts = sequence.drafts,
                           .begins = sequence.first_position == 0,
                           .state = sequence.state,
                           .saves = sequence.saves});
    for (size_t i = 0; i < sequence.tokens.size(); ++i) {
      const int64_t position = sequence.first_position + static_cast<int64_t>(i);
      const int64_t block = position / block_tokens;
      kv_rows_.push_back({.position = position,
                          .block = sequence.blocks.whole[block],
                          .window_block = windows ? sequence.blocks.windows[block] : kNoBlock,
                          .row = static_cast<int>(position % block_tokens),
                          .finite = true});
    }
  }
  rows_ = static_cast<int64_t>(kv_rows_.size());
  attention_.Plan(attention_rows_);
  if (spec_.recurrent()) delta_nets_.Plan(delta_rows_);
  ForRows(rows_, [&](int64_t row) {
    for (size_t rope = 0; rope < ropes_.size(); ++rope) {
      ropes_[rope].Angles(kv_rows_[row].position, Angles(row, rope));
    }
  });
}

int64_t Forward::FiniteRows(size_t sequence) const {
  const auto first = kv_rows_.begin() + attention_rows_[sequence].first_row;
  return std::find_if_not(first, first + attention_rows_[sequence].rows,
                          [](const KvRow& row) { return row.finite; }) -
         first;
}

void Forward::ForRows(int64_t rows, absl::FunctionRef<void(int64_t row)> body) {
  const int64_t tasks = (rows + kRowsPerTask - 1) / kRowsPerTask;
  pool_.ParallelFor(tasks, [&](int64_t task, int) {
    const int64_t end = std::min(rows, (task + 1) * kRowsPerTask);
    for (int64_t row = task * kRowsPerTask; row < end; ++row) body(row);
  });
}

void Forward::Embed(std::span<const ForwardSequence> sequences) {
  float* out = buffers_.residual;
  for (const ForwardSequence& sequence : sequences) {
    for (int32_t token : sequence.tokens) {
      const Matrix& embedding = weights_.token_embd;
      kernels_.dequantize(embedding.type, embedding.row(token), spec_.hidden, out);
      out += spec_.hidden;
    }
  }
  ForRows(rows_, [&](int64_t row) {
    Scale(spec_.embedding_scale, Row(buffers_.residual, row, spec_.hidden));
  });
}

std::span<float> Forward::Angles(int64_t row, size_t rope) {
  const int64_t index = row * std::ssize(ropes_) + static_cast<int64_t>(rope);
  return Row(buffers_.angles, index, spec_.layers[0].head_dim);
}

void Forward::NormRow(Vector weight, std::span<const float> x, std::span<float> y) const {
  if (spec_.norm == NormKind::kRms) {
    RmsNorm(x, weight, spec_.norm_eps, y);
  } else {
    LayerNorm(x, weight, spec_.norm_eps, y);
  }
}

void Forward::Norm(Vector weight, const float* x, int64_t rows, float* y) {
  ForRows(rows, [&](int64_t row) {
    NormRow(weight, Row(x, row, spec_.hidden), Row(y, row, spec_.hidden));
  });
}

void Forward::AddToResidual(int layer, Vector post_norm, TapPoint post_norm_point,
                            ActivationTap* tap) {
  const ForwardBuffers& b = buffers_;
  if (spec_.layers[layer].post_norms) {
    Norm(post_norm, b.block_out, rows_, b.block_out);
    Tap(tap, post_norm_point, layer, b.block_out, rows_, spec_.hidden);
  }
  ForRows(rows_, [&](int64_t row) {
    AddScaled(Row(b.block_out, row, spec_.hidden), spec_.residual_scale,
              Row(b.residual, row, spec_.hidden));
  });
}

void Forward::RotateQueries(int layer, int64_t row) {
  const LayerSpec& spec = spec_.layers[layer];
  const size_t rope = rope_of_layer_[layer];
  const auto q = Row(buffers_.q, row, spec.q_size());
  ropes_[rope].Rotate(Angles(row, rope), spec.head_dim, q);
  if (spec.temperature > 0) Scale(QueryScale(spec, kv_rows_[row].position), q);
}

void Forward::StoreRow(int layer, int64_t row) {
  const LayerSpec& spec = spec_.layers[layer];
  const size_t rope = rope_of_layer_[layer];
  const auto k = Row(buffers_.k, row, spec.kv_size());
  ropes_[rope].Rotate(Angles(row, rope), spec.head_dim, k);
  KvRow& kv = kv_rows_[row];
  const int32_t block = spec.window == 0 ? kv.block : kv.window_block;
  kv.finite &=
      caches_.of(spec).Store(layer, block, kv.row, k, Row(buffers_.v, row, spec.kv_size()));
}

void Forward::RunMixer(int layer, ActivationTap* tap) {
  const LayerSpec& spec = spec_.layers[layer];
  const LayerWeights& w = weights_.layers[layer];
  const ForwardBuffers& b = buffers_;
  const float* input = b.residual;
  if (spec.form != LayerForm::kPostNorm) {
    Norm(w.attn_norm, b.residual, rows_, b.normed);
    Tap(tap, kAttnNorm, layer, b.normed, rows_, spec_.hidden);
    input = b.normed;
  }
  if (spec.recurrent()) {
    RunDeltaNet(layer, input, tap);
  } else {
    RunAttention(layer, input, tap);
  }
  Tap(tap, kAttnOutput, layer, b.block_out, rows_, spec_.hidden);
  AddToResidual(layer, w.attn_post_norm, kAttnPostNorm, tap);
  Tap(tap, kAttnResidual, layer, b.residual, rows_, spec_.hidden);
}

void Forward::RunDeltaNet(int layer, const float* input, ActivationTap* tap) {
  delta_nets_.Run(layer, input, rows_, buffers_.block_out, tap);
  ForRows(rows_, [&](int64_t row) { kv_rows_[row].finite &= delta_nets_.IsFinite(layer, row); });
}

void Forward::Project(int layer, const float* input) {
  const LayerSpec& spec = spec_.layers[layer];
  const LayerWeights& w = weights_.layers[layer];
  const ForwardBuffers& b = buffers_;
  float* const q = spec.gated_attention ? b.q_gated : b.q;
  const Product inputs[] = {{&w.attn_q, w.attn_q_bias, input, rows_, q},
                            {&w.attn_k, w.attn_k_bias, input, rows_, b.k},
                            {&w.attn_v, w.attn_v_bias, input, rows_, b.v}};
  matmul_.Run(inputs);
  if (!spec.gated_attention) return;
  ForRows(rows_, [&](int64_t row) {
    for (int64_t head = row * spec.heads; head < (row + 1) * spec.heads; ++head) {
      const float* const from = b.q_gated + head * 2 * spec.head_dim;
      std::copy_n(from, spec.head_dim, b.q + head * spec.head_dim);
      std::copy_n(from + spec.head_dim, spec.head_dim, b.gate + head * spec.head_dim);
    }
  });
}

void Forward::RunAttention(int layer, const float* input, ActivationTap* tap) {
  const LayerSpec& spec = spec_.layers[layer];
  const LayerWeights& w = weights_.layers[layer];
  const ForwardBuffers& b = buffers_;
  const int q_size = spec.q_size();
  const int kv_size = spec.kv_size();

  Project(layer, input);
  Tap(tap, kQ, layer, b.q, rows_, q_size);
  Tap(tap, kK, layer, b.k, rows_, kv_size);
  Tap(tap, kV, layer, b.v, rows_, kv_size);

  if (spec.qk_norm != QkNorm::kNone) {
    ForRows(rows_, [&](int64_t row) {
      RmsNormParts(w.attn_q_norm, spec_.norm_eps, Row(b.q, row, q_size));
      RmsNormParts(w.attn_k_norm, spec_.norm_eps, Row(b.k, row, kv_size));
    });
    Tap(tap, kQNorm, layer, b.q, rows_, q_size);
    Tap(tap, kKNorm, layer, b.k, rows_, kv_size);
  }

  ForRows(rows_, [&](int64_t row) {
    RotateQueries(layer, row);
    StoreRow(layer, row);
  });
  Tap(tap, kQRope, layer, b.q, rows_, q_size);
  Tap(tap, kKRope, layer, b.k, rows_, kv_size);

  attention_.Run(layer, w.attn_sinks, b.q, b.attention);
  Tap(tap, kAttn, layer, b.attention, rows_, q_size);

  const float* heads = b.attention;
  if (spec.gated_attention) {
    ForRows(rows_, [&](int64_t row) {
      kernels_.sigmoid_multiply(b.attention + row * q_size, q_size, b.gate + row * q_size);
    });
    Tap(tap, kAttnGated, layer, b.gate, rows_, q_size);
    heads = b.gate;
  }
  const Product output = {&w.attn_output, w.attn_output_bias, heads, rows_, b.block_out};
  matmul_.Run({&output, 1});
}

void Forward::RunFfn(int layer, ActivationTap* tap) {
  const LayerSpec& spec = spec_.layers[layer];
  const LayerWeights& w = weights_.layers[layer];
  const ForwardBuffers& b = buffers_;

  // A parallel FFN takes what attention took.
  const float* const input = spec.form == LayerForm::kPostNorm ? b.residual : b.normed;
  if (spec.form == LayerForm::kPreNorm) {
    Norm(w.ffn_norm, b.residual, rows_, b.normed);
    Tap(tap, kFfnNorm, layer, b.normed, rows_, spec_.hidden);
  }

  ffn_.Run(layer, input, rows_, b.block_out, tap);
  Tap(tap, kFfnDown, layer, b.block_out, rows_, spec_.hidden);

  AddToResidual(layer, w.ffn_post_norm, kFfnPostNorm, tap);
  Tap(tap, kLayer, layer, b.residual, rows_, spec_.hidden);
}

void Forward::Logits(const float* normed, int64_t rows, float* logits) {
  const Product head = {&weights_.output, {}, normed, rows, logits};
  matmul_.Run({&head, 1});
  ForRows(rows, [&](int64_t row) {
    const auto of_row = Row(logits, row, spec_.vocab);
    Scale(spec_.logit_scale, of_row);
    if (spec_.logit_softcap > 0) SoftCap(spec_.logit_softcap, of_row);
  });
}

void Forward::HeadInputs(std::span<const int64_t> rows, float* out) {
  ForRows(std::ssize(rows), [&](int64_t i) {
    NormRow(weights_.output_norm, Row(buffers_.residual, rows[i], spec_.hidden),
            Row(out, i, spec_.hidden));
  });
}

std::span<const float> Forward::LogitsOfRows(std::span<const int64_t> rows) {
  const int64_t count = std::ssize(rows);
  HeadInputs(rows, buffers_.head_in);
  Logits(buffers_.head_in, count, buffers_.logits);
  return {buffers_.logits, static_cast<size_t>(count * spec_.vocab)};
}

void Forward::TapHead(ActivationTap& tap) {
  Norm(weights_.output_norm, buffers_.residual, rows_, buffers_.normed);
  Tap(&tap, kOutputNorm, -1, buffers_.normed, rows_, spec_.hidden);
  std::vector<float> logits(rows_ * spec_.vocab);
  Logits(buffers_.normed, rows_, logits.data());
  Tap(&tap, kLogits, -1, logits.data(), rows_, spec_.vocab);
}

}  // namespace orcd::cpu
