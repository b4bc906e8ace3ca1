#include "runtime/cpu/predictor.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/cpu/host_info.h"
#include "runtime/cpu/predict_forward.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/model/predict_block.h"

namespace orcd {
namespace {

using cpu::PredictForward;
using cpu::PredictRows;
using cpu::ThreadPool;

constexpr int kBlockTokens = 16;
// Rows that are computed at once.
constexpr int kStepTokens = 64;

// Later members refer to earlier ones.
class CpuPredictor : public Predictor {
 public:
  CpuPredictor(std::shared_ptr<const Model> model, std::unique_ptr<ThreadPool> pool,
               std::unique_ptr<PredictForward> forward, int64_t blocks)
      : model_(std::move(model)),
        pool_(std::move(pool)),
        forward_(std::move(forward)),
        blocks_(blocks) {
    std::iota(blocks_.begin(), blocks_.end(), 0);
  }

  Predictions Run(std::span<const int32_t> tokens, std::span<const float> hidden,
                  int64_t position) override {
    const int64_t size = model_->spec().hidden;
    Predictions all;
    for (int64_t first = 0; first < std::ssize(tokens); first += kStepTokens) {
      const int64_t rows = std::min<int64_t>(kStepTokens, std::ssize(tokens) - first);
      const PredictRows step = {.tokens = tokens.subspan(first, rows),
                                .first_position = 1 + position + first,
                                .blocks = {blocks_, blocks_},
                                .hidden = hidden.data() + first * size};
      const std::span<const float> logits = forward_->Run({&step, 1});
      all.logits.insert(all.logits.end(), logits.begin(), logits.end());
      all.hidden.insert(all.hidden.end(), forward_->hidden(), forward_->hidden() + rows * size);
    }
    return all;
  }

 private:
  const std::shared_ptr<const Model> model_;
  const std::unique_ptr<ThreadPool> pool_;
  const std::unique_ptr<PredictForward> forward_;
  std::vector<int32_t> blocks_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Predictor>> CreateCpuPredictor(std::shared_ptr<const Model> model,
                                                              KvType kv_type, int max_tokens,
                                                              int threads) {
  ORCD_ASSIGN_OR_RETURN(const std::optional<PredictBlock> block,
                        PredictBlock::FromGguf(model->gguf(), model->spec(), model->weights()));
  if (!block.has_value()) return nullptr;
  auto pool = std::make_unique<ThreadPool>(threads > 0 ? threads : cpu::UsableCores());
  // A row is at the position of its token.
  const int64_t blocks = max_tokens / kBlockTokens + 1;
  ORCD_ASSIGN_OR_RETURN(auto forward, PredictForward::Create(*model, *block, *pool,
                                                             {.block_tokens = kBlockTokens,
                                                              .type = kv_type,
                                                              .blocks = blocks,
                                                              .window_blocks = blocks},
                                                             {.context = max_tokens,
                                                              .step_tokens = kStepTokens,
                                                              .logit_rows = kStepTokens}));
  return std::make_unique<CpuPredictor>(std::move(model), std::move(pool), std::move(forward),
                                        blocks);
}

}  // namespace orcd
