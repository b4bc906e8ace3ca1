#include "runtime/cpu/cpu_reference.h"

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/cpu/forward.h"
#include "runtime/cpu/host_info.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/kv_caches.h"
#include "runtime/cpu/thread_pool.h"

namespace orcd {
namespace {

using cpu::Forward;
using cpu::KvCaches;
using cpu::ThreadPool;

constexpr int kBlockTokens = 16;

// Later members refer to earlier ones.
class CpuReference : public LayerReference {
 public:
  CpuReference(std::shared_ptr<const Model> model, std::unique_ptr<ThreadPool> pool,
               std::unique_ptr<KvCaches> kv, std::unique_ptr<Forward> forward)
      : model_(std::move(model)),
        pool_(std::move(pool)),
        kv_(std::move(kv)),
        forward_(std::move(forward)),
        blocks_(kv_->whole.blocks()),
        state_(model_->spec().state_floats()) {
    std::iota(blocks_.begin(), blocks_.end(), 0);
  }

  void RunLayer(std::span<const int32_t> tokens, int layer, std::span<const float> input,
                ActivationTap& tap) override {
    const cpu::ForwardSequence sequence = {
        .tokens = tokens, .first_position = 0, .blocks = {blocks_, blocks_}, .state = state_};
    forward_->RunLayer({&sequence, 1}, layer, input, &tap);
  }
  void RunHead(std::span<const float> input, ActivationTap& tap) override {
    forward_->RunHeadOn(input, tap);
  }

 private:
  const std::shared_ptr<const Model> model_;
  const std::unique_ptr<ThreadPool> pool_;
  const std::unique_ptr<KvCaches> kv_;
  const std::unique_ptr<Forward> forward_;
  // The same in both caches.
  std::vector<int32_t> blocks_;
  // Recurrent, and empty before each layer's first position.
  std::vector<float> state_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LayerReference>> CreateCpuReference(
    std::shared_ptr<const Model> model, int context, int max_tokens, int threads) {
  const ModelSpec& spec = model->spec();
  auto pool = std::make_unique<ThreadPool>(threads > 0 ? threads : cpu::UsableCores());
  const int64_t blocks = (max_tokens + kBlockTokens - 1) / kBlockTokens;
  ORCD_ASSIGN_OR_RETURN(KvCaches caches,
                        KvCaches::Create(spec, kBlockTokens, KvType::kF16, blocks, blocks));
  auto kv = std::make_unique<KvCaches>(std::move(caches));
  ORCD_ASSIGN_OR_RETURN(auto forward,
                        Forward::Create(spec, model->weights(), cpu::BestKernels(), *pool, *kv,
                                        {.context = context, .step_tokens = max_tokens}));
  return std::make_unique<CpuReference>(std::move(model), std::move(pool), std::move(kv),
                                        std::move(forward));
}

}  // namespace orcd
