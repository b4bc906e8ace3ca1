// Puts faults into the launches of a step, one at a time: the check must find each, and nothing in
// the steps without one.
#include <cstddef>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "cuda/forward.h"
#include "cuda/forward_check/checked_model_for_test.h"
#include "cuda/forward_check/symbolic_gpu.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/random_model/model_shapes.h"

namespace orcd::cuda {
namespace {

using Step = CheckedModel::Recorded;

// Index of launch `nth` of its kind in the step; throws if there is none.
template <typename Args>
size_t Find(const Step& step, int nth) {
  size_t i = 0;
  while (!std::holds_alternative<Args>(step.launches.at(i).args) || nth-- > 0) ++i;
  return i;
}
template <typename Args>
Args& Get(const Step& step, int nth = 0) {
  return std::get<Args>(step.launches[Find<Args>(step, nth)].args);
}
// Parts of product `nth` of many tokens, and the prologue of one of one token.
Activations& Input(const Step& step, int nth) {
  return std::get<Activations>(Get<GemmArgs>(step, nth).prologue);
}
template <typename Kind>
Kind& EpilogueOf(const Step& step, int nth) {
  return std::get<Kind>(Get<GemmArgs>(step, nth).epilogue);
}
NormArgs& NormOfOne(const Step& step, int nth) {
  return std::get<NormArgs>(Get<MatvecArgs>(step, nth).prologue);
}
// Has a launch run before the one that it follows.
template <typename Args>
void Hasten(const Step& step, int nth = 0) {
  const size_t i = Find<Args>(step, nth);
  std::swap(step.launches.at(i - 1), step.launches[i]);
}

struct Fault {
  std::string name;
  const char* file_type;
  StepShape step;
  std::function<void(const Step&)> plant;
  // A part of what the check says.
  std::string finding;
  // A name in AllForms.
  const char* form = "qwen2";
};
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

// Qwen2.5-7B with three layers, in a form; "mixed": with gate and up of different types.
constexpr char kF16[] = "F16";
constexpr char kQ4[] = "Q4_K_M";
constexpr char kMixed[] = "mixed";

// Numbers of products and norms, in their order, if each is one launch.
enum Which { kQkv, kAttnOutput, kGateUp, kDown };
constexpr int Of(int layer, Which product) { return 4 * layer + product; }
constexpr int AttnNorm(int layer) { return 2 * layer; }
constexpr int FfnNorm(int layer) { return 2 * layer + 1; }
constexpr int kHead = Of(3, kQkv);
constexpr int kOutputNorm = AttnNorm(3);

// Each kind of step has launches of its own. With one token, products normalise their input.
const StepShape kOne = DecodeStep(1);
const StepShape kDecode = DecodeStep(64);
// In F16, the product of the attention's output sums its partials.
const StepShape kSummed = DecodeStep(256);
// Above 512 tokens weights are dequantised first, and products add to the residual.
const StepShape kLargeDecode = DecodeStep(600);
const StepShape kPrompt = PromptStep(100, 8);
const StepShape kWholePrompt = PromptStep(100, 100);
const StepShape kLargePrompt = PromptStep(1000, 8);
// Sequences and their drafts.
const StepShape kDrafted = DraftedStep(64);

std::vector<Fault> Faults() {
  return {
      // --- Launches in another order. ---
      {"norm_before_the_product_it_adds", kQ4, kDecode,
       [](const Step& s) { Hasten<NormArgs>(s, FfnNorm(1)); }, "layer 2 has keys and values"},
      {"product_before_the_norm_of_its_input", kQ4, kDecode,
       [](const Step& s) { Hasten<GemmArgs>(s, Of(1, kQkv)); }, "layer 1 has keys and values"},
      {"attention_before_rope", kQ4, kPrompt,
       [](const Step& s) { Hasten<PrefillAttentionArgs>(s, 1); },
       "attention has queries, keys and values that do not belong together"},
      {"attention_before_the_qkv_product", kQ4, kLargePrompt,
       [](const Step& s) { Hasten<PrefillAttentionArgs>(s, 1); },
       "attention has queries, keys and values that do not belong together"},
      {"gathered_before_attention", kQ4, kPrompt, [](const Step& s) { Hasten<GatherRowsArgs>(s); },
       "the logits are"},
      {"product_before_its_weights_are_dequantised", kQ4, kLargePrompt,
       [](const Step& s) { Hasten<GemmArgs>(s, Of(1, kDown)); }, "bytes of a row tile of weights"},
      {"weights_dequantised_over_those_in_use", kQ4, kLargePrompt,
       [](const Step& s) { Hasten<DequantiseArgs>(s, 4); }, "bytes of a row tile of weights"},
      {"gate_before_its_products", kMixed, kDecode, [](const Step& s) { Hasten<SwiGluArgs>(s, 1); },
       "layer 2 has keys and values"},

      // --- A dependency that is not waited for. ---
      {"another_stream", kQ4, kDecode,
       [](const Step& s) { s.launches[Find<NormArgs>(s, FfnNorm(1))].stream = nullptr; },
       "a launch is on another stream"},
      {"dequantised_weights_not_waited_for", kQ4, kLargePrompt,
       [](const Step& s) { Get<GemmArgs>(s, Of(1, kDown)).product.weights_are_new = false; },
       "a product of many tokens does not know that its weights are new"},

      // --- Buffers. ---
      {"input_from_the_scratch_that_gated_shares", kQ4, kDecode,
       [](const Step& s) { Input(s, Of(1, kAttnOutput)).data = s.buffers.gated; },
       "bytes of its input"},
      {"input_of_the_ffn_for_the_head", kQ4, kPrompt,
       [](const Step& s) {
         std::get<Activations>(Get<MatvecArgs>(s, 3).prologue).data = s.buffers.normed;
       },
       "the logits are"},
      {"qkv_over_the_other_products", kQ4, kDecode,
       [](const Step& s) { EpilogueOf<StoreF32>(s, Of(1, kQkv)).y = s.buffers.products; },
       "layer 1 has keys and values"},
      {"residual_of_one_token_in_place", kQ4, kOne,
       [](const Step& s) {
         NormArgs& norm = NormOfOne(s, Of(1, kQkv));
         norm.new_residual = norm.residual;
       },
       "a product of few tokens writes what it uses"},
      {"residual_of_one_token_from_the_norm_before", kQ4, kOne,
       [](const Step& s) {
         NormArgs& norm = NormOfOne(s, Of(1, kGateUp));
         norm.residual = norm.new_residual;
         norm.new_residual = s.buffers.gathered_residual;
       },
       "layer 2 has keys and values"},
      {"residual_of_all_tokens_after_gathering", kQ4, kPrompt,
       [](const Step& s) { Get<NormArgs>(s, FfnNorm(2)).residual = s.buffers.residual[0]; },
       "bytes of the residual"},
      {"stream_k_sums_over_weights_in_use", kQ4, kLargePrompt,
       [](const Step& s) { Get<GemmArgs>(s, Of(1, kDown)).stream_k.sums = s.buffers.dequantised; },
       "a product of many tokens writes what it uses"},
      {"attention_shares_keys_among_other_blocks", kQ4, kDecode,
       [](const Step& s) { Get<DecodeAttentionArgs>(s, 1).key_splits = 2; },
       "decode attention shares keys among other blocks"},
      {"heads_of_another_model", kQ4, kLargePrompt,
       [](const Step& s) {
         QkvProduct& qkv = EpilogueOf<StoreQkv>(s, Of(1, kQkv)).rope.qkv;
         qkv.head_dim = qkv.rope_dims = 64;
       },
       "bytes of a bias"},
      {"no_cache", kQ4, kPrompt, [](const Step& s) { Get<PrefillAttentionArgs>(s, 1).kv = {}; },
       "attention has the wrong cache"},
      {"partials_of_attention_over_its_input", kQ4, kDecode,
       [](const Step& s) { Get<DecodeAttentionArgs>(s, 1).partials = s.buffers.qkv; },
       "decode attention writes what it uses"},
      {"part_of_the_head_over_another", kQ4, kLargeDecode,
       [](const Step& s) {
         EpilogueOf<StoreF32>(s, kHead + 1).y = EpilogueOf<StoreF32>(s, kHead).y;
       },
       "the sampler finds no logits of row 0 and column 0"},
      {"values_that_are_not_finite_unmarked", kQ4, kPrompt,
       [](const Step& s) { Get<RopeArgs>(s, 1).not_finite = nullptr; },
       "RoPE has the wrong marks of values that are not finite"},

      // --- Rows and columns. ---
      {"norm_of_a_token_fewer", kQ4, kDecode,
       [](const Step& s) { --Get<NormArgs>(s, FfnNorm(1)).tokens; },
       "a norm has the wrong rows, 63 of 64"},
      {"product_of_a_token_fewer", kQ4, kDecode,
       [](const Step& s) { --Get<GemmArgs>(s, Of(1, kGateUp)).product.tokens; },
       "a product of many tokens has the wrong rows, 63 of 64"},
      {"queries_of_a_token_fewer", kQ4, kLargePrompt,
       [](const Step& s) {
         --Get<GemmArgs>(s, Of(1, kQkv)).product.tokens;
         --EpilogueOf<StoreQkv>(s, Of(1, kQkv)).rope.tokens;
       },
       "a product of many tokens has the wrong rows, 999 of 1000"},
      {"attention_of_a_sequence_fewer", kQ4, kPrompt,
       [](const Step& s) { --Get<PrefillAttentionArgs>(s, 1).sequences; },
       "attention has the wrong sequences"},
      {"decode_attention_of_a_sequence_fewer", kQ4, kDecode,
       [](const Step& s) { --Get<DecodeAttentionArgs>(s, 1).sequences; },
       "decode attention has the wrong rows, 63 of 64"},
      {"a_row_fewer_gathered", kQ4, kPrompt, [](const Step& s) { --Get<GatherRowsArgs>(s).count; },
       "gathering rows has the wrong rows, 7 of 8"},
      {"product_in_the_rows_of_the_next_sequence", kQ4, kDecode,
       [](const Step& s) {
         StoreF32& store = EpilogueOf<StoreF32>(s, Of(1, kDown));
         store.y += store.stride;
       },
       "reads partial 0 of 4 of token 1 of"},
      {"norm_adds_the_rows_of_the_next_sequence", kQ4, kDecode,
       [](const Step& s) {
         NormArgs& args = Get<NormArgs>(s, FfnNorm(1));
         args.partials += args.hidden;
       },
       "reads partial 0 of 4 of token 0 of"},
      {"rows_of_the_next_sequence_gathered", kQ4, kPrompt,
       [](const Step& s) { ++Get<GatherRowsArgs>(s).rows; }, "gathering rows has the wrong tables"},
      {"logits_of_the_first_tokens", kQ4, kWholePrompt,
       [](const Step& s) { Get<NormArgs>(s, kOutputNorm).rows = nullptr; }, "the logits are"},
      {"rows_gathered_twice", kQ4, kPrompt,
       [](const Step& s) { Get<NormArgs>(s, kOutputNorm).rows = Get<GatherRowsArgs>(s).rows; },
       "bytes of the residual"},
      {"keys_in_the_columns_of_queries", kQ4, kLargePrompt,
       [](const Step& s) { EpilogueOf<StoreQkv>(s, Of(1, kQkv)).first_row = 8; },
       "attention has queries, keys and values that do not belong together"},
      {"partials_at_another_stride", kQ4, kDecode,
       [](const Step& s) { ++Get<NormArgs>(s, FfnNorm(1)).partials_tokens; },
       "reads partial 1 of 4 of token 0 of"},

      // --- Layers. ---
      {"queries_see_another_layers_cache", kQ4, kPrompt,
       [](const Step& s) { Get<PrefillAttentionArgs>(s, 1).layer = 0; },
       "attention has queries, keys and values that do not belong together"},
      {"rope_fills_another_layers_cache", kQ4, kPrompt,
       [](const Step& s) {
         RopeArgs& args = Get<RopeArgs>(s, 1);
         args.layer = 0;
         args.qkv.query_split = s.buffers.query_split;
       },
       "attention has queries, keys and values that do not belong together"},
      {"product_fills_another_layers_cache", kQ4, kLargePrompt,
       [](const Step& s) {
         RopeArgs& args = EpilogueOf<StoreQkv>(s, Of(1, kQkv)).rope;
         args.layer = 0;
         args.qkv.query_split = s.buffers.query_split;
       },
       "attention has queries, keys and values that do not belong together"},
      {"decode_attention_in_another_layers_cache", kQ4, kDecode,
       [](const Step& s) {
         DecodeAttentionArgs& args = Get<DecodeAttentionArgs>(s, 1);
         args.layer = 0;
         args.qkv.query_split = s.buffers.query_split;
       },
       "layer 0 has keys and values"},
      {"parts_of_another_layers_queries_in_rope", kQ4, kPrompt,
       [](const Step& s) { Get<RopeArgs>(s, 1).qkv.query_split = s.buffers.query_split; },
       "RoPE has another layer's parts of queries"},
      {"parts_of_another_layers_queries", kQ4, kPrompt,
       [](const Step& s) { Get<PrefillAttentionArgs>(s, 1).query_split = s.buffers.query_split; },
       "attention has another layer's parts of queries"},
      {"norm_with_another_layers_weights", kQ4, kDecode,
       [](const Step& s) { Get<NormArgs>(s, FfnNorm(1)).weight = s.weights.layers()[0].ffn_norm; },
       "layer 2 has keys and values"},
      {"bias_of_another_layer", kQ4, kDecode,
       [](const Step& s) {
         Get<DecodeAttentionArgs>(s, 1).qkv.bias = s.weights.layers()[0].qkv_bias;
       },
       "layer 1 has keys and values"},
      {"product_with_another_layers_weights", kQ4, kDecode,
       [](const Step& s) {
         Get<GemmArgs>(s, Of(1, kGateUp)).product.matrices[0] = s.weights.layers()[0].gate_up;
       },
       "layer 2 has keys and values"},
      {"keys_and_values_exchanged", kF16, kDecode,
       [](const Step& s) {
         TiledMatrix* const matrices = Get<GemmArgs>(s, Of(1, kQkv)).product.matrices;
         std::swap(matrices[1], matrices[2]);
       },
       "layer 1 has keys and values"},
      {"gate_and_up_exchanged", kMixed, kOne,
       [](const Step& s) {
         TiledMatrix* const matrices = Get<MatvecArgs>(s, Of(1, kGateUp)).product.matrices;
         std::swap(matrices[0], matrices[1]);
       },
       "layer 2 has keys and values"},
      {"exponent_of_another_matrix", kQ4, kLargePrompt,
       [](const Step& s) { ++Get<GemmArgs>(s, Of(1, kDown)).product.matrices[0].exponent; },
       "a product of many tokens has the wrong exponent"},
      {"part_of_the_head_without_its_exponent", kQ4, kLargeDecode,
       [](const Step& s) { Get<GemmArgs>(s, kHead + 1).product.matrices[0].exponent = 0; },
       "a product of many tokens has the wrong exponent"},

      // --- Sums. ---
      {"norm_adds_fewer_partials", kQ4, kDecode,
       [](const Step& s) { --Get<NormArgs>(s, FfnNorm(1)).splits; },
       "reads partial 0 of 3 of token 0 of"},
      {"another_split_k_factor", kQ4, kDecode,
       [](const Step& s) {
         --Get<GemmArgs>(s, Of(1, kAttnOutput)).product.splits;
         --Get<NormArgs>(s, FfnNorm(1)).splits;
       },
       "a product of many tokens has the wrong split-K factor"},
      {"another_split_k_factor_within_a_product", kQ4, kLargePrompt,
       [](const Step& s) { --Get<GemmArgs>(s, Of(1, kAttnOutput)).product.splits; },
       "a product of many tokens has the wrong split-K factor"},
      {"partials_not_summed", kF16, kSummed,
       [](const Step& s) { EpilogueOf<StoreF32>(s, Of(1, kAttnOutput)).sum = false; },
       "reads partial 0 of 1 of token 0 of"},
      {"product_not_added_by_the_norm", kQ4, kDecode,
       [](const Step& s) { Get<NormArgs>(s, FfnNorm(1)).partials = nullptr; },
       "layer 2 has keys and values"},
      {"product_not_added_by_the_next_product", kQ4, kOne,
       [](const Step& s) { NormOfOne(s, Of(1, kGateUp)).partials = nullptr; },
       "layer 2 has keys and values"},
      {"product_not_added_by_itself", kQ4, kLargePrompt,
       [](const Step& s) {
         const int stride = EpilogueOf<AddToResidual>(s, Of(1, kDown)).stride;
         Get<GemmArgs>(s, Of(1, kDown)).epilogue = StoreF32{s.buffers.products, stride, true};
       },
       "layer 2 has keys and values"},
      {"product_added_twice", kQ4, kLargePrompt,
       [](const Step& s) {
         const GemmArgs again = Get<GemmArgs>(s, Of(1, kDown));
         s.launches.insert(
             s.launches.begin() + static_cast<ptrdiff_t>(Find<GemmArgs>(s, Of(1, kDown))),
             {again, s.launches[0].stream});
       },
       "layer 2 has keys and values"},
      {"norm_adds_at_another_scale", kQ4, kDecode,
       [](const Step& s) { Get<NormArgs>(s, AttnNorm(1)).scale = 1; },
       "layer 1 has keys and values"},
      {"product_adds_at_another_scale", kQ4, kLargePrompt,
       [](const Step& s) { EpilogueOf<AddToResidual>(s, Of(1, kDown)).scale = 1; },
       "layer 2 has keys and values"},
      {"another_epsilon", kQ4, kDecode,
       [](const Step& s) { Get<NormArgs>(s, kOutputNorm).eps = 1e-5f; },
       "a norm has the wrong epsilon"},

      // --- Tables of the other step in flight. ---
      {"stale_tables_of_the_embedding", kQ4, kDecode,
       [](const Step& s) { Get<EmbedArgs>(s).step = s.other_tables.tables(); },
       "the embedding has the wrong tables"},
      {"stale_tables_of_rope", kQ4, kPrompt,
       [](const Step& s) { Get<RopeArgs>(s, 1).step = s.other_tables.tables(); },
       "RoPE has the wrong tables"},
      {"stale_tables_of_a_product", kQ4, kLargePrompt,
       [](const Step& s) {
         EpilogueOf<StoreQkv>(s, Of(1, kQkv)).rope.step = s.other_tables.tables();
       },
       "a product of many tokens has the wrong tables"},
      {"stale_tables_of_attention", kQ4, kPrompt,
       [](const Step& s) { Get<PrefillAttentionArgs>(s, 1).step = s.other_tables.tables(); },
       "attention has the wrong tables"},
      {"stale_tables_of_decode_attention", kQ4, kDecode,
       [](const Step& s) { Get<DecodeAttentionArgs>(s, 1).step = s.other_tables.tables(); },
       "decode attention has the wrong tables"},
      {"stale_rows_gathered", kQ4, kPrompt,
       [](const Step& s) { Get<GatherRowsArgs>(s).rows = s.other_tables.logit_tokens; },
       "gathering rows has the wrong tables"},
      {"stale_rows_of_the_output_norm", kQ4, kDecode,
       [](const Step& s) { Get<NormArgs>(s, kOutputNorm).rows = s.other_tables.logit_tokens; },
       "a norm has the wrong tables"},
      {"stale_tables_of_the_sampler", kQ4, kDecode,
       [](const Step& s) { Get<SampleArgs>(s).step = s.other_tables.tables(); },
       "the sampler has the wrong tables"},
      {"stale_draws", kQ4, kDecode,
       [](const Step& s) { Get<SampleArgs>(s).draws = s.other_tables.draws; },
       "the sampler has the wrong draws"},
      {"stale_biases", kQ4, kPrompt,
       [](const Step& s) { Get<SampleArgs>(s).biases = s.other_tables.biases; },
       "the sampler has the wrong biases"},
      {"stale_masks", kQ4, kPrompt,
       [](const Step& s) { Get<SampleArgs>(s).masks = s.other_tables.masks; },
       "the sampler has the wrong masks"},
      {"masks_from_the_second_on", kQ4, kDecode,
       [](const Step& s) { Get<SampleArgs>(s).masks += s.other_tables.mask_words; },
       "the sampler has the wrong masks"},

      // --- Draws. ---
      {"drawn_before_the_head", kQ4, kDecode, [](const Step& s) { Hasten<SampleArgs>(s); },
       "the sampler finds no logits of row 0 and column 0"},
      {"a_row_fewer_drawn", kQ4, kPrompt, [](const Step& s) { --Get<SampleArgs>(s).rows; },
       "the sampler has the wrong rows, 7 of 8"},
      {"drawn_from_the_logits_of_the_next_row", kQ4, kDecode,
       [](const Step& s) { Get<SampleArgs>(s).logits += Get<SampleArgs>(s).vocab; },
       "the sampler has the wrong logits"},
      {"samples_where_no_step_finds_them", kQ4, kOne,
       [](const Step& s) { ++Get<SampleArgs>(s).last_sample; },
       "the sampler has the wrong samples"},
      {"penalties_for_other_tokens", kQ4, kOne,
       [](const Step& s) { ++Get<SampleArgs>(s).block_token_ids; },
       "the sampler has the wrong ids of tokens in blocks"},
      {"marks_not_read_by_the_sampler", kQ4, kOne,
       [](const Step& s) { Get<SampleArgs>(s).not_finite = nullptr; },
       "the sampler has the wrong marks of values that are not finite"},
      {"drawn_twice", kQ4, kDecode, [](const Step& s) { s.launches.push_back(s.launches.back()); },
       "the sampler draws again"},
  };
}

// Faults in what only the forms of other families have.
std::vector<Fault> FaultsOfForms() {
  return {
      // --- Attention. ---
      {"keys_of_a_window_in_the_whole_cache", kQ4, kPrompt,
       [](const Step& s) { Get<RopeArgs>(s, 0).kv = Get<RopeArgs>(s, 1).kv; },
       "RoPE has the wrong tables", "gemma2"},
      {"whole_cache_with_the_tables_of_windows", kQ4, kDecode,
       [](const Step& s) {
         DecodeAttentionArgs& args = Get<DecodeAttentionArgs>(s, 1);
         args.step = args.step.OfWindows();
       },
       "decode attention has the wrong tables", "gemma2"},
      {"windows_with_the_tables_of_the_whole_cache", kQ4, kPrompt,
       [](const Step& s) {
         Get<PrefillAttentionArgs>(s, 0).step = Get<PrefillAttentionArgs>(s, 1).step;
       },
       "attention has the wrong tables", "gemma2"},
      {"another_layer_of_the_cache_of_windows", kQ4, kPrompt,
       [](const Step& s) { Get<PrefillAttentionArgs>(s, 2).layer = 0; },
       "attention has queries, keys and values that do not belong together", "gemma2"},
      {"layer_of_the_model_in_the_cache_of_windows", kQ4, kPrompt,
       [](const Step& s) { Get<PrefillAttentionArgs>(s, 2).layer = 2; },
       "attention has the wrong cache", "gemma2"},
      {"no_window", kQ4, kDecode,
       [](const Step& s) { Get<DecodeAttentionArgs>(s, 0).rule.window = 0; },
       "layer 1 has keys and values", "gemma2"},
      {"scores_without_their_softcap", kQ4, kPrompt,
       [](const Step& s) { Get<PrefillAttentionArgs>(s, 0).rule.score_softcap = 0; },
       "layer 1 has keys and values", "gemma2"},
      {"scores_at_another_scale", kQ4, kPrompt,
       [](const Step& s) { Get<PrefillAttentionArgs>(s, 1).rule.score_scale = 1; },
       "layer 2 has keys and values", "granite"},
      {"angles_of_another_layer", kQ4, kPrompt,
       [](const Step& s) { Get<RopeArgs>(s, 0).qkv.angles = Get<RopeArgs>(s, 1).qkv.angles; },
       "layer 0 has keys and values", "gemma3"},
      {"other_pairs_rotated", kQ4, kDecode,
       [](const Step& s) {
         Get<DecodeAttentionArgs>(s, 1).qkv.rope_pairs = RopePairs::kNeighbours;
       },
       "layer 1 has keys and values", "llama"},
      {"more_dimensions_rotated", kQ4, kDecode,
       [](const Step& s) { Get<DecodeAttentionArgs>(s, 1).qkv.rope_dims = 128; },
       "decode attention has the wrong dimensions", "glm4"},
      {"rope_in_a_layer_without", kQ4, kDecode,
       [](const Step& s) {
         DecodeAttentionArgs& args = Get<DecodeAttentionArgs>(s, 3);
         args.qkv.rope_dims = 128;
         args.qkv.angles = s.buffers.angles[0];
       },
       "layer 3 has keys and values", "smollm3"},
      {"queries_without_their_temperature", kQ4, kPrompt,
       [](const Step& s) { Get<RopeArgs>(s, 1).qkv.temperature = 0; },
       "layer 1 has keys and values", "mistral3"},
      {"norm_of_another_layers_keys", kQ4, kDecode,
       [](const Step& s) {
         Get<DecodeAttentionArgs>(s, 1).qkv.k_norm = s.weights.layers()[0].k_norm;
       },
       "layer 1 has keys and values", "qwen3"},
      {"norm_of_each_head_in_place_of_all", kQ4, kDecode,
       [](const Step& s) { Get<RopeArgs>(s, 1).qkv.norm_projection = false; },
       "bytes of a norm of queries", "olmo2"},
      {"attention_before_rope_in_decode", kQ4, kDecode,
       [](const Step& s) { Hasten<DecodeAttentionArgs>(s, 1); },
       "decode attention has queries, keys and values that do not belong together", "olmo2"},
      {"parts_of_queries_without_a_bias", kQ4, kDecode,
       [](const Step& s) {
         Get<DecodeAttentionArgs>(s, 1).qkv.query_split = s.buffers.query_split;
       },
       "decode attention has parts of queries without a bias", "qwen3"},

      // --- Branches and norms. ---
      {"branch_without_its_norm", kQ4, kDecode,
       [](const Step& s) { Get<NormArgs>(s, FfnNorm(1)).post_norm = nullptr; },
       "layer 2 has keys and values", "gemma2"},
      {"norm_of_another_layers_branch", kQ4, kLargePrompt,
       [](const Step& s) {
         Get<NormArgs>(s, AttnNorm(1)).post_norm = s.weights.layers()[1].ffn_post_norm;
       },
       "layer 1 has keys and values", "gemma3"},
      {"branch_not_added_by_the_head", kQ4, kDecode,
       [](const Step& s) { Get<NormArgs>(s, kOutputNorm).partials = nullptr; }, "the logits are",
       "gemma2"},
      {"norm_before_attention", kQ4, kDecode,
       [](const Step& s) {
         Get<NormArgs>(s, AttnNorm(1)).weight = s.weights.layers()[1].attn_post_norm;
       },
       "layer 1 has keys and values", "olmo2"},
      {"branch_at_another_scale", kQ4, kDecode,
       [](const Step& s) { Get<NormArgs>(s, FfnNorm(1)).scale = 1; }, "layer 2 has keys and values",
       "granite"},
      {"product_at_another_scale_of_one_token", kQ4, kOne,
       [](const Step& s) { NormOfOne(s, Of(1, kGateUp)).scale = 1; }, "layer 2 has keys and values",
       "granite"},
      {"normalised_branch_at_another_scale", kQ4, kDecode,
       [](const Step& s) { Get<NormArgs>(s, FfnNorm(1)).residual_scale = 1; },
       "layer 2 has keys and values", "scaled_branches"},
      {"parallel_branch_not_added", kQ4, kDecode,
       [](const Step& s) { Get<NormArgs>(s, FfnNorm(1)).partials = nullptr; },
       "layer 2 has keys and values", "cohere2"},
      {"parallel_ffn_of_what_attention_made", kQ4, kDecode,
       [](const Step& s) { Input(s, Of(1, kGateUp)).data = s.buffers.attended; },
       "layer 2 has keys and values", "cohere2"},
      {"parallel_branch_added_after_the_other", kQ4, kDecode,
       [](const Step& s) {
         const size_t i = Find<NormArgs>(s, FfnNorm(1));
         const KernelLaunch add = s.launches[i];
         s.launches.erase(s.launches.begin() + static_cast<ptrdiff_t>(i));
         s.launches.insert(
             s.launches.begin() + static_cast<ptrdiff_t>(Find<GemmArgs>(s, Of(1, kDown)) + 1), add);
       },
       "layer 2 has keys and values", "cohere2"},
      {"rms_norm_in_place_of_a_layer_norm", kQ4, kDecode,
       [](const Step& s) { Get<NormArgs>(s, AttnNorm(1)).kind = NormKind::kRms; },
       "layer 1 has keys and values", "cohere2"},
      {"layer_norm_in_a_product", kQ4, kOne,
       [](const Step& s) {
         const NormArgs norm = Get<NormArgs>(s, AttnNorm(1));
         Get<MatvecArgs>(s, Of(1, kQkv)).prologue = norm;
       },
       "a product of few tokens cannot normalise its input so", "cohere2"},
      {"product_adds_what_has_a_norm", kQ4, kLargePrompt,
       [](const Step& s) {
         GemmArgs& args = Get<GemmArgs>(s, Of(1, kDown));
         args.epilogue = AddToResidual{s.buffers.residual[0], s.weights.layers()[0].down.rows, 16};
       },
       "layer 2 has keys and values", "gemma2"},
      {"embedding_at_another_scale", kQ4, kDecode,
       [](const Step& s) { Get<EmbedArgs>(s).scale = 1; }, "layer 0 has keys and values", "gemma2"},

      // --- Biases, gates, logits. ---
      {"bias_of_another_layers_output", kQ4, kDecode,
       [](const Step& s) {
         Get<NormArgs>(s, FfnNorm(1)).bias = s.weights.layers()[0].attn_output_bias;
       },
       "layer 2 has keys and values", "biases"},
      {"no_bias_of_down", kQ4, kLargePrompt,
       [](const Step& s) { Get<NormArgs>(s, AttnNorm(2)).bias = nullptr; },
       "layer 2 has keys and values", "biases"},
      {"bias_of_another_layers_gate", kQ4, kDecode,
       [](const Step& s) { Get<SwiGluArgs>(s, 1).bias = s.weights.layers()[0].gate_up_bias; },
       "layer 2 has keys and values", "biases"},
      {"another_activation", kQ4, kDecode,
       [](const Step& s) { EpilogueOf<SwiGlu>(s, Of(1, kGateUp)).activation = Activation::kSilu; },
       "layer 2 has keys and values", "gemma2"},
      {"another_activation_of_a_gate_apart", kMixed, kDecode,
       [](const Step& s) { Get<SwiGluArgs>(s, 1).activation = Activation::kSilu; },
       "layer 2 has keys and values", "gemma2"},
      {"logits_without_their_softcap", kQ4, kDecode,
       [](const Step& s) { Get<ScaleLogitsArgs>(s).softcap = 0; }, "the logits are", "gemma2"},
      {"logits_at_another_scale", kQ4, kOne,
       [](const Step& s) { Get<ScaleLogitsArgs>(s).scale = 1; }, "the logits are", "granite"},
      {"logits_of_a_row_fewer_scaled", kQ4, kPrompt,
       [](const Step& s) { --Get<ScaleLogitsArgs>(s).rows; },
       "scaling logits has the wrong rows, 7 of 8", "granite"},
      {"logits_scaled_twice", kQ4, kDecode,
       [](const Step& s) {
         const size_t i = Find<ScaleLogitsArgs>(s, 0);
         const KernelLaunch again = s.launches[i];
         s.launches.insert(s.launches.begin() + static_cast<ptrdiff_t>(i), again);
       },
       "the logits are", "cohere2"},
  };
}

// Faults in layers with experts. Each has one router, choice, sorting and sum, and two products.
std::vector<Fault> FaultsOfExperts() {
  return {
      // --- Launches in another order. ---
      {"experts_before_their_rows_are_sorted", kQ4, kDecode,
       [](const Step& s) { Hasten<ExpertMatmulArgs>(s, 2); }, "bytes of the experts' rows",
       "qwen3moe"},
      {"tokens_sorted_before_experts_are_chosen", kQ4, kDecode,
       [](const Step& s) { Hasten<GatherExpertRowsArgs>(s, 1); }, "layer 2 has keys and values",
       "qwen3moe"},
      {"experts_chosen_by_stale_logits", kQ4, kDecode,
       [](const Step& s) { Hasten<ChooseExpertsArgs>(s, 1); }, "layer 2 has keys and values",
       "qwen3moe"},
      {"down_before_gate_and_up", kQ4, kLargePrompt,
       [](const Step& s) { Hasten<ExpertMatmulArgs>(s, 3); }, "bytes of the experts' rows",
       "qwen3moe"},
      {"experts_added_before_the_shared_one", kQ4, kDecode,
       [](const Step& s) { Hasten<CombineExpertsArgs>(s, 1); }, "of the shared expert's product",
       "qwen2moe"},

      // One token's experts are not gathered, and `down` adds them up.
      {"one_tokens_down_before_gate_and_up", kQ4, kOne,
       [](const Step& s) { Hasten<ExpertMatmulArgs>(s, 3); }, "bytes of the experts' rows",
       "qwen3moe"},
      {"one_tokens_experts_before_their_choice", kQ4, kOne,
       [](const Step& s) { Hasten<ExpertMatmulArgs>(s, 2); },
       "a product of experts has the wrong launch before it", "qwen3moe"},
      {"one_tokens_experts_without_weights", kQ4, kOne,
       [](const Step& s) {
         SumOfChoices& sum = std::get<SumOfChoices>(Get<ExpertMatmulArgs>(s, 3).epilogue);
         sum.weights = reinterpret_cast<const float*>(s.buffers.experts.tables.rows);
       },
       "a product of experts has the wrong table of experts", "qwen3moe"},
      {"one_tokens_norm_before_its_product", kQ4, kOne,
       [](const Step& s) { Hasten<RouteOneTokenArgs>(s, 1); }, "layer 2 has keys and values",
       "qwen3moe"},
      {"one_tokens_experts_by_another_norm", kQ4, kOne,
       [](const Step& s) {
         RouteOneTokenArgs& args = Get<RouteOneTokenArgs>(s, 1);
         args.norm.weight = s.weights.layers()[0].ffn_norm;
       },
       "layer 2 has keys and values", "qwen3moe"},
      {"one_tokens_residual_in_place", kQ4, kOne,
       [](const Step& s) {
         NormArgs& norm = Get<RouteOneTokenArgs>(s, 1).norm;
         norm.new_residual = norm.residual;
       },
       "writes what it uses", "qwen3moe"},
      {"one_tokens_router_of_another_layer", kQ4, kOne,
       [](const Step& s) {
         Get<RouteOneTokenArgs>(s, 1).router.weights = s.weights.layers()[0].experts.router;
       },
       "layer 2 has keys and values", "qwen3moe"},
      {"one_tokens_logits_passed_elsewhere", kQ4, kOne,
       [](const Step& s) { Get<RouteOneTokenArgs>(s, 1).passed = nullptr; },
       "the choice of one token's experts has the wrong logits that blocks pass", "qwen3moe"},
      {"no_bias_of_one_tokens_down", kQ4, kOne,
       [](const Step& s) {
         std::get<SumOfChoices>(Get<ExpertMatmulArgs>(s, 3).epilogue).bias = nullptr;
       },
       "layer 2 has keys and values", "gpt_oss"},
      {"one_tokens_sum_at_another_scale", kQ4, kOne,
       [](const Step& s) {
         std::get<SumOfChoices>(Get<ExpertMatmulArgs>(s, 3).epilogue).scale = 1;
       },
       "layer 2 has keys and values", "qwen3moe"},

      // --- Weights. ---
      {"router_of_another_layer", kQ4, kDecode,
       [](const Step& s) { Get<RouterArgs>(s, 1).weights = s.weights.layers()[0].experts.router; },
       "layer 2 has keys and values", "qwen3moe"},
      {"router_without_the_shared_experts_row", kQ4, kDecode,
       [](const Step& s) { --Get<RouterArgs>(s, 1).outputs; }, "bytes of a router's weights",
       "qwen2moe"},
      {"router_without_its_bias", kQ4, kDecode,
       [](const Step& s) { Get<RouterArgs>(s, 1).bias = nullptr; }, "layer 2 has keys and values",
       "gpt_oss"},
      {"no_selection_bias", kQ4, kDecode,
       [](const Step& s) { Get<ChooseExpertsArgs>(s, 0).selection_bias = nullptr; },
       "layer 2 has keys and values", "glm4moe"},
      {"experts_of_another_layer", kQ4, kDecode,
       [](const Step& s) {
         Get<ExpertMatmulArgs>(s, 2).experts = s.weights.layers()[0].experts.gate_up;
       },
       "layer 2 has keys and values", "qwen3moe"},
      {"another_exponent_of_experts", kQ4, kDecode,
       [](const Step& s) { ++Get<ExpertMatmulArgs>(s, 3).experts.exponent; },
       "a product of experts has the wrong exponent", "qwen3moe"},
      {"experts_without_their_bias", kQ4, kDecode,
       [](const Step& s) { Get<ExpertMatmulArgs>(s, 2).bias = nullptr; },
       "layer 2 has keys and values", "gpt_oss"},
      {"no_bias_of_experts_down", kQ4, kPrompt,
       [](const Step& s) { Get<CombineExpertsArgs>(s, 1).bias = nullptr; },
       "layer 2 has keys and values", "gpt_oss"},
      {"another_activation_of_experts", kQ4, kDecode,
       [](const Step& s) {
         std::get<SwiGlu>(Get<ExpertMatmulArgs>(s, 2).epilogue).activation = Activation::kSilu;
       },
       "layer 2 has keys and values", "gpt_oss"},
      {"no_sinks", kQ4, kDecode,
       [](const Step& s) { Get<DecodeAttentionArgs>(s, 1).rule.sinks = nullptr; },
       "layer 2 has keys and values", "gpt_oss"},
      {"sinks_of_another_layer", kQ4, kPrompt,
       [](const Step& s) {
         Get<PrefillAttentionArgs>(s, 1).rule.sinks = s.weights.layers()[0].attn_sinks;
       },
       "layer 2 has keys and values", "gpt_oss"},

      // --- Rows and tables. ---
      {"router_of_what_was_there_before", kQ4, kDecode,
       [](const Step& s) { Get<NormArgs>(s, FfnNorm(1)).out_f32 = nullptr; },
       "bytes of the input of a router", "qwen3moe"},
      {"another_rule_of_choice", kQ4, kDecode,
       [](const Step& s) { Get<ChooseExpertsArgs>(s, 1).spec.normalise = false; },
       "layer 2 has keys and values", "qwen3moe"},
      {"experts_of_a_token_fewer", kQ4, kDecode,
       [](const Step& s) { --Get<ChooseExpertsArgs>(s, 1).tokens; },
       "the choice of experts has the wrong rows, 63 of 64", "qwen3moe"},
      {"stale_tables_of_the_choice", kQ4, kDecode,
       [](const Step& s) { Get<ChooseExpertsArgs>(s, 1).step_tokens = s.other_tables.tokens; },
       "the choice of experts has the wrong tables", "qwen3moe"},
      {"tokens_of_the_step_after_gathering", kQ4, kPrompt,
       [](const Step& s) {
         Get<ChooseExpertsArgs>(s, 2).step_tokens = Get<EmbedArgs>(s).step.tokens;
       },
       "the choice of experts has the wrong tables", "qwen3moe"},
      {"tiles_of_other_rows", kQ4, kLargePrompt,
       [](const Step& s) { Get<ExpertMatmulArgs>(s, 2).tile_rows /= 2; },
       "a product of experts has the wrong rows of a tile", "qwen3moe"},
      {"fewer_tiles", kQ4, kDecode, [](const Step& s) { --Get<ExpertMatmulArgs>(s, 3).max_tiles; },
       "bytes of a table of experts", "qwen3moe"},
      {"rows_of_an_expert_fewer", kQ4, kDecode,
       [](const Step& s) { Get<ExpertMatmulArgs>(s, 3).expert_rows -= kTileRows; },
       "a product of experts has the wrong rows of an expert", "qwen3moe"},
      {"weights_in_place_of_rows", kQ4, kDecode,
       [](const Step& s) {
         CombineExpertsArgs& args = Get<CombineExpertsArgs>(s, 1);
         args.tables.rows = args.tables.chosen;
       },
       "the sum of experts has the wrong table of experts", "qwen3moe"},
      {"counters_of_nothing", kQ4, kDecode,
       [](const Step& s) { Get<ChooseExpertsArgs>(s, 1).load = nullptr; },
       "the choice of experts has the wrong counters", "qwen3moe"},
      {"load_not_told", kQ4, kPrompt,
       [](const Step& s) { Get<ChooseExpertsArgs>(s, 2).published_load = nullptr; },
       "the host gets another load of experts", "qwen3moe"},

      // --- Sums. ---
      {"sum_over_the_shared_experts_product", kQ4, kDecode,
       [](const Step& s) { Get<CombineExpertsArgs>(s, 1).out = s.buffers.products; },
       "the sum of experts writes what it uses", "qwen2moe"},
      {"shared_expert_not_added", kQ4, kDecode,
       [](const Step& s) { Get<CombineExpertsArgs>(s, 1).shared = nullptr; },
       "layer 2 has keys and values", "qwen2moe"},
      {"shared_expert_added_whole", kQ4, kDecode,
       [](const Step& s) { Get<CombineExpertsArgs>(s, 1).tables.shared_weights = nullptr; },
       "layer 2 has keys and values", "qwen2moe"},
      {"shared_expert_at_another_scale", kQ4, kDecode,
       [](const Step& s) { Get<CombineExpertsArgs>(s, 1).shared_scale = 1; },
       "the sum of experts has the wrong scale", "qwen2moe"},
      {"fewer_partials_of_the_shared_expert", kF16, kDecode,
       [](const Step& s) { ++Get<CombineExpertsArgs>(s, 1).shared_splits; },
       "the shared expert's product", "qwen2moe"},
      {"experts_at_another_scale", kQ4, kLargePrompt,
       [](const Step& s) { Get<CombineExpertsArgs>(s, 1).scale = 1; },
       "layer 2 has keys and values", "qwen3moe"},
      {"experts_not_added_by_the_norm", kQ4, kDecode,
       [](const Step& s) { Get<NormArgs>(s, AttnNorm(2)).partials = nullptr; },
       "layer 2 has keys and values", "qwen3moe"},
  };
}

// Faults in recurrent layers, which layers 0 and 2 are, and in the gate of attention.
std::vector<Fault> FaultsOfHybrids() {
  const auto other_drafts = [](const Step& s, const DeltaDrafts& drafts) {
    float* const* const of = s.buffers.delta.drafts;
    return drafts.data == of[0] ? of[1] : of[0];
  };
  // Has a launch of layer 2 take the places of layer 0.
  const auto to_first = [](DeltaArgs& args) {
    args.states.layer_offset = 0;
    args.drafts.layer_offset = 0;
  };
  return {
      // --- States and drafts. ---
      {"state_of_another_layer", kQ4, kDecode,
       [=](const Step& s) { to_first(Get<DeltaTokenLaunch>(s, 1)); },
       "a delta net of one token each finds a state that was moved on", "qwen35"},
      {"convolution_of_another_layers_state", kQ4, kPrompt,
       [=](const Step& s) { to_first(Get<DeltaInputsLaunch>(s, 1)); },
       "a delta net's inputs finds a state that was moved on", "qwen35"},
      {"rule_moves_another_layers_state", kQ4, kPrompt,
       [=](const Step& s) { to_first(Get<DeltaRuleLaunch>(s, 1)); },
       "the delta rule moves a state on again", "qwen35"},
      {"state_between_two_layers", kQ4, kDecode,
       [](const Step& s) { Get<DeltaTokenLaunch>(s, 1).states.layer_offset -= 4; },
       "a delta net of one token each has the wrong states", "qwen35"},
      {"states_from_the_second_slot_on", kQ4, kPrompt,
       [](const Step& s) {
         DeltaStates& states = Get<DeltaRuleLaunch>(s, 0).states;
         states.data += states.state_floats;
       },
       "the delta rule has the wrong states", "qwen35"},
      {"state_moved_on_twice", kQ4, kPrompt,
       [](const Step& s) {
         const size_t i = Find<DeltaRuleLaunch>(s, 0);
         s.launches.insert(s.launches.begin() + static_cast<ptrdiff_t>(i), s.launches[i]);
       },
       "the delta rule moves a state on again", "qwen35"},
      {"drafts_kept_where_those_of_the_other_step_are", kQ4, kDrafted,
       [=](const Step& s) {
         DeltaDrafts& drafts = Get<DeltaInputsLaunch>(s, 1).drafts;
         drafts.data = other_drafts(s, drafts);
       },
       "a delta net's inputs has the wrong place of drafts", "qwen35"},
      {"drafts_of_the_other_step_replayed", kQ4, kDrafted,
       [=](const Step& s) {
         DeltaDrafts& drafts = Get<DeltaReplayArgs>(s).drafts;
         drafts.data = other_drafts(s, drafts);
       },
       "moving states on has the wrong place of drafts", "qwen35"},
      {"another_layers_drafts_kept", kQ4, kDrafted,
       [](const Step& s) { Get<DeltaInputsLaunch>(s, 1).drafts.layer_offset = 0; },
       "a delta net's inputs has the wrong place of drafts", "qwen35"},
      {"replayed_before_the_last_layer_kept_its_draft", kQ4, kDrafted,
       [](const Step& s) {
         const KernelLaunch replay = s.launches.back();
         s.launches.pop_back();
         const size_t i = Find<DeltaInputsLaunch>(s, 1);
         s.launches.insert(s.launches.begin() + static_cast<ptrdiff_t>(i), replay);
       },
       "moving states on reads a draft where there is none", "qwen35"},
      {"replayed_in_a_layer_fewer", kQ4, kDrafted,
       [](const Step& s) { --Get<DeltaReplayArgs>(s).layers; },
       "moving states on has the wrong layers", "qwen35"},
      {"kernel_of_one_token_in_a_step_with_drafts", kQ4, kDrafted,
       [](const Step& s) {
         KernelLaunch& launch = s.launches[Find<DeltaInputsLaunch>(s, 0)];
         launch.args = DeltaTokenLaunch{std::get<DeltaInputsLaunch>(launch.args)};
       },
       "a delta net of one token each has the wrong kind of step", "qwen35"},

      // --- Order and buffers. ---
      {"rule_before_its_inputs", kQ4, kPrompt, [](const Step& s) { Hasten<DeltaRuleLaunch>(s, 1); },
       "bytes of queries, keys and values", "qwen35"},
      {"gate_before_the_rule", kQ4, kPrompt, [](const Step& s) { Hasten<DeltaGateLaunch>(s, 1); },
       "the logits are", "qwen35"},
      {"delta_net_before_its_product", kF16, kDecode,
       [](const Step& s) { Hasten<DeltaTokenLaunch>(s, 1); }, "bytes of u", "qwen35"},
      {"results_over_what_the_rule_reads", kQ4, kPrompt,
       [](const Step& s) {
         DeltaRuleLaunch& args = Get<DeltaRuleLaunch>(s, 0);
         args.o = args.convolved;
       },
       "the delta rule writes what it uses", "qwen35"},
      {"results_over_the_product", kQ4, kPrompt,
       [](const Step& s) { Get<DeltaInputsLaunch>(s, 0).convolved = s.buffers.qkv; },
       "a delta net's inputs writes what it uses", "qwen35"},
      {"columns_of_attention_gathered", kQ4, kPrompt,
       [](const Step& s) { Get<GatherRowsArgs>(s).attended_cols = 28 * 128; },
       "bytes of what attention made", "qwen35"},
      {"recurrent_layers_counted_in_the_cache", kQ4, kPrompt,
       [](const Step& s) { Get<RopeArgs>(s).layer = 1; }, "RoPE has the wrong cache", "qwen35"},

      // --- Weights. ---
      {"convolution_of_another_layer", kQ4, kDecode,
       [](const Step& s) {
         Get<DeltaTokenLaunch>(s, 1).inputs.conv = s.weights.layers()[0].delta.conv;
       },
       "layer 2 has the recurrent state", "qwen35"},
      {"decay_of_another_layer", kQ4, kPrompt,
       [](const Step& s) { Get<DeltaInputsLaunch>(s, 1).inputs.a = s.weights.layers()[0].delta.a; },
       "layer 2 has the recurrent state", "qwen35"},
      {"time_without_its_bias", kQ4, kDecode,
       [](const Step& s) { Get<DeltaTokenLaunch>(s, 1).inputs.dt_bias = nullptr; },
       "layer 2 has the recurrent state", "qwen3next"},
      {"norm_of_another_layers_values", kQ4, kPrompt,
       [](const Step& s) {
         Get<DeltaGateLaunch>(s, 1).inputs.norm = s.weights.layers()[0].delta.norm;
       },
       "the logits are", "qwen35"},
      {"keys_and_gates_exchanged", kF16, kDecode,
       [](const Step& s) {
         const DeviceDeltaNet& net = s.weights.layers()[0].delta;
         for (KernelLaunch& launch : s.launches) {
           auto* const product = std::get_if<GemmArgs>(&launch.args);
           if (product == nullptr || product->product.matrices[0].data != net.inputs[0].data) {
             continue;
           }
           std::swap(product->product.matrices[0], product->product.matrices[1]);
         }
       },
       "bytes of u", "qwen35"},
      {"other_pairs_of_heads", kQ4, kDecode,
       [](const Step& s) { Get<DeltaTokenLaunch>(s, 0).spec.pairing = HeadPairing::kModulo; },
       "a delta net of one token each has the wrong heads", "qwen3next"},
      {"another_epsilon_of_values", kQ4, kDecode,
       [](const Step& s) { Get<DeltaTokenLaunch>(s, 0).norm_eps = 1e-5f; },
       "a delta net of one token each has the wrong epsilon", "qwen35"},

      // --- Rows, tables and sums. ---
      {"stale_runs", kQ4, kDecode,
       [](const Step& s) { Get<DeltaTokenLaunch>(s, 0).runs = s.other_tables.step_runs(); },
       "a delta net of one token each has the wrong runs", "qwen35"},
      {"stale_saves", kQ4, kPrompt,
       [](const Step& s) { Get<DeltaRuleLaunch>(s, 1).runs.saves = s.other_tables.saves; },
       "the delta rule has the wrong runs", "qwen35"},
      {"stale_tables_of_a_delta_net", kQ4, kPrompt,
       [](const Step& s) { Get<DeltaRuleLaunch>(s, 0).step = s.other_tables.tables(); },
       "the delta rule has the wrong tables", "qwen35"},
      {"delta_net_of_a_sequence_fewer", kQ4, kPrompt,
       [](const Step& s) { --Get<DeltaRuleLaunch>(s, 0).sequences; },
       "the delta rule has the wrong sequences", "qwen35"},
      {"delta_net_of_a_token_fewer", kQ4, kPrompt,
       [](const Step& s) { --Get<DeltaInputsLaunch>(s, 0).tokens; },
       "a delta net's inputs has the wrong rows, 99 of 100", "qwen35"},
      {"states_that_are_not_finite_unmarked", kQ4, kDecode,
       [](const Step& s) { Get<DeltaTokenLaunch>(s, 0).not_finite = nullptr; },
       "a delta net of one token each has the wrong marks of values that are not finite", "qwen35"},
      {"fewer_partials_of_a_delta_net", kF16, kDecode,
       [](const Step& s) { ++Get<DeltaTokenLaunch>(s, 1).inputs.splits; }, "reads partial 0 of",
       "qwen35"},
      {"rows_of_a_delta_nets_product_fewer", kQ4, kDecode,
       [](const Step& s) { Get<DeltaTokenLaunch>(s, 1).inputs.rows -= kTileRows; },
       "reads u where there is none", "qwen35"},

      // --- The gate of attention. ---
      {"attention_without_its_gate", kQ4, kDecode,
       [](const Step& s) {
         s.launches.erase(s.launches.begin() +
                          static_cast<ptrdiff_t>(Find<GateAttentionArgs>(s, 0)));
       },
       "layer 2 has the recurrent state", "qwen35"},
      {"gate_before_its_product", kQ4, kDecode, [](const Step& s) { Hasten<GateAttentionArgs>(s); },
       "layer 2 has the recurrent state", "qwen35"},
      {"gate_of_queries_keys_and_values", kQ4, kDecode,
       [](const Step& s) { Get<GateAttentionArgs>(s).partials = s.buffers.qkv; },
       "the gate of attention reads", "qwen35"},
      {"gate_of_a_token_fewer", kQ4, kDecode,
       [](const Step& s) { --Get<GateAttentionArgs>(s).tokens; },
       "the gate of attention has the wrong rows, 63 of 64", "qwen3next"},
      {"gate_of_another_buffer", kQ4, kPrompt,
       [](const Step& s) { Get<GateAttentionArgs>(s).values.data = s.buffers.normed; },
       "layer 2 has the recurrent state", "qwen35"},
  };
}

// The first predictions are of nine rows, and the second of one.
std::vector<Fault> FaultsOfPredictions() {
  // Blocks with the model's head, and with their own.
  const char* const shared = "qwen35_predicts";
  const char* const own = "glm4moe_predicts";
  return {
      {"keys_of_a_block_after_its_hidden_states", kQ4, kDecode,
       [](const Step& s) { Hasten<KeepHiddenArgs>(s); }, "layer 3 has keys and values", shared},
      {"inputs_of_the_residual", kQ4, kPrompt,
       [](const Step& s) { Get<PredictInputsArgs>(s).states.rows = s.buffers.residual[0]; },
       "the inputs of predictions writes what it uses", shared},
      {"inputs_of_a_token_fewer", kQ4, kDecode,
       [](const Step& s) { --Get<PredictInputsArgs>(s).tokens; },
       "the inputs of predictions has the wrong rows, 63 of 64", shared},
      {"inputs_without_runs", kQ4, kDecode,
       [](const Step& s) { Get<PredictInputsArgs>(s).runs = {}; },
       "the inputs of predictions has the wrong runs", shared},
      {"norms_of_inputs_exchanged", kQ4, kDecode,
       [](const Step& s) {
         PredictInputsArgs& args = Get<PredictInputsArgs>(s);
         std::swap(args.embedding_norm, args.hidden_norm);
       },
       "layer 3 has keys and values", shared},
      {"embedding_of_the_model", kQ4, kDecode,
       [](const Step& s) { Get<PredictInputsArgs>(s).embedding = s.weights.embedding(); },
       "layer 3 has keys and values", own},
      {"pairs_over_the_normed", kQ4, kDecode,
       [](const Step& s) { Get<PredictInputsArgs>(s).pairs.data = s.buffers.normed; },
       "bytes of its input, of which there are", shared},
      {"block_marks_the_sequence", kQ4, kDecode,
       [](const Step& s) { Get<RopeArgs>(s).not_finite = s.buffers.not_finite; },
       "RoPE has the wrong marks of values that are not finite", shared},
      {"prediction_marks_the_sequence", kQ4, kDecode,
       [](const Step& s) { Get<DecodeAttentionArgs>(s, 1).not_finite = s.buffers.not_finite; },
       "decode attention has the wrong marks of values that are not finite", shared},
      {"hidden_states_of_too_few_runs", kQ4, kDecode,
       [](const Step& s) { --Get<KeepHiddenArgs>(s).runs; },
       "keeping hidden states has the wrong runs", shared},
      {"hidden_states_kept_elsewhere", kQ4, kDecode,
       [](const Step& s) { Get<KeepHiddenArgs>(s).states.of_slots = s.buffers.predict.hidden; },
       "keeping hidden states writes what it uses", shared},
      {"draws_of_the_other_step", kQ4, kDecode,
       [](const Step& s) { Get<PredictTokensArgs>(s).of.draws = s.other_tables.draws; },
       "the tokens of predictions has the wrong draws", shared},
      {"entries_of_the_other_step", kQ4, kDecode,
       [](const Step& s) { Get<PredictTokensArgs>(s).entries = s.other_tables.predicting; },
       "the tokens of predictions has the wrong entries", shared},
      {"first_prediction_again", kQ4, kDecode,
       [](const Step& s) { Get<PredictTokensArgs>(s, 1).before = 0; },
       "the tokens of predictions has the wrong number", shared},
      {"inputs_before_their_tokens", kQ4, kDecode,
       [](const Step& s) { Hasten<PredictInputsArgs>(s, 1); },
       "the inputs of predictions has the wrong", shared},
      {"first_prediction_from_its_own_state", kQ4, kDecode,
       [](const Step& s) { Get<PredictInputsArgs>(s, 1).states.of_slots = nullptr; },
       "prediction 0 is made from", shared},
      {"second_prediction_from_the_models_state", kQ4, kDecode,
       [](const Step& s) {
         Get<PredictInputsArgs>(s, 2).states.of_slots = s.buffers.predict.of_slots;
       },
       "prediction 1 is made from", shared},
      {"prediction_that_sees_the_first_position", kQ4, kDecode,
       [](const Step& s) { Get<DecodeAttentionArgs>(s, 2).rule.first_key = 0; },
       "prediction 1 is made from", shared},
      {"prediction_by_the_models_head", kQ4, kDecode,
       [](const Step& s) {
         size_t last = 0;
         for (size_t i = 0; i < s.launches.size(); ++i) {
           if (std::holds_alternative<MatvecArgs>(s.launches[i].args)) last = i;
         }
         std::get<MatvecArgs>(s.launches[last].args).product.matrices[0] = s.weights.output();
       },
       "prediction 1 is made from", own},
      {"load_of_the_blocks_experts", kQ4, kDecode,
       [](const Step& s) { Get<ChooseExpertsArgs>(s, 2).load = s.buffers.experts.load; },
       "the choice of experts has the wrong counters", own},
      {"prediction_with_the_marks_of_the_block", kQ4, kDecode,
       [](const Step& s) { Get<SampleArgs>(s, 1).not_finite = s.buffers.predict.not_finite; },
       "the sampler of predictions has the wrong marks of values that are not finite", shared},
      {"prediction_as_the_slots_draw", kQ4, kDecode,
       [](const Step& s) { Get<SampleArgs>(s, 1).last_sample = s.buffers.last_sample; },
       "the sampler of predictions has the wrong samples", shared},
      {"draws_of_the_step_for_predictions", kQ4, kDecode,
       [](const Step& s) { Get<SampleArgs>(s, 1).draws = Get<SampleArgs>(s).draws; },
       "the sampler of predictions has the wrong draws", shared},
  };
}

ModelCase ModelOf(const char* file_type, const char* form = "qwen2") {
  const bool mixed = std::string_view(file_type) == kMixed;
  return {*FindModelShape("qwen2", "7b"), *FindFileType(mixed ? "F16" : file_type),
          std::string_view(form) == "smollm3" ? 4 : 3, mixed, FormOf(form)};
}

class ForwardFaultTest : public ::testing::TestWithParam<Fault> {};

INSTANTIATE_TEST_SUITE_P(Planted, ForwardFaultTest, ::testing::ValuesIn(Faults()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(InExperts, ForwardFaultTest, ::testing::ValuesIn(FaultsOfExperts()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(InHybrids, ForwardFaultTest, ::testing::ValuesIn(FaultsOfHybrids()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(InPredictions, ForwardFaultTest,
                         ::testing::ValuesIn(FaultsOfPredictions()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(InForms, ForwardFaultTest, ::testing::ValuesIn(FaultsOfForms()),
                         [](const auto& info) { return info.param.name; });

// The steps find in the buffers what the steps before have left there.
TEST_P(ForwardFaultTest, IsFound) {
  const Fault& fault = GetParam();
  CheckedModel model(ModelOf(fault.file_type, fault.form));
  ASSERT_EQ(model.Check(fault.step), "");
  EXPECT_THAT(model.Check(fault.step, fault.plant), ::testing::HasSubstr(fault.finding));
}

void ExpectEveryLaunchMatters(const ModelCase& c, const std::vector<StepShape>& steps) {
  CheckedModel model(c);
  for (const StepShape& step : steps) {
    for (size_t launches = 1, i = 0; i < launches; ++i) {
      ASSERT_EQ(model.Check(step), "");
      const std::string found = model.Check(step, [&](const Step& s) {
        launches = s.launches.size();
        s.launches.erase(s.launches.begin() + static_cast<ptrdiff_t>(i));
      });
      EXPECT_NE(found, "") << c.name() << ", " << step.tokens << " tokens, launch " << i;
    }
  }
}

TEST(MissingLaunchTest, IsFound) {
  for (const char* const file_type : {kF16, kQ4, kMixed}) {
    ExpectEveryLaunchMatters(ModelOf(file_type), {kOne, kDecode, kSummed, kLargeDecode, kPrompt,
                                                  kWholePrompt, kLargePrompt});
  }
}

TEST(MissingLaunchTest, IsFoundInHybridsWithDrafts) {
  for (const char* const form : {"qwen35", "qwen3next"}) {
    ExpectEveryLaunchMatters(ModelOf(kQ4, form), {kDrafted, kDecode});
    ExpectEveryLaunchMatters({OddShape(), *FindFileType(kF16), 3, false, FormOf(form)}, {kDrafted});
  }
}

TEST(MissingLaunchTest, IsFoundInBlocksThatPredict) {
  for (const char* const form : {"qwen35_predicts", "glm4moe_predicts"}) {
    ExpectEveryLaunchMatters(ModelOf(kQ4, form),
                             {kDrafted, kDecode, kWholePrompt, kLargePrompt, PromptStep(100, 0)});
  }
}

TEST(MissingLaunchTest, IsFoundInEveryForm) {
  for (const ModelForm& form : AllForms()) {
    ExpectEveryLaunchMatters(ModelOf(kQ4, form.name.c_str()), {kOne, kPrompt});
    // Launches that clear padding are among those of odd sizes.
    ExpectEveryLaunchMatters({OddShape(), *FindFileType(kF16), 2, false, form},
                             {kDecode, kLargePrompt});
  }
}

}  // namespace
}  // namespace orcd::cuda
