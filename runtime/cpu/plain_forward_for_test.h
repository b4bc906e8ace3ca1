// A model of random weights, and its logits as spec.h defines them: plain loops in F64.
#ifndef ORCD_RUNTIME_CPU_PLAIN_FORWARD_FOR_TEST_H_
#define ORCD_RUNTIME_CPU_PLAIN_FORWARD_FOR_TEST_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <vector>

#include "runtime/cpu/matrix_for_test.h"
#include "runtime/model/rope.h"
#include "runtime/model/spec.h"
#include "runtime/model/weights.h"

namespace orcd::cpu {

// Owns random F32 weights that fit a spec, with every bias and norm that it has a place for.
class RandomWeights {
 public:
  RandomWeights(const ModelSpec& spec, uint32_t seed) : seed_(seed) {
    weights_.token_embd = NewMatrix(spec.vocab, spec.hidden);
    for (const LayerSpec& layer : spec.layers) AddLayer(layer, spec.hidden);
    weights_.output_norm = NewVector(spec.hidden, 1);
    weights_.output = NewMatrix(spec.vocab, spec.hidden);
  }

  const ModelWeights& weights() const { return weights_; }

 private:
  void AddLayer(const LayerSpec& layer, int hidden) {
    LayerWeights& w = weights_.layers.emplace_back();
    const int q = layer.q_size();
    const int kv = layer.kv_size();
    w.attn_norm = NewVector(hidden, 1);
    w.attn_q = NewMatrix(q, hidden);
    w.attn_k = NewMatrix(kv, hidden);
    w.attn_v = NewMatrix(kv, hidden);
    w.attn_q_bias = NewVector(q, 0);
    w.attn_k_bias = NewVector(kv, 0);
    w.attn_v_bias = NewVector(kv, 0);
    w.attn_q_norm = NewVector(layer.qk_norm == QkNorm::kHead ? layer.head_dim : q, 1);
    w.attn_k_norm = NewVector(layer.qk_norm == QkNorm::kHead ? layer.head_dim : kv, 1);
    w.attn_output = NewMatrix(hidden, q);
    w.attn_output_bias = NewVector(hidden, 0);
    w.attn_post_norm = NewVector(hidden, 1);
    w.ffn_norm = NewVector(hidden, 1);
    if (layer.experts.count > 0) {
      AddExperts(layer.experts, hidden, w.experts);
    } else {
      w.ffn_gate = NewMatrix(layer.ffn, hidden);
      w.ffn_up = NewMatrix(layer.ffn, hidden);
      w.ffn_down = NewMatrix(hidden, layer.ffn);
      w.ffn_gate_bias = NewVector(layer.ffn, 0);
      w.ffn_up_bias = NewVector(layer.ffn, 0);
      w.ffn_down_bias = NewVector(hidden, 0);
    }
    w.ffn_post_norm = NewVector(hidden, 1);
    if (layer.sinks) w.attn_sinks = NewVector(layer.heads, 1);
  }

  void AddExperts(const ExpertsSpec& spec, int hidden, ExpertWeights& w) {
    w.router = NewMatrix(spec.count, hidden);
    w.router_bias = NewVector(spec.count, 0);
    w.selection_bias = NewVector(spec.count, 0);
    for (int i = 0; i < spec.count; ++i) {
      w.gate.push_back(NewMatrix(spec.ffn, hidden));
      w.up.push_back(NewMatrix(spec.ffn, hidden));
      w.down.push_back(NewMatrix(hidden, spec.ffn));
    }
    w.gate_bias = NewVector(int64_t{spec.count} * spec.ffn, 0);
    w.up_bias = NewVector(int64_t{spec.count} * spec.ffn, 0);
    w.down_bias = NewVector(int64_t{spec.count} * hidden, 0);
    if (spec.shared_ffn == 0) return;
    w.shared_gate = NewMatrix(spec.shared_ffn, hidden);
    w.shared_up = NewMatrix(spec.shared_ffn, hidden);
    w.shared_down = NewMatrix(hidden, spec.shared_ffn);
    if (spec.shared_gated) w.shared_router = NewVector(hidden, 0);
  }

