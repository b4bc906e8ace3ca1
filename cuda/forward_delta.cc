// The recurrent layers: a gated delta net in place of attention.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "cuda/forward.h"
#include "cuda/forward_tap.h"
#include "cuda/kernels/common/delta_net.h"
#include "cuda/status.h"
#include "runtime/base/error.h"

namespace orcd::cuda {

using enum TapPoint;

absl::Status Forward::Tap::DeltaInputs(int layer, const DeltaArgs& args) {
  const int channels = args.spec.channels();
  const int factors = 2 * args.spec.value_heads;
  ORCD_RETURN_IF_ERROR(Rows(kDeltaQkv, layer, args.u, channels));
  ORCD_ASSIGN_OR_RETURN(std::vector<float> convolved,
                        reader_.Floats(args.convolved, int64_t{tokens_} * channels));
  ORCD_ASSIGN_OR_RETURN(std::vector<float> of_factors,
                        reader_.Floats(args.factors, int64_t{tokens_} * factors));
  ORCD_ASSIGN_OR_RETURN(const std::vector<RunEntry> runs,
                        reader_.Values(args.runs.runs, args.sequences));
  // Drafts have their rows elsewhere.
  for (const RunEntry& run : runs) {
    for (int i = 0; i < run.drafts; ++i) {
      const float* const kept = args.drafts.data + args.drafts.layer_offset +
                                (run.first_draft + i) * args.drafts.draft_floats;
      ORCD_ASSIGN_OR_RETURN(const std::vector<float> row,
                            reader_.Floats(kept, DeltaDraftFloats(args.spec)));
      const int64_t token = run.first_token + run.tokens + i;
      std::copy_n(row.begin() + channels, channels, convolved.begin() + token * channels);
      std::copy_n(row.begin() + 2 * channels, factors, of_factors.begin() + token * factors);
    }
  }
  tap_.OnActivation(kDeltaConv, layer, convolved, tokens_, channels);
  tap_.OnActivation(kDeltaFactors, layer, of_factors, tokens_, factors);
  return absl::OkStatus();
}

DeltaDrafts Forward::DraftsOf(int turn) const {
  return {.data = buffers_.delta.drafts[turn], .draft_floats = DraftFloats(spec_)};
}

DeltaArgs Forward::DeltaOf(const Step& step, int layer) const {
  const DeviceDeltaNet& w = weights_.layers()[layer].delta;
  const LayerPlan& plan = plans_[layer];
  DeltaArgs args = {
      .spec = spec_.layers[layer].delta,
      .step = step.tables,
      .runs = step.runs,
      .tokens = step.shape.tokens,
      .sequences = step.shape.sequences,
      .inputs = {.conv = w.conv, .a = w.a, .dt_bias = w.dt_bias, .norm = w.norm},
      .norm_eps = spec_.norm_eps,
      .states = states_,
      .not_finite = buffers_.not_finite,
      .drafts = DraftsOf(step.turn),
      .convolved = buffers_.delta.convolved,
      .factors = buffers_.delta.factors,
      .o = buffers_.delta.o,
      .out = attended_,
  };
  args.states.layer_offset = plan.state_offset;
  args.drafts.layer_offset = plan.draft_offset;
  return args;
}

absl::Status Forward::RunDeltaNet(const Step& step, int layer) {
  const DeltaNetSpec& spec = spec_.layers[layer].delta;
  const TiledMatrix* const inputs = weights_.layers()[layer].delta.inputs;
  MatmulArgs product = {
      .product = {.matrices = {inputs[0], inputs[1], inputs[2]}, .num_matrices = 3}};
  ORCD_RETURN_IF_ERROR(MixerNorm(step, layer, product, /*in_product=*/true));
  ORCD_RETURN_IF_ERROR(MultiplySplitK(step, buffers_.qkv, product));
  DeltaArgs args = DeltaOf(step, layer);
  args.inputs.partials = buffers_.qkv;
  args.inputs.splits = splits_;
  args.inputs.partials_tokens = products_tokens_;
  args.inputs.rows = Rows(product.product);
  ORCD_RETURN_IF_ERROR(ClearPadding(step, attended_, spec.value_size()));
  if (step.shape.decode && !step.shape.drafts && step.tap == nullptr) {
    ORCD_RETURN_IF_CUDA_ERROR(LaunchDeltaToken(args, step.stream), "a delta net");
    return absl::OkStatus();
  }
  DeviceMemory shown;
  if (step.tap != nullptr) {
    const int64_t floats = int64_t{step.shape.tokens} * spec.channels();
    ORCD_ASSIGN_OR_RETURN(shown, DeviceMemory::Allocate(floats * sizeof(float), "a tap"));
    args.u = reinterpret_cast<float*>(shown.data());
  }
  ORCD_RETURN_IF_CUDA_ERROR(LaunchDeltaInputs(args, step.stream), "a delta net's inputs");
  if (step.tap != nullptr) ORCD_RETURN_IF_ERROR(step.tap->DeltaInputs(layer, args));
  ORCD_RETURN_IF_CUDA_ERROR(LaunchDeltaRule(args, device_, step.stream), "the delta rule");
  if (step.tap != nullptr) {
    ORCD_RETURN_IF_ERROR(step.tap->Rows(kDeltaOut, layer, args.o, spec.value_size()));
  }
  ORCD_RETURN_IF_CUDA_ERROR(LaunchDeltaGate(args, step.stream), "a delta net's gate");
  if (step.tap == nullptr) return absl::OkStatus();
  return step.tap->F16(kDeltaGated, layer, attended_, spec.value_size(), 1);
}

absl::Status Forward::Replay(std::span<const DeltaReplayArgs::Replay> replays, int turn,
                             cudaStream_t stream) const {
  DeltaReplayArgs args = {
      .replays = static_cast<int>(replays.size()), .states = states_, .drafts = DraftsOf(turn)};
  for (const LayerSpec& layer : spec_.layers) {
    if (!layer.recurrent()) continue;
    args.spec = layer.delta;
    ++args.layers;
  }
  std::ranges::copy(replays, args.of);
  ORCD_RETURN_IF_CUDA_ERROR(LaunchDeltaReplay(args, stream), "moving recurrent states on");
  return absl::OkStatus();
}

}  // namespace orcd::cuda
