// The logits of files of qwen2moe and granitemoe in F64, for which there are no results of other
// programs. Keys and tensors are read by their names in the file, and the formulas are those of
// Hugging Face's modeling_qwen2_moe.py and modeling_granitemoeshared.py: ModelSpec and ModelWeights
// take no part.
#ifndef ORCD_RUNTIME_CPU_PLAIN_MOE_FILE_FOR_TEST_H_
#define ORCD_RUNTIME_CPU_PLAIN_MOE_FILE_FOR_TEST_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/gguf/dequantize.h"
#include "runtime/gguf/gguf_reader.h"

namespace orcd::cpu {

class PlainMoeFile {
 public:
  explicit PlainMoeFile(const GgufReader& gguf)
      : gguf_(gguf),
        prefix_(absl::StrCat(std::string(*gguf.GetString("general.architecture")), ".")),
        granite_(prefix_ == "granitemoe.") {
    EXPECT_TRUE(granite_ || prefix_ == "qwen2moe.");
  }

  // After each token.
  std::vector<double> Logits(std::span<const int32_t> tokens) {
    std::vector<Row> x;
    for (const int32_t token : tokens) {
      const Row& all = Values("token_embd.weight");
      const auto first =
          all.begin() + static_cast<std::ptrdiff_t>(token * Size("embedding_length"));
      Row& row =
          x.emplace_back(first, first + static_cast<std::ptrdiff_t>(Size("embedding_length")));
      if (granite_) Multiply(row, Number("embedding_scale"));
    }
    for (size_t layer = 0; layer < Size("block_count"); ++layer) {
      RunLayer(absl::StrCat("blk.", layer, "."), x);
    }
    const std::string head = gguf_.FindTensor("output.weight") == nullptr ? "token_embd" : "output";
    std::vector<double> logits;
    for (const Row& row : x) {
      Row z = Product(head, Norm("output_norm", row));
      if (granite_) Multiply(z, 1 / Number("logit_scale"));
      logits.insert(logits.end(), z.begin(), z.end());
    }
    return logits;
  }

 private:
  using Row = std::vector<double>;

  size_t Size(const char* key) const {
    const auto value = gguf_.GetU32(prefix_ + key);
    EXPECT_TRUE(value.ok()) << value.status();
    return value.value_or(1);
  }
  double Number(const char* key) const {
    const auto value = gguf_.GetF32(prefix_ + key);
    EXPECT_TRUE(value.ok()) << value.status();
    return double{value.value_or(1)};
  }
  bool Has(const std::string& tensor) const { return gguf_.FindTensor(tensor) != nullptr; }

  // A tensor's numbers, in the order of the file.
  const Row& Values(const std::string& name) {
    const auto [at, is_new] = values_.try_emplace(name);
    if (!is_new) return at->second;
    const TensorView* const tensor = gguf_.FindTensor(name);
    EXPECT_NE(tensor, nullptr) << name;
    std::vector<float> floats(tensor->element_count());
    Dequantize(tensor->type, tensor->data.data(), static_cast<int64_t>(floats.size()),
               floats.data());
    at->second.assign(floats.begin(), floats.end());
    return at->second;
  }

  // Matrix number `index` of a tensor times x, and its bias if it has one.
  Row Product(const std::string& name, const Row& x, size_t index = 0) {
    const TensorView* const tensor = gguf_.FindTensor(name + ".weight");
    const Row& weights = Values(name + ".weight");
    const size_t cols = tensor->ne[0];
    const size_t rows = tensor->ne[1];
    EXPECT_EQ(cols, x.size()) << name;
    Row y(rows, 0.0);
    for (size_t r = 0; r < rows; ++r) {
      const double* const row = weights.data() + (index * rows + r) * cols;
      for (size_t c = 0; c < cols; ++c) y[r] += row[c] * x[c];
    }
    if (Has(name + ".bias")) Add(Values(name + ".bias"), 1, y);
    return y;
  }

  Row Norm(const std::string& name, const Row& x) {
    double squares = 0;
    for (const double value : x) squares += value * value / static_cast<double>(x.size());
    const double root = std::sqrt(squares + Number("attention.layer_norm_rms_epsilon"));
    Row y = Values(name + ".weight");
    for (size_t i = 0; i < y.size(); ++i) y[i] *= x[i] / root;
    return y;
  }