  Matrix NewMatrix(int64_t rows, int64_t cols) {
    values_.push_back(
        RandomFloats(rows * cols, ++seed_, 1.5f / std::sqrt(static_cast<float>(cols))));
    return {TensorType::kF32, rows, cols, reinterpret_cast<const std::byte*>(values_.back().data()),
            cols * static_cast<int64_t>(sizeof(float))};
  }
  Vector NewVector(int64_t size, float mean) {
    std::vector<float>& values = values_.emplace_back(RandomFloats(size, ++seed_, 0.3f));
    for (float& value : values) value += mean;
    return values;
  }

  uint32_t seed_;
  std::deque<std::vector<float>> values_;
  ModelWeights weights_;
};

// The logits after each token of a sequence, for F32 matrices.
class PlainForward {
 public:
  PlainForward(const ModelSpec& spec, const ModelWeights& weights, int context)
      : spec_(spec), weights_(weights), context_(context) {}

  std::vector<double> Logits(std::span<const int32_t> tokens) const {
    std::vector<Row> x;
    for (const int32_t token : tokens) {
      const auto* values = reinterpret_cast<const float*>(weights_.token_embd.row(token));
      x.emplace_back(values, values + spec_.hidden);
      Multiply(x.back(), spec_.embedding_scale);
    }
    for (int layer = 0; layer < spec_.num_layers(); ++layer) RunLayer(layer, x);
    std::vector<double> logits;
    for (const Row& row : x) {
      Row z = Product(weights_.output, {}, Norm(row, weights_.output_norm));
      Multiply(z, spec_.logit_scale);
      for (double& value : z) value = Capped(value, spec_.logit_softcap);
      logits.insert(logits.end(), z.begin(), z.end());
    }
    return logits;
  }

 private:
  using Row = std::vector<double>;

  void RunLayer(int layer, std::vector<Row>& x) const {
    const LayerSpec& spec = spec_.layers[layer];
    const LayerWeights& w = weights_.layers[layer];
    std::vector<Row> normed = x;
    if (spec.form != LayerForm::kPostNorm) {
      for (Row& row : normed) row = Norm(row, w.attn_norm);
    }
    const std::vector<Row> attention = Attention(layer, normed);
    for (size_t t = 0; t < x.size(); ++t) {
      AddBranch(spec, Product(w.attn_output, w.attn_output_bias, attention[t]), w.attn_post_norm,
                x[t]);
      const Row input = spec.form == LayerForm::kParallel   ? normed[t]
                        : spec.form == LayerForm::kPostNorm ? x[t]
                                                            : Norm(x[t], w.ffn_norm);
      AddBranch(spec, spec.experts.count > 0 ? Experts(layer, input) : Ffn(layer, input),
                w.ffn_post_norm, x[t]);
    }
  }

  Row Ffn(int layer, const Row& input) const {
    const LayerWeights& w = weights_.layers[layer];
    return Product(w.ffn_down, w.ffn_down_bias,
                   Gated(spec_.layers[layer], Product(w.ffn_gate, w.ffn_gate_bias, input),
                         Product(w.ffn_up, w.ffn_up_bias, input)));
  }

  Row Experts(int layer, const Row& input) const {
    const LayerSpec& spec = spec_.layers[layer];
    const ExpertWeights& w = weights_.layers[layer].experts;
    const auto part = [](Vector biases, int i, int64_t size) {
      return biases.empty() ? biases : biases.subspan(i * size, size);
    };
    Row sum(spec_.hidden, 0.0);
    for (const auto& [expert, weight] : Route(spec.experts, w, input)) {
      const Row gate = Product(w.gate[expert], part(w.gate_bias, expert, spec.experts.ffn), input);
      const Row up = Product(w.up[expert], part(w.up_bias, expert, spec.experts.ffn), input);
      const Row out =
          Product(w.down[expert], part(w.down_bias, expert, spec_.hidden), Gated(spec, gate, up));
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += weight * out[i];
    }
    if (spec.experts.shared_ffn == 0) return sum;
    const Row shared =
        Product(w.shared_down, {},
                Gated(spec, Product(w.shared_gate, {}, input), Product(w.shared_up, {}, input)));
    double factor = 1;
    if (spec.experts.shared_gated) {
      double dot = 0;
      for (size_t i = 0; i < input.size(); ++i) dot += double{w.shared_router[i]} * input[i];
      factor = 1 / (1 + std::exp(-dot));
    }
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += factor * shared[i];
    return sum;
  }

