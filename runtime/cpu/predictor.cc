#include "runtime/cpu/predictor.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/cpu/forward.h"
#include "runtime/cpu/host_info.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/kv_caches.h"
#include "runtime/cpu/matmul.h"
#include "runtime/cpu/ops.h"
#include "runtime/cpu/rows.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/model/predict_block.h"

namespace orcd {
namespace {

using cpu::Forward;
using cpu::KvCaches;
using cpu::MatMul;
using cpu::Row;
using cpu::ThreadPool;

constexpr int kBlockTokens = 16;
// Rows that are computed at once.
constexpr int kStepTokens = 64;

// Keeps what the layer gives.
class LayerTap : public ActivationTap {
 public:
  void OnActivation(TapPoint point, int, std::span<const float> values, int64_t, int64_t) override {
    if (point == TapPoint::kLayer) rows.assign(values.begin(), values.end());
  }
  std::vector<float> rows;
};

// The block as a model of one layer.
struct BlockModel {
  BlockModel(const ModelSpec& of, const ModelWeights& of_weights, PredictBlock from)
      : block(std::move(from)), spec(of) {
    spec.layers = {block.spec};
    weights.token_embd = block.token_embd;
    weights.layers = {block.layer};
    weights.rope_factors = of_weights.rope_factors;
    weights.rope_factors_short = of_weights.rope_factors_short;
    weights.rope_factors_long = of_weights.rope_factors_long;
    weights.output_norm = block.output_norm;
    weights.output = block.output;
  }

  PredictBlock block;
  ModelSpec spec;
  ModelWeights weights;
};

// Later members refer to earlier ones.
class CpuPredictor : public Predictor {
 public:
  CpuPredictor(std::shared_ptr<const Model> model, std::unique_ptr<BlockModel> block,
               std::unique_ptr<ThreadPool> pool, std::unique_ptr<KvCaches> kv,
               std::unique_ptr<Forward> forward)
      : model_(std::move(model)),
        block_(std::move(block)),
        pool_(std::move(pool)),
        matmul_(cpu::BestKernels(), *pool_),
        kv_(std::move(kv)),
        forward_(std::move(forward)),
        blocks_(kv_->whole.blocks()) {
    std::iota(blocks_.begin(), blocks_.end(), 0);
  }

  Predictions Run(std::span<const int32_t> tokens, std::span<const float> hidden,
                  int64_t position) override {
    Predictions all;
    for (size_t first = 0; first < tokens.size(); first += kStepTokens) {
      const size_t rows = std::min<size_t>(kStepTokens, tokens.size() - first);
      const size_t size = block_->spec.hidden;
      RunStep(tokens.subspan(first, rows), hidden.subspan(first * size, rows * size),
              position + static_cast<int64_t>(first), all);
    }
    return all;
  }

 private:
  void RunStep(std::span<const int32_t> tokens, std::span<const float> hidden, int64_t position,
               Predictions& all) {
    const int64_t rows = std::ssize(tokens);
    const int64_t size = block_->spec.hidden;
    const float eps = block_->spec.norm_eps;
    const PredictBlock& block = block_->block;
    std::vector<float> pairs(rows * 2 * size);
    for (int64_t row = 0; row < rows; ++row) {
      const std::span<float> embedding = Row(pairs.data(), 2 * row, size);
      cpu::BestKernels().dequantize(block.token_embd.type, block.token_embd.row(tokens[row]), size,
                                    embedding.data());
      cpu::RmsNorm(embedding, block.embedding_norm, eps, embedding);
      cpu::RmsNorm(hidden.subspan(row * size, size), block.hidden_norm, eps,
                   Row(pairs.data(), 2 * row + 1, size));
    }
    std::vector<float> input(rows * size);
    const cpu::Product product = {&block.projection, {}, pairs.data(), rows, input.data()};
    matmul_.Run({&product, 1});
    LayerTap tap;
    forward_->RunLayer({.tokens = tokens, .first_position = position, .blocks = {blocks_, blocks_}},
                       0, input, tap);
    std::vector<int64_t> of_rows(rows);
    std::iota(of_rows.begin(), of_rows.end(), 0);
    const std::span<const float> logits = forward_->LogitsOfRows(of_rows);
    all.logits.insert(all.logits.end(), logits.begin(), logits.end());
    for (int64_t row = 0; row < rows; ++row) {
      const std::span<float> of_row = Row(tap.rows.data(), row, size);
      cpu::RmsNorm(of_row, block.output_norm, eps, of_row);
    }
    all.hidden.insert(all.hidden.end(), tap.rows.begin(), tap.rows.end());
  }

  const std::shared_ptr<const Model> model_;
  const std::unique_ptr<BlockModel> block_;
  const std::unique_ptr<ThreadPool> pool_;
  MatMul matmul_;
  const std::unique_ptr<KvCaches> kv_;
  const std::unique_ptr<Forward> forward_;
  std::vector<int32_t> blocks_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Predictor>> CreateCpuPredictor(std::shared_ptr<const Model> model,
                                                              KvType kv_type, int max_tokens,
                                                              int threads) {
  ORCD_ASSIGN_OR_RETURN(std::optional<PredictBlock> found,
                        PredictBlock::FromGguf(model->gguf(), model->spec(), model->weights()));
  if (!found.has_value()) return nullptr;
  auto block = std::make_unique<BlockModel>(model->spec(), model->weights(), *std::move(found));
  auto pool = std::make_unique<ThreadPool>(threads > 0 ? threads : cpu::UsableCores());
  const int64_t blocks = (max_tokens + kBlockTokens - 1) / kBlockTokens;
  ORCD_ASSIGN_OR_RETURN(KvCaches caches,
                        KvCaches::Create(block->spec, kBlockTokens, kv_type, blocks, blocks));
  auto kv = std::make_unique<KvCaches>(std::move(caches));
  ORCD_ASSIGN_OR_RETURN(
      auto forward,
      Forward::Create(
          block->spec, block->weights, cpu::BestKernels(), *pool, *kv,
          {.context = max_tokens, .step_tokens = kStepTokens, .logit_rows = kStepTokens}));
  return std::make_unique<CpuPredictor>(std::move(model), std::move(block), std::move(pool),
                                        std::move(kv), std::move(forward));
}

}  // namespace orcd