  void RunLayer(const std::string& blk, std::vector<Row>& x) {
    const size_t heads = Size("attention.head_count");
    const size_t group = heads / Size("attention.head_count_kv");
    const double branch = granite_ ? Number("residual_scale") : 1;
    std::vector<Row> keys, values;
    for (size_t t = 0; t < x.size(); ++t) {
      const Row in = Norm(blk + "attn_norm", x[t]);
      Row q = Product(blk + "attn_q", in);
      const size_t d = q.size() / heads;
      keys.push_back(Product(blk + "attn_k", in));
      values.push_back(Product(blk + "attn_v", in));
      Rotate(d, static_cast<double>(t), q);
      Rotate(d, static_cast<double>(t), keys.back());
      const double scale =
          granite_ ? Number("attention.scale") : 1 / std::sqrt(static_cast<double>(d));
      Row attention(q.size(), 0.0);
      for (size_t head = 0; head < heads; ++head) {
        const size_t kv = head / group * d;
        Row weights;
        for (size_t p = 0; p <= t; ++p) {
          double dot = 0;
          for (size_t i = 0; i < d; ++i) dot += q[head * d + i] * keys[p][kv + i];
          weights.push_back(std::exp(dot * scale));
        }
        const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
        for (size_t p = 0; p <= t; ++p) {
          for (size_t i = 0; i < d; ++i) {
            attention[head * d + i] += weights[p] / sum * values[p][kv + i];
          }
        }
      }
      Add(Product(blk + "attn_output", attention), branch, x[t]);
      Add(Experts(blk, Norm(blk + "ffn_norm", x[t])), branch, x[t]);
    }
  }

  // llama.cpp's converter permutes the rows of Granite's queries and keys, so that neighbours are
  // rotated together.
  void Rotate(size_t d, double position, Row& heads) const {
    for (size_t head = 0; head < heads.size(); head += d) {
      for (size_t i = 0; i < d / 2; ++i) {
        const double exponent = -2 * static_cast<double>(i) / static_cast<double>(d);
        const double angle = position * std::pow(Number("rope.freq_base"), exponent);
        double& a = heads[head + (granite_ ? 2 * i : i)];
        double& b = heads[head + (granite_ ? 2 * i + 1 : i + d / 2)];
        const double before = a;
        a = before * std::cos(angle) - b * std::sin(angle);
        b = before * std::sin(angle) + b * std::cos(angle);
      }
    }
  }

  Row Experts(const std::string& blk, const Row& in) {
    const Row logits = Product(blk + "ffn_gate_inp", in);
    std::vector<size_t> order(logits.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return logits[a] > logits[b]; });
    const size_t used = Size("expert_used_count");
    // Qwen2's weights are shares of all experts; Granite's are those of the chosen ones.
    double sum = 0;
    for (size_t i = 0; i < (granite_ ? used : order.size()); ++i) sum += std::exp(logits[order[i]]);
    Row out(in.size(), 0.0);
    for (size_t i = 0; i < used; ++i) {
      const size_t expert = order[i];
      Add(Expert(blk, "_exps", expert, in), std::exp(logits[expert]) / sum, out);
    }
    if (!Has(blk + "ffn_up_shexp.weight")) return out;
    double factor = 1;
    if (!granite_) {
      const Row& gate = Values(blk + "ffn_gate_inp_shexp.weight");
      factor = 1 / (1 + std::exp(-std::inner_product(gate.begin(), gate.end(), in.begin(), 0.0)));
    }
    Add(Expert(blk, "_shexp", 0, in), factor, out);
    return out;
  }

  Row Expert(const std::string& blk, const std::string& kind, size_t expert, const Row& in) {
    Row gate = Product(blk + "ffn_gate" + kind, in, expert);
    const Row up = Product(blk + "ffn_up" + kind, in, expert);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
    return Product(blk + "ffn_down" + kind, gate, expert);
  }

  static void Add(const Row& y, double factor, Row& x) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += factor * y[i];
  }
  static void Multiply(Row& x, double factor) {
    for (double& value : x) value *= factor;
  }

  const GgufReader& gguf_;
  // The architecture and a point.
  const std::string prefix_;
  const bool granite_;
  std::map<std::string, Row> values_;
};

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_PLAIN_MOE_FILE_FOR_TEST_H_