  // The chosen experts and their weights.
  static std::map<int, double> Route(const ExpertsSpec& spec, const ExpertWeights& w,
                                     const Row& input) {
    const Row logits = Product(w.router, w.router_bias, input);
    Row scores = logits;
    for (double& score : scores) {
      score = spec.score == RouterScore::kSigmoid ? 1 / (1 + std::exp(-score)) : std::exp(score);
    }
    if (spec.score == RouterScore::kSoftmax) {
      Multiply(scores, 1 / std::accumulate(scores.begin(), scores.end(), 0.0));
    }
    Row selection = spec.score == RouterScore::kSoftmaxOfChosen ? logits : scores;
    for (size_t i = 0; i < w.selection_bias.size(); ++i) {
      selection[i] += double{w.selection_bias[i]};
    }
    if (spec.groups > 1) {
      const int size = spec.count / spec.groups;
      Row sums;
      for (int group = 0; group < spec.groups; ++group) {
        double sum = 0;
        const Row of_group(selection.begin() + group * size,
                           selection.begin() + (group + 1) * size);
        for (const int i : Largest(of_group, std::min(2, size))) sum += of_group[i];
        sums.push_back(sum);
      }
      const std::set<int> kept = Largest(sums, spec.groups_used);
      for (int i = 0; i < spec.count; ++i) {
        if (!kept.contains(i / size)) selection[i] = -INFINITY;
      }
    }
    std::map<int, double> chosen;
    double sum = 0;
    for (const int expert : Largest(selection, spec.used)) {
      chosen[expert] = scores[expert];
      sum += scores[expert];
    }
    for (auto& [expert, weight] : chosen) {
      if (spec.score == RouterScore::kSoftmaxOfChosen) weight /= sum;
      if (spec.normalise) weight /= std::max(sum, 6.103515625e-5);
      weight *= double{spec.scale};
    }
    return chosen;
  }

  // The indices of the largest values; of two equal ones the first.
  static std::set<int> Largest(Row values, int count) {
    std::set<int> largest;
    for (int i = 0; i < count; ++i) {
      const auto at = std::max_element(values.begin(), values.end());
      largest.insert(static_cast<int>(at - values.begin()));
      *at = -INFINITY;
    }
    return largest;
  }

  std::vector<Row> Attention(int layer, const std::vector<Row>& input) const {
    const LayerSpec& spec = spec_.layers[layer];
    const LayerWeights& w = weights_.layers[layer];
    const std::vector<double> frequencies = RopeFrequencies(spec.rope, weights_, context_);
    const int d = spec.head_dim;
    std::vector<Row> keys, values, out;
    for (size_t t = 0; t < input.size(); ++t) {
      Row q = Product(w.attn_q, w.attn_q_bias, input[t]);
      keys.push_back(Product(w.attn_k, w.attn_k_bias, input[t]));
      values.push_back(Product(w.attn_v, w.attn_v_bias, input[t]));
      if (spec.qk_norm != QkNorm::kNone) {
        NormParts(w.attn_q_norm, q);
        NormParts(w.attn_k_norm, keys.back());
      }
      const double position = static_cast<double>(t);
      Rotate(spec, frequencies, position, q);
      Rotate(spec, frequencies, position, keys.back());
      if (spec.temperature > 0) {
        const double periods = std::floor(position / spec.temperature_length);
        Multiply(q, 1 + double{spec.temperature} * std::log(periods + 1));
      }
      Row& result = out.emplace_back(spec.q_size(), 0.0);
      const size_t first = spec.window > 0 && t + 1 > static_cast<size_t>(spec.window)
                               ? t + 1 - static_cast<size_t>(spec.window)
                               : 0;
      for (int head = 0; head < spec.heads; ++head) {
        const int kv = head / (spec.heads / spec.kv_heads) * d;
        Row weights(t + 1, 0.0);
        double sum = spec.sinks ? std::exp(double{w.attn_sinks[head]}) : 0;
        for (size_t p = first; p <= t; ++p) {
          double score = 0;
          for (int i = 0; i < d; ++i) score += q[head * d + i] * keys[p][kv + i];
          weights[p] = std::exp(Capped(score * double{spec.score_scale}, spec.score_softcap));
          sum += weights[p];
        }
        for (size_t p = first; p <= t; ++p) {
          for (int i = 0; i < d; ++i) result[head * d + i] += weights[p] / sum * values[p][kv + i];
        }
      }
    }
    return out;
  }

