#include "runtime/cpu/ffn.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "runtime/cpu/ops.h"
#include "runtime/cpu/rows.h"

namespace orcd::cpu {
namespace {

using GateMultiply = void (*)(const float* up, int64_t count, float* gate);

GateMultiply GateMultiplyOf(const KernelTable& kernels, Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return kernels.silu_multiply;
    case Activation::kGeluTanh:
      return kernels.gelu_multiply;
    case Activation::kClampedSwiglu:
      return kernels.clamped_swiglu_multiply;
  }
  return kernels.silu_multiply;
}

// Part `i` of a vector that is cut into parts of `size`, or empty if the vector is.
Vector Part(Vector parts, int64_t i, int64_t size) {
  return parts.empty() ? parts : parts.subspan(i * size, size);
}

// sigmoid(a . b), in F64.
float SigmoidOfDot(Vector a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * double{b[i]};
  return static_cast<float>(1 / (1 + std::exp(-sum)));
}

}  // namespace

FfnSizes::FfnSizes(const ModelSpec& spec) {
  for (const LayerSpec& layer : spec.layers) {
    const ExpertsSpec& experts = layer.experts;
    gate = std::max({gate, int64_t{layer.ffn}, int64_t{experts.shared_ffn},
                     int64_t{experts.used} * experts.ffn});
    router = std::max(router, int64_t{experts.count});
    expert_rows = std::max(expert_rows, int64_t{experts.used} * spec.hidden);
  }
}

Ffn::Ffn(const KernelTable& kernels, ThreadPool& pool, MatMul& matmul, const ModelSpec& spec,
         const ModelWeights& weights, const FfnBuffers& buffers, int max_rows)
    : kernels_(kernels),
      pool_(pool),
      matmul_(matmul),
      spec_(spec),
      weights_(weights),
      buffers_(buffers) {
  int64_t experts = 0;
  int64_t choices = 0;
  for (const LayerSpec& layer : spec.layers) {
    experts = std::max(experts, int64_t{layer.experts.count});
    choices = std::max(choices, int64_t{layer.experts.used} * max_rows);
  }
  chosen_.reserve(choices);
  places_.reserve(choices);
  starts_.reserve(experts + 1);
  products_.reserve(std::max<int64_t>(2, 2 * std::min(experts, choices)));
}

uint64_t Ffn::workspace_bytes() const {
  return chosen_.capacity() * sizeof(ChosenExpert) +
         (places_.capacity() + starts_.capacity()) * sizeof(int32_t) +
         products_.capacity() * sizeof(Product);
}

void Ffn::Run(int layer, const float* x, int64_t rows, float* out, ActivationTap* tap) {
  const LayerSpec& spec = spec_.layers[layer];
  const LayerWeights& w = weights_.layers[layer];
  if (spec.experts.count == 0) {
    RunGated(layer,
             {.gate = &w.ffn_gate,
              .up = &w.ffn_up,
              .down = &w.ffn_down,
              .gate_bias = w.ffn_gate_bias,
              .up_bias = w.ffn_up_bias,
              .down_bias = w.ffn_down_bias,
              .width = spec.ffn},
             x, rows, out, tap);
    return;
  }
  Route(layer, x, rows, tap);
  RunExperts(layer, x, rows, out);
  Tap(tap, TapPoint::kExperts, layer, out, rows, spec_.hidden);
  if (spec.experts.shared_ffn > 0) AddShared(layer, x, rows, out, tap);
}

void Ffn::RunGated(int layer, const Gated& ffn, const float* x, int64_t rows, float* out,
                   ActivationTap* tap) {
  const FfnBuffers& b = buffers_;
  const Product inputs[] = {{ffn.gate, ffn.gate_bias, x, rows, b.gate},
                            {ffn.up, ffn.up_bias, x, rows, b.up}};
  matmul_.Run(inputs);
  Tap(tap, TapPoint::kFfnGate, layer, b.gate, rows, ffn.width);
  Tap(tap, TapPoint::kFfnUp, layer, b.up, rows, ffn.width);
  Activate(layer, rows, ffn.width);
  Tap(tap, TapPoint::kFfnAct, layer, b.gate, rows, ffn.width);
  const Product output = {ffn.down, ffn.down_bias, b.gate, rows, out};
  matmul_.Run({&output, 1});
}

void Ffn::Activate(int layer, int64_t rows, int width) {
  const GateMultiply multiply = GateMultiplyOf(kernels_, spec_.layers[layer].activation);
  pool_.ParallelFor(rows, [&](int64_t row, int) {
    multiply(buffers_.up + row * width, width, buffers_.gate + row * width);
  });
}

void Ffn::Route(int layer, const float* x, int64_t rows, ActivationTap* tap) {
  const ExpertsSpec& spec = spec_.layers[layer].experts;
  const ExpertWeights& w = weights_.layers[layer].experts;
  float* const logits = buffers_.router;
  const Product product = {&w.router, w.router_bias, x, rows, logits};
  matmul_.Run({&product, 1});
  if (tap != nullptr) {
    tap->Replace(TapPoint::kRouter, layer, {logits, static_cast<size_t>(rows * spec.count)}, rows,
                 spec.count);
  }
  Tap(tap, TapPoint::kRouter, layer, logits, rows, spec.count);
  chosen_.resize(rows * spec.used);
  pool_.ParallelFor(rows, [&](int64_t row, int) {
    ChooseExperts(spec, Row(logits, row, spec.count), w.selection_bias,
                  std::span(chosen_).subspan(row * spec.used, spec.used));
  });
  if (tap != nullptr) TapWeights(layer, rows, *tap);
  GroupChoices(spec.count);
}

void Ffn::TapWeights(int layer, int64_t rows, ActivationTap& tap) const {
  const ExpertsSpec& spec = spec_.layers[layer].experts;
  std::vector<float> weights(rows * spec.count, 0.0f);
  for (size_t i = 0; i < chosen_.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) / spec.used;
    weights[row * spec.count + chosen_[i].expert] = chosen_[i].weight;
  }
  Tap(&tap, TapPoint::kExpertWeights, layer, weights.data(), rows, spec.count);
}

void Ffn::GroupChoices(int experts) {
  starts_.assign(experts + 1, 0);
  for (const ChosenExpert& choice : chosen_) ++starts_[choice.expert + 1];
  std::partial_sum(starts_.begin(), starts_.end(), starts_.begin());
  // While the places are given out, a start is the next free place of its expert.
  places_.clear();
  for (const ChosenExpert& choice : chosen_) places_.push_back(starts_[choice.expert]++);
  // Now each start is the next expert's.
  std::rotate(starts_.begin(), starts_.end() - 1, starts_.end());
  starts_[0] = 0;
  for (int e = 0; e < experts; ++e) {
    if (starts_[e + 1] > starts_[e]) load_.Add(starts_[e + 1] - starts_[e]);
  }
}

void Ffn::RunExperts(int layer, const float* x, int64_t rows, float* out) {
  const ExpertsSpec& spec = spec_.layers[layer].experts;
  const ExpertWeights& w = weights_.layers[layer].experts;
  const FfnBuffers& b = buffers_;
  const int hidden = spec_.hidden;
  const auto place_of = [&](int64_t row, int j) { return places_[row * spec.used + j]; };
  const auto rows_of = [&](int expert) {
    return int64_t{starts_[expert + 1]} - int64_t{starts_[expert]};
  };

  pool_.ParallelFor(rows, [&](int64_t row, int) {
    for (int j = 0; j < spec.used; ++j) {
      std::ranges::copy(Row(x, row, hidden), Row(b.expert_rows, place_of(row, j), hidden).begin());
    }
  });

  products_.clear();
  for (int e = 0; e < spec.count; ++e) {
    if (rows_of(e) == 0) continue;
    const float* const inputs = b.expert_rows + int64_t{starts_[e]} * hidden;
    const int64_t offset = int64_t{starts_[e]} * spec.ffn;
    products_.push_back(
        {&w.gate[e], Part(w.gate_bias, e, spec.ffn), inputs, rows_of(e), b.gate + offset});
    products_.push_back(
        {&w.up[e], Part(w.up_bias, e, spec.ffn), inputs, rows_of(e), b.up + offset});
  }
  matmul_.Run(products_);
  Activate(layer, rows * spec.used, spec.ffn);

  products_.clear();
  for (int e = 0; e < spec.count; ++e) {
    if (rows_of(e) == 0) continue;
    products_.push_back({&w.down[e], Part(w.down_bias, e, hidden),
                         b.gate + int64_t{starts_[e]} * spec.ffn, rows_of(e),
                         b.expert_rows + int64_t{starts_[e]} * hidden});
  }
  matmul_.Run(products_);

  pool_.ParallelFor(rows, [&](int64_t row, int) {
    const std::span<float> sum = Row(out, row, hidden);
    std::ranges::fill(sum, 0.0f);
    for (int j = 0; j < spec.used; ++j) {
      AddScaled(Row(b.expert_rows, place_of(row, j), hidden), chosen_[row * spec.used + j].weight,
                sum);
    }
  });
}

void Ffn::AddShared(int layer, const float* x, int64_t rows, float* out, ActivationTap* tap) {
  const ExpertsSpec& spec = spec_.layers[layer].experts;
  const ExpertWeights& w = weights_.layers[layer].experts;
  // The experts' outputs have been added.
  float* const shared = buffers_.expert_rows;
  RunGated(layer,
           {.gate = &w.shared_gate,
            .up = &w.shared_up,
            .down = &w.shared_down,
            .gate_bias = {},
            .up_bias = {},
            .down_bias = {},
            .width = spec.shared_ffn},
           x, rows, shared, tap);
  pool_.ParallelFor(rows, [&](int64_t row, int) {
    const float factor =
        spec.shared_gated ? SigmoidOfDot(w.shared_router, Row(x, row, spec_.hidden)) : 1.0f;
    AddScaled(Row(shared, row, spec_.hidden), factor, Row(out, row, spec_.hidden));
  });
}

}  // namespace orcd::cpu