  static void Rotate(const LayerSpec& spec, const std::vector<double>& frequencies, double position,
                     Row& heads) {
    const size_t half = frequencies.size();
    for (size_t head = 0; head < heads.size(); head += spec.head_dim) {
      for (size_t i = 0; i < half; ++i) {
        const bool neox = spec.rope.kind == RopeKind::kNeox;
        double& a = heads[head + (neox ? i : 2 * i)];
        double& b = heads[head + (neox ? i + half : 2 * i + 1)];
        const double cos = std::cos(position * frequencies[i]) * double{spec.rope.magnitude};
        const double sin = std::sin(position * frequencies[i]) * double{spec.rope.magnitude};
        const double before = a;
        a = before * cos - b * sin;
        b = before * sin + b * cos;
      }
    }
  }

  void AddBranch(const LayerSpec& spec, Row branch, Vector post_norm, Row& x) const {
    if (spec.post_norms) branch = Norm(branch, post_norm);
    for (size_t i = 0; i < x.size(); ++i) x[i] += double{spec_.residual_scale} * branch[i];
  }

  Row Norm(const Row& x, Vector weight) const {
    double mean = 0;
    if (spec_.norm == NormKind::kLayer) {
      for (const double value : x) mean += value / static_cast<double>(x.size());
    }
    double squares = 0;
    for (const double value : x) squares += (value - mean) * (value - mean);
    const double root = std::sqrt(squares / static_cast<double>(x.size()) + double{spec_.norm_eps});
    Row y;
    for (size_t i = 0; i < x.size(); ++i) y.push_back((x[i] - mean) / root * double{weight[i]});
    return y;
  }

  // RMS norms, whatever the others are.
  void NormParts(Vector weight, Row& x) const {
    for (size_t start = 0; start < x.size(); start += weight.size()) {
      double squares = 0;
      for (size_t i = 0; i < weight.size(); ++i) squares += x[start + i] * x[start + i];
      const double root =
          std::sqrt(squares / static_cast<double>(weight.size()) + double{spec_.norm_eps});
      for (size_t i = 0; i < weight.size(); ++i) x[start + i] *= double{weight[i]} / root;
    }
  }

  static Row Product(const Matrix& matrix, Vector bias, const Row& x) {
    Row y;
    for (int64_t r = 0; r < matrix.rows; ++r) {
      const auto* weights = reinterpret_cast<const float*>(matrix.row(r));
      double sum = bias.empty() ? 0 : double{bias[r]};
      for (int64_t c = 0; c < matrix.cols; ++c) sum += double{weights[c]} * x[c];
      y.push_back(sum);
    }
    return y;
  }

  static Row Gated(const LayerSpec& spec, Row gate, const Row& up) {
    for (size_t i = 0; i < gate.size(); ++i) {
      double& z = gate[i];
      switch (spec.activation) {
        case Activation::kSilu:
          z = z / (1 + std::exp(-z)) * up[i];
          break;
        case Activation::kGeluTanh:
          z = z / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (z + 0.044715 * z * z * z))) * up[i];
          break;
        case Activation::kClampedSwiglu:
          z = std::min(z, 7.0);
          z = z / (1 + std::exp(-1.702 * z)) * (std::clamp(up[i], -7.0, 7.0) + 1);
          break;
      }
    }
    return gate;
  }

  static double Capped(double value, double cap) {
    return cap > 0 ? cap * std::tanh(value / cap) : value;
  }

  static void Multiply(Row& x, double factor) {
    for (double& value : x) value *= factor;
  }

  const ModelSpec& spec_;
  const ModelWeights& weights_;
  const int context_;
};

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_PLAIN_FORWARD_FOR_TEST_H_
