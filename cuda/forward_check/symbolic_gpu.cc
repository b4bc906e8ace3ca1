#include "cuda/forward_check/symbolic_gpu.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "cuda/kernels/portable/kernel_set.h"
#include "cuda/kernels/sm90/kernel_set.h"

namespace orcd::cuda {
namespace {

SymbolicGpu* current = nullptr;

uintptr_t Address(const void* at) { return reinterpret_cast<uintptr_t>(at); }

// Bytes of a row tile that is dequantised.
int64_t F16TileBytes(TiledMatrix matrix) {
  matrix.format = TileFormat::kF16;
  return matrix.tile_bytes();
}

// Part of a matrix: a row tile, in a format.
int64_t TilePart(int tile, TileFormat format) {
  return int64_t{tile} * kFormatCount + static_cast<int>(format);
}
// Part of a product: a token's row, from a row tile on, in one of its split-K partials.
int64_t RowPart(int splits, int split, int token, int tile) {
  return ((int64_t{splits} * 16 + split) << 48) + (int64_t{token} << 24) + tile;
}

}  // namespace

// All reads and writes of one kernel, which happen at the same time: the destructor performs the
// writes.
class SymbolicGpu::Launch {
 public:
  Launch(SymbolicGpu& gpu, const std::string& name) : gpu_(gpu), name_(name) {}
  ~Launch() {
    std::sort(ranges_.begin(), ranges_.end());
    uintptr_t end = 0;
    bool written = false;
    for (const Range& range : ranges_) {
      if (range.begin < end && (written || range.written)) Complain("writes what it uses");
      written = range.begin < end ? written || range.written : range.written;
      end = std::max(end, range.end);
    }
    for (const auto& [at, bytes, content] : writes_) gpu_.memory_.Write(at, bytes, content);
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  // Reads a range that was written as one piece.
  Content Read(const void* at, int64_t bytes, const std::string& what) {
    Use(at, bytes, false);
    return Look(at, bytes, what);
  }
  void Write(const void* at, int64_t bytes, const Content& content) {
    Use(at, bytes, true);
    writes_.push_back({Address(at), bytes, content});
  }
  // The content of a range before this kernel writes to it.
  Content Look(const void* at, int64_t bytes, const std::string& what) {
    const SymbolicMemory::Piece* const piece = gpu_.memory_.Find(Address(at));
    if (piece == nullptr) {
      Complain(absl::StrCat("reads ", what, " where there is none"));
      return {};
    }
    if (piece->end - Address(at) != static_cast<uintptr_t>(bytes)) {
      Complain(absl::StrCat("reads ", bytes, " bytes of ", what, ", of which there are ",
                            piece->end - Address(at), ": ", Describe(piece->content)));
    }
    return piece->content;
  }
  // Reads a value that was written whole, as part 0.
  Symbol Whole(const void* at, int64_t bytes, const std::string& what) {
    const Content content = Read(at, bytes, what);
    if (content.part != 0) Complain(absl::StrCat(what, " is not whole"));
    return content.symbol;
  }
  // Dequantises a row tile into F16 tile `at` of those at `to`.
  void DequantiseTile(const TiledMatrix& matrix, int tile, const uint8_t* to, int at) {
    const Content content = Read(matrix.data + tile * matrix.tile_bytes(), matrix.tile_bytes(),
                                 "a row tile to dequantise");
    const int64_t bytes = F16TileBytes(matrix);
    Write(to + at * bytes, bytes, {content.symbol, TilePart(tile, TileFormat::kF16)});
  }
  // Reads columns [first_col, first_col + cols) of a product's rows, from split-K partials or from
  // their sum. Returns the product.
  Symbol ProductRows(const float* at, int splits, int tokens, int stride_tokens, int stride,
                     int first_col, int cols, const std::string& what) {
    Symbol product = -1;
    for (int s = 0; s < splits; ++s) {
      for (int t = 0; t < tokens; ++t) {
        const float* const row = at + (int64_t{s} * stride_tokens + t) * stride + first_col;
        const Content content = Read(row, int64_t{cols} * 4, what);
        if (product < 0) product = content.symbol;
        if (content.symbol != product || content.part != RowPart(splits, s, t, 0)) {
          Complain(absl::StrCat("reads partial ", s, " of ", splits, " of token ", t, " of ", what,
                                ", where there is ", Describe(content)));
          return product;
        }
      }
    }
    return product;
  }
  void Complain(const std::string& what) { gpu_.Complain(absl::StrCat(name_, " ", what)); }
  void Expect(bool right, const std::string& what) {
    if (!right) Complain(absl::StrCat("has the wrong ", what));
  }
  void ExpectRows(int rows) {
    Expect(rows == gpu_.rows_, absl::StrCat("rows, ", rows, " of ", gpu_.rows_));
  }
  void ExpectTables(const StepTables& tables, bool of_windows = false) {
    const int32_t* const blocks = of_windows ? gpu_.tables_.window_blocks : gpu_.tables_.blocks;
    Expect(tables.tokens == gpu_.tables_.tokens && tables.sequences == gpu_.tables_.sequences &&
               tables.blocks == blocks,
           "tables");
  }
  // Checks a layer's cache and the tables for it. Returns the model's layer, 0 if it has none such.
  int ExpectLayer(const StepTables& tables, const KvCacheView& kv, int cache_layer) {
    const bool in_windows = kv.data != nullptr && kv.data == gpu_.kv_.windows.data;
    const KvCacheView& expected = in_windows ? gpu_.kv_.windows : gpu_.kv_.whole;
    const std::vector<int>& layers = in_windows ? gpu_.window_layers_ : gpu_.whole_layers_;
    ExpectTables(tables, in_windows);
    const bool right = kv.data == expected.data && kv.blocks == expected.blocks &&
                       kv.block_tokens == expected.block_tokens &&
                       kv.kv_heads == expected.kv_heads && kv.head_dim == expected.head_dim &&
                       cache_layer >= 0 && cache_layer < static_cast<int>(layers.size());
    Expect(right, "cache");
    return right ? layers[cache_layer] : 0;
  }
  // Checks what a launch that writes keys and values is given for it. Returns the model's layer.
  template <typename Args>
  int ExpectWrites(const Args& args) {
    const LayerSpec& layer = gpu_.layer_;
    const int of = ExpectLayer(args.step, args.kv, args.layer);
    Expect(args.not_finite == gpu_.MarksOf(of), "marks of values that are not finite");
    Expect(args.qkv.heads == layer.heads && args.qkv.kv_heads == layer.kv_heads &&
               args.qkv.head_dim == layer.head_dim,
           "heads");
    return of;
  }
  // Checks what the launches of a delta net share. Returns the model's layer, the first recurrent
  // one if there is none such.
  int ExpectDelta(const DeltaArgs& args) {
    ExpectTables(args.step);
    ExpectRows(args.tokens);
    const StepRuns runs = gpu_.layout_->step_runs();
    Expect(args.runs.runs == runs.runs && args.runs.run_of_token == runs.run_of_token &&
               args.runs.saves == runs.saves,
           "runs");
    Expect(args.sequences == gpu_.shape_.sequences, "sequences");
    Expect(args.norm_eps == gpu_.spec_.norm_eps, "epsilon");
    Expect(args.not_finite == gpu_.buffers_.not_finite, "marks of values that are not finite");
    Expect(args.u == nullptr, "place for taps");
    const auto found = gpu_.layer_of_state_.find(args.states.layer_offset);
    const bool right = args.states.data == gpu_.states_.data &&
                       args.states.state_floats == gpu_.states_.state_floats &&
                       found != gpu_.layer_of_state_.end();
    Expect(right, "states");
    const int layer = right ? found->second : gpu_.recurrent_layers_[0];
    Expect(args.spec == gpu_.spec_.layers[layer].delta, "heads");
    ExpectDrafts(args.drafts, gpu_.draft_offsets_.at(layer));
    return layer;
  }
  void ExpectDrafts(const DeltaDrafts& drafts, int64_t layer_offset) {
    Expect(drafts.data == gpu_.buffers_.delta.drafts[gpu_.turn_] &&
               drafts.draft_floats == DraftFloats(gpu_.spec_) &&
               drafts.layer_offset == layer_offset,
           "place of drafts");
  }
  // Writes `cols` columns of activations. The columns that pad them must be zeros by then.
  void WriteColumns(const Activations& to, int cols, const Content& content) {
    const int64_t bytes = ActivationBytes(to.tokens, cols);
    if (cols % kActivationCols != 0) {
      const int64_t tile_bytes = ActivationBytes(to.tokens, kActivationCols);
      const auto* const tile = reinterpret_cast<const uint8_t*>(to.data) + bytes - tile_bytes;
      const SymbolicMemory::Piece* const piece = gpu_.memory_.Find(Address(tile));
      Expect(piece != nullptr && piece->content.symbol == gpu_.symbols_.Make("padding"), "padding");
    }
    Write(to.data, bytes, content);
  }
  // The vector at `data`; -1 for null.
  Symbol Vector(const float* data, int64_t size, const std::string& what) {
    return data == nullptr ? -1 : Whole(data, size * 4, what);
  }
  Symbol Sinks(const AttentionRule& rule) {
    return Vector(rule.sinks, gpu_.layer_.heads, "attention sinks");
  }
  // Reads one of the ExpertTables, which hold parts of one choice in their order.
  Symbol Choice(const void* table, int64_t bytes, int part) {
    const Content content = Read(table, bytes, "a table of experts");
    Expect(content.part == part, "table of experts");
    return content.symbol;
  }
  // Leaves something at `at` that no other launch reads.
  void Scratch(const void* at, int64_t bytes) {
    Write(at, bytes, {gpu_.symbols_.Make(absl::StrCat("scratch ", gpu_.scratches_++))});
  }

 private:
  struct Range {
    uintptr_t begin;
    uintptr_t end;
    bool written;

    auto operator<=>(const Range&) const = default;
  };
  struct Written {
    uintptr_t at;
    int64_t bytes;
    Content content;
  };

  std::string Describe(const Content& content) const {
    return absl::StrCat("part ", content.part, " of ", gpu_.symbols_.Describe(content.symbol));
  }
  void Use(const void* at, int64_t bytes, bool written) {
    ranges_.push_back({Address(at), Address(at) + bytes, written});
  }

  SymbolicGpu& gpu_;
  const std::string name_;
  std::vector<Range> ranges_;
  std::vector<Written> writes_;
};

SymbolicGpu::SymbolicGpu(const ModelSpec& spec, const DeviceWeights& weights,
                         const ForwardBuffers& buffers, const KvCaches& kv,
                         const DeltaStates& states, const KernelSet& kernels)
    : spec_(spec),
      layer_(spec.layers[0]),
      buffers_(buffers),
      kv_(kv),
      states_(states),
      kernels_(kernels),
      keys_and_values_(spec.num_layers(), -1),
      recurrent_states_(spec.num_layers(), -1) {
  PlaceMatrix("embedding", weights.embedding());
  for (size_t i = 0; i < weights.layers().size(); ++i) {
    const DeviceLayer& layer = weights.layers()[i];
    const auto name = [&](const std::string& what) { return absl::StrCat(what, " ", i); };
    // Matrices of one product, of one split-K factor.
    const auto place_inputs = [&](const TiledMatrix(&matrices)[3], const char* const(&names)[3]) {
      int tiles = 0;
      for (const TiledMatrix& matrix : matrices) tiles += matrix.row_tiles();
      for (int which = 0; which < 3; ++which) {
        PlaceMatrix(name(names[which]), matrices[which], Splits(tiles, spec.hidden));
      }
    };
    const auto place_alone = [&](const char* what, const TiledMatrix& matrix) {
      if (matrix.rows == 0) return;
      PlaceMatrix(name(what), matrix, Splits(matrix.row_tiles(), matrix.cols));
    };
    PlaceVector(name("attn_norm"), layer.attn_norm, spec.hidden);
    if (spec.layers[i].recurrent()) {
      const DeltaNetSpec& delta = spec.layers[i].delta;
      const DeviceDeltaNet& net = layer.delta;
      place_inputs(net.inputs, {"u", "z", "beta_alpha"});
      PlaceVector(name("conv"), net.conv, delta.conv * delta.channels());
      PlaceVector(name("a"), net.a, delta.value_heads);
      PlaceVector(name("dt_bias"), net.dt_bias, delta.value_heads);
      PlaceVector(name("delta_norm"), net.norm, delta.head_dim);
      place_alone("delta_output", net.output);
    } else {
      place_inputs(layer.qkv, {"q", "k", "v"});
      place_alone("attn_gate", layer.attn_gate);
      place_alone("attn_output", layer.attn_output);
    }
    PlaceVector(name("qkv_bias"), layer.qkv_bias, layer_.q_size() + 2 * layer_.kv_size());
    splits_queries_.push_back(layer.qkv_bias != nullptr && layer_.head_dim <= 128);
    const bool whole = layer_.qk_norm == QkNorm::kProjection;
    PlaceVector(name("q_norm"), layer.q_norm, whole ? layer_.q_size() : layer_.head_dim);
    PlaceVector(name("k_norm"), layer.k_norm, whole ? layer_.kv_size() : layer_.head_dim);
    PlaceVector(name("attn_output_bias"), layer.attn_output_bias, spec.hidden);
    PlaceVector(name("attn_post_norm"), layer.attn_post_norm, spec.hidden);
    PlaceVector(name("ffn_norm"), layer.ffn_norm, spec.hidden);
    PlaceVector(name("attn_sinks"), layer.attn_sinks, layer_.heads);
    PlaceVector(name("gate_up_bias"), layer.gate_up_bias, 2 * FfnWidth(spec.layers[i]));
    PlaceVector(name("down_bias"), layer.down_bias, spec.hidden);
    PlaceVector(name("ffn_post_norm"), layer.ffn_post_norm, spec.hidden);
    if (layer.gate_up.rows > 0) PlaceMatrix(name("gate_up"), layer.gate_up);
    if (layer.gate_apart()) PlaceMatrix(name("up"), layer.up);
    place_alone("down", layer.down);
    const ExpertsSpec& experts = spec.layers[i].experts;
    if (experts.count == 0) continue;
    const DeviceExperts& e = layer.experts;
    PlaceVector(name("router"), e.router, RouterOutputs(experts) * spec.hidden);
    PlaceVector(name("router_bias"), e.router_bias, experts.count);
    PlaceVector(name("selection_bias"), e.selection_bias, experts.count);
    const int all = experts.count + (e.shared_joins ? 1 : 0);
    PlaceMatrix(name("expert_gate_up"), e.gate_up, 1, all, 2 * experts.ffn);
    PlaceMatrix(name("expert_down"), e.down, 1, all, spec.hidden);
    PlaceVector(name("expert_gate_up_bias"), e.gate_up_bias, e.gate_up.rows);
    PlaceVector(name("expert_down_bias"), e.down_bias, experts.count * spec.hidden);
  }
  PlaceVector("output_norm", weights.output_norm(), spec.hidden);
  if (&weights.output() != &weights.embedding()) PlaceMatrix("output", weights.output());
  if (weights.predict_block()) PlacePredictBlock(weights);
  for (size_t i = 0; const RopeSpec& rope : RopesOf(spec)) {
    memory_.Write(Address(buffers.angles[i++]), 4, {Angles(rope)});
  }
  int64_t state_floats = 0;
  int64_t draft_floats = 0;
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    const LayerSpec& of = spec.layers[layer];
    if (of.recurrent()) {
      recurrent_layers_.push_back(layer);
      layer_of_state_[state_floats] = layer;
      draft_offsets_[layer] = draft_floats;
      state_floats += DeltaStateFloats(of.delta);
      draft_floats += DeltaDraftFloats(of.delta);
    } else {
      (of.window > 0 ? window_layers_ : whole_layers_).push_back(layer);
    }
    memory_.Write(Address(buffers.query_split + layer * layer_.kv_heads), layer_.kv_heads * 4,
                  {QuerySplit(layer)});
  }
  memory_.Write(Address(buffers.stream_k.ready), StreamKWorkspace::kReady * 4,
                {symbols_.Make("zeros")});
  memory_.Write(Address(buffers.attention_counters), 4, {symbols_.Make("zeros")});
  current = this;
}

SymbolicGpu::~SymbolicGpu() { current = nullptr; }

void SymbolicGpu::PlacePredictBlock(const DeviceWeights& weights) {
  const DevicePredictBlock& block = *weights.predict_block();
  const TiledMatrix& projection = block.projection;
  PlaceMatrix("projection", projection, Splits(projection.row_tiles(), projection.cols));
  PlaceVector("embedding_norm", block.embedding_norm, spec_.hidden);
  PlaceVector("hidden_norm", block.hidden_norm, spec_.hidden);
  if (block.output_norm != weights.output_norm()) {
    PlaceVector("block_output_norm", block.output_norm, spec_.hidden);
  }
  if (block.own_embedding.rows > 0) PlaceMatrix("block_embedding", block.own_embedding);
  if (block.own_output.rows > 0) PlaceMatrix("block_output", block.own_output);
  has_block_ = true;
}

const int32_t* SymbolicGpu::MarksOf(int layer) const {
  const bool of_block = has_block_ && layer == spec_.num_layers() - 1;
  return of_block ? buffers_.predict.not_finite : buffers_.not_finite;
}

void SymbolicGpu::BeginStep(const TableLayout& tables, const StepShape& shape, int turn,
                            cudaStream_t stream) {
  ++step_;
  tables_ = tables.tables();
  layout_ = tables;
  shape_ = shape;
  turn_ = turn;
  stream_ = stream;
  rows_ = shape.tokens;
  qkv_products_.clear();
  problem_.clear();
  std::fill(keys_and_values_.begin(), keys_and_values_.end(), -1);
  std::fill(recurrent_states_.begin(), recurrent_states_.end(), -1);
  told_load_ = -1;
  drawn_from_ = -1;
  follows_ = false;
  predicts_ = false;
  followed_ = -1;
  kept_hidden_ = -1;
  predicted_from_.clear();
  if (has_block_) memory_.Write(Address(buffers_.predict.of_slots), 4, {SlotsBefore()});
}

void SymbolicGpu::Run() {
  for (const KernelLaunch& launch : recorded_) {
    if (launch.stream != stream_) Complain("a launch is on another stream");
    if (problem_.empty()) std::visit([this](const auto& args) { Perform(args); }, launch.args);
    before_ = &launch;
  }
  before_ = nullptr;
  recorded_.clear();
}

void SymbolicGpu::PlaceMatrix(const std::string& name, const TiledMatrix& matrix, int splits,
                              int experts, int stored_rows) {
  const Symbol symbol = symbols_.Make(name);
  weights_[Address(matrix.data)] = symbol;
  matrices_[symbol] = {matrix.row_tiles(), splits, matrix.exponent,
                       experts == 0 ? 0 : matrix.rows / experts, stored_rows};
  for (int tile = 0; tile < matrix.row_tiles(); ++tile) {
    memory_.Write(Address(matrix.data) + tile * matrix.tile_bytes(), matrix.tile_bytes(),
                  {symbol, TilePart(tile, matrix.format)});
  }
  weights_end_ = std::max(weights_end_, Address(matrix.data) + matrix.bytes());
}

void SymbolicGpu::PlaceVector(const std::string& name, const float* data, int size) {
  if (data == nullptr) return;
  const Symbol symbol = symbols_.Make(name);
  weights_[Address(data)] = symbol;
  memory_.Write(Address(data), int64_t{size} * 4, {symbol});
  weights_end_ = std::max(weights_end_, Address(data + size));
}

void SymbolicGpu::Complain(const std::string& what) {
  if (problem_.empty()) problem_ = what;
}

Symbol SymbolicGpu::WeightAt(const void* data) const {
  return data == nullptr ? -1 : weights_.at(Address(data));
}

Symbol SymbolicGpu::Add(Symbol residual, Symbol product, float scale) {
  return symbols_.Make(absl::StrCat("residual + ", scale, " *"), {residual, product});
}

Symbol SymbolicGpu::LogitsHeld(Launch& launch, int rows) {
  Symbol product = -1;
  for (int row = 0; row < rows; ++row) {
    for (int col = 0; col < spec_.vocab;) {
      const float* const at = buffers_.logits + int64_t{row} * spec_.vocab + col;
      const SymbolicMemory::Piece* const piece = memory_.Find(Address(at));
      if (piece == nullptr || (product >= 0 && piece->content.symbol != product) ||
          piece->content.part != RowPart(1, 0, row, col / kTileRows)) {
        launch.Complain(absl::StrCat("finds no logits of row ", row, " and column ", col));
        return -1;
      }
      product = piece->content.symbol;
      col += static_cast<int>((piece->end - Address(at)) / 4);
    }
  }
  return product;
}

void SymbolicGpu::Perform(const EmbedArgs& args) {
  Launch launch(*this, "the embedding");
  launch.ExpectTables(args.step);
  launch.ExpectRows(args.tokens);
  launch.Expect(args.not_finite == buffers_.not_finite, "marks of values that are not finite");
  launch.Expect(args.last_sample == buffers_.last_sample, "samples");
  launch.Expect(args.block_token_ids == buffers_.block_token_ids &&
                    args.block_tokens == kv_.whole.block_tokens,
                "ids of tokens in blocks");
  const TiledMatrix& matrix = args.embedding;
  const Symbol embedding = launch.Read(matrix.data, matrix.tile_bytes(), "a row tile").symbol;
  launch.Write(args.residual, int64_t{args.tokens} * spec_.hidden * 4,
               {Embedded(embedding, args.scale)});
}

Symbol SymbolicGpu::AddBranch(Launch& launch, const NormArgs& args, int tokens, Symbol residual) {
  if (args.partials == nullptr) return residual;
  const Symbol product =
      launch.ProductRows(args.partials, args.splits, tokens, args.partials_tokens, args.hidden, 0,
                         args.hidden, "a product");
  if (args.bias == nullptr && args.post_norm == nullptr) {
    return Add(residual, product, args.scale * args.residual_scale);
  }
  const auto vector = [&](const float* data, const std::string& what) {
    return data == nullptr ? -1 : launch.Whole(data, int64_t{args.hidden} * 4, what);
  };
  const Symbol branch = Branch(product, args.scale, vector(args.bias, "a bias"),
                               vector(args.post_norm, "a norm's weights"), args.kind);
  return Add(residual, branch, args.residual_scale);
}

void SymbolicGpu::Perform(const NormArgs& args) {
  Launch launch(*this, "a norm");
  if (args.rows != nullptr) rows_ = shape_.logit_rows;
  launch.ExpectRows(args.tokens);
  launch.Expect(args.eps == spec_.norm_eps, "epsilon");
  launch.Expect(args.rows == nullptr || args.rows == tables_.logit_tokens, "tables");
  // If rows are gathered, the residual holds all tokens.
  const int tokens = args.rows != nullptr ? shape_.tokens : args.tokens;
  const int64_t bytes = int64_t{tokens} * args.hidden * 4;
  const bool updates = args.partials != nullptr && args.rows == nullptr;
  Symbol residual = (updates ? launch.Look(args.residual, bytes, "the residual")
                             : launch.Read(args.residual, bytes, "the residual"))
                        .symbol;
  residual = AddBranch(launch, args, tokens, residual);
  if (updates) launch.Write(args.residual, bytes, {residual});
  if (args.out.data == nullptr) return;
  if (args.rows != nullptr) residual = Rows(residual);
  const Symbol weight = args.weight == nullptr ? -1
                                               : launch.Whole(args.weight, int64_t{args.hidden} * 4,
                                                              "a norm's weights");
  const Symbol normed = Normed(residual, weight, args.kind);
  launch.WriteColumns(args.out, args.hidden, {normed});
  if (args.out_f32 == nullptr) return;
  launch.Write(args.out_f32, int64_t{args.tokens} * args.hidden * 4, {normed});
}

Symbol SymbolicGpu::NormOfOneToken(Launch& launch, const NormArgs& norm, int cols) {
  launch.Expect(norm.eps == spec_.norm_eps, "epsilon");
  launch.Expect(norm.hidden == cols, "columns of its norm");
  const Symbol residual =
      AddBranch(launch, norm, 1, launch.Whole(norm.residual, int64_t{cols} * 4, "the residual"));
  launch.Write(norm.new_residual, int64_t{cols} * 4, {residual});
  const Symbol weight = launch.Whole(norm.weight, int64_t{cols} * 4, "a norm's weights");
  return Normed(residual, weight, norm.kind);
}

void SymbolicGpu::Perform(const ClearPaddingArgs& args) {
  Launch launch(*this, "clearing padding");
  const int64_t tile_bytes = ActivationBytes(args.of.tokens, kActivationCols);
  launch.Expect(args.cols % kActivationCols != 0, "columns");
  launch.Write(
      reinterpret_cast<const uint8_t*>(args.of.data) + args.cols / kActivationCols * tile_bytes,
      tile_bytes, {symbols_.Make("padding")});
}

void SymbolicGpu::Perform(const GatherRowsArgs& args) {
  Launch launch(*this, "gathering rows");
  rows_ = shape_.logit_rows;
  launch.ExpectRows(args.count);
  launch.Expect(args.rows == tables_.logit_tokens, "tables");
  const Symbol residual =
      launch.Whole(args.residual, int64_t{shape_.tokens} * args.hidden * 4, "the residual");
  const Symbol attended =
      launch.Whole(args.attended.data, ActivationBytes(args.attended.tokens, args.attended_cols),
                   "what attention made");
  launch.Write(args.gathered_residual, int64_t{args.count} * args.hidden * 4, {Rows(residual)});
  launch.Write(args.gathered_attended.data,
               ActivationBytes(args.gathered_attended.tokens, args.attended_cols),
               {Rows(attended)});
}

std::string QkvRules(RopePairs pairs, int rope_dims, bool norms, bool norm_projection,
                     float temperature, int temperature_length) {
  std::string rules = rope_dims == 0 ? "" : absl::StrCat("pairs ", static_cast<int>(pairs));
  if (norms) absl::StrAppend(&rules, norm_projection ? " norms of all" : " norms of heads");
  if (temperature > 0) absl::StrAppend(&rules, " ", temperature, " ", temperature_length);
  return rules;
}

QkvParts SymbolicGpu::ReadConstants(Launch& launch, const QkvProduct& qkv, int layer) {
  const auto vector = [&](const float* data, int size, const std::string& what) {
    return data == nullptr ? -1 : launch.Whole(data, int64_t{size} * 4, what);
  };
  const int q_size = qkv.heads * qkv.head_dim;
  const int kv_size = qkv.kv_heads * qkv.head_dim;
  const bool has_norms = qkv.q_norm != nullptr || qkv.k_norm != nullptr;
  const bool whole = qkv.norm_projection;
  QkvParts parts;
  parts.bias = vector(qkv.bias, q_size + 2 * kv_size, "a bias");
  parts.q_norm = vector(qkv.q_norm, whole ? q_size : qkv.head_dim, "a norm of queries");
  parts.k_norm = vector(qkv.k_norm, whole ? kv_size : qkv.head_dim, "a norm of keys");
  parts.angles = qkv.rope_dims == 0 ? -1 : vector(qkv.angles, 1, "the angles");
  parts.rules = QkvRules(qkv.rope_pairs, qkv.rope_dims, has_norms, whole, qkv.temperature,
                         qkv.temperature_length);
  launch.Expect(!has_norms || qkv.norm_eps == spec_.norm_eps, "epsilon");
  launch.Expect(qkv.rope_dims == 0 || qkv.rope_dims == spec_.layers[layer].rope.dims, "dimensions");
  ExpectQuerySplit(launch, qkv.query_split, layer);
  return parts;
}

void SymbolicGpu::ExpectQuerySplit(Launch& launch, const int32_t* parts, int layer) {
  if (!splits_queries_[layer]) {
    if (parts != nullptr) launch.Complain("has parts of queries without a bias");
    return;
  }
  if (launch.Whole(parts, int64_t{layer_.kv_heads} * 4, "the parts of queries") !=
      QuerySplit(layer)) {
    launch.Complain("has another layer's parts of queries");
  }
}

Symbol SymbolicGpu::ReadQkv(Launch& launch, const QkvProduct& qkv, int tokens, int layer) {
  const int q_size = qkv.heads * qkv.head_dim;
  const int kv_size = qkv.kv_heads * qkv.head_dim;
  const int rows = q_size + 2 * kv_size;
  const auto read = [&](int first_col, int cols, const char* what) {
    return launch.ProductRows(qkv.partials, qkv.splits, tokens, qkv.partials_tokens, rows,
                              first_col, cols, what);
  };
  QkvParts parts = ReadConstants(launch, qkv, layer);
  parts.q = read(0, q_size, "q");
  parts.k = read(q_size, kv_size, "k");
  parts.v = read(q_size + kv_size, kv_size, "v");
  return Qkv(parts);
}

void SymbolicGpu::Perform(const RopeArgs& args) {
  Launch launch(*this, "RoPE");
  const int layer = launch.ExpectLayer(args.step, args.kv, args.layer);
  WriteQkv(launch, args, ReadQkv(launch, args.qkv, args.tokens, layer));
}

void SymbolicGpu::WriteQkv(Launch& launch, const RopeArgs& args, Symbol qkv) {
  const int layer = launch.ExpectWrites(args);
  launch.ExpectRows(args.tokens);
  const int64_t bytes = int64_t{args.tokens} * layer_.q_size() * 2;
  launch.Write(args.q, bytes, {qkv, 0});
  launch.Write(args.q_lo, bytes, {qkv, 1});
  keys_and_values_[layer] = qkv;
}

// Reads the queries that LaunchRope made, and returns what attention makes of them.
template <typename Args>
Symbol SymbolicGpu::Attend(Launch& launch, const Args& args, const int32_t* query_split,
                           int layer) {
  const int64_t bytes = int64_t{shape_.tokens} * layer_.q_size() * 2;
  const Content q = launch.Read(args.q, bytes, "queries");
  const Content rest = launch.Read(args.q_lo, bytes, "what F16 leaves out of queries");
  if (rest != Content{q.symbol, 1} || keys_and_values_[layer] != q.symbol) {
    launch.Complain("has queries, keys and values that do not belong together");
  }
  ExpectQuerySplit(launch, query_split, layer);
  return Attention(q.symbol, launch.Sinks(args.rule), args.rule);
}

void SymbolicGpu::Perform(const PrefillAttentionArgs& args) {
  Launch launch(*this, "attention");
  const int layer = launch.ExpectLayer(args.step, args.kv, args.layer);
  launch.Expect(args.heads == layer_.heads, "heads");
  launch.Expect(args.sequences == shape_.sequences && args.query_tiles == shape_.query_tiles,
                "sequences");
  launch.WriteColumns(args.out, layer_.q_size(), {Attend(launch, args, args.query_split, layer)});
}

void SymbolicGpu::Perform(const DecodeAttentionArgs& args) {
  Launch launch(*this, "decode attention");
  const int layer = launch.ExpectWrites(args);
  launch.ExpectRows(args.sequences);
  if (args.key_splits != shape_.key_splits) launch.Complain("shares keys among other blocks");
  if (args.key_splits > 1) {
    // Results of at least a tile of keys a sequence.
    launch.Scratch(args.partials,
                   int64_t{args.sequences} * layer_.heads * (layer_.head_dim + 2) * 4);
    launch.Whole(args.counters, 4, "the zeros of its counters");
  }
  launch.Expect(args.sees_step == shape_.drafts, "keys of its own step");
  if (shape_.drafts || !DecodeMakesRows(args.qkv)) {
    launch.WriteColumns(args.out, layer_.q_size(),
                        {Attend(launch, args, args.qkv.query_split, layer)});
    return;
  }
  launch.Expect(args.q == nullptr && args.q_lo == nullptr, "queries");
  const Symbol qkv = ReadQkv(launch, args.qkv, args.sequences, layer);
  keys_and_values_[layer] = qkv;
  launch.WriteColumns(args.out, layer_.q_size(),
                      {Attention(qkv, launch.Sinks(args.rule), args.rule)});
}

void SymbolicGpu::Perform(const MatvecArgs& args) {
  Launch launch(*this, "a product of few tokens");
  const int cols = args.product.matrices[0].cols;
  if (!kernels_.matvec_takes(args.product)) launch.Complain("has too many");
  if (const auto* const x = std::get_if<Activations>(&args.prologue)) {
    Multiply(launch, args, launch.Whole(x->data, ActivationBytes(x->tokens, cols), "its input"));
    return;
  }
  Multiply(launch, args, NormOfOneToken(launch, std::get<NormArgs>(args.prologue), cols));
}

void SymbolicGpu::Perform(const GemmArgs& args) {
  Launch launch(*this, "a product of many tokens");
  if (kernels_.matvec_takes(args.product)) launch.Complain("has too few");
  const auto& x = std::get<Activations>(args.prologue);
  const Symbol input =
      launch.Whole(x.data, ActivationBytes(x.tokens, args.product.matrices[0].cols), "its input");
  if (args.product.tokens > kMaxPartialsTokens && args.stream_k.sums != nullptr) {
    launch.Whole(args.stream_k.ready, StreamKWorkspace::kReady * 4, "the zeros of stream-K");
    launch.Scratch(args.stream_k.sums, StreamKWorkspace::kSumsBytes);
  }
  Multiply(launch, args, input);
}

const SymbolicGpu::Placed* SymbolicGpu::ReadWeights(Launch& launch, const TiledMatrix& matrix,
                                                    Weights& weights) {
  for (int tile = 0; tile < matrix.row_tiles(); ++tile) {
    const Content content = launch.Read(matrix.data + tile * matrix.tile_bytes(),
                                        matrix.tile_bytes(), "a row tile of weights");
    if (tile == 0) weights = {content.symbol, static_cast<int>(content.part / kFormatCount)};
    if (content != Content{weights.symbol, TilePart(weights.first_tile + tile, matrix.format)}) {
      launch.Complain(absl::StrCat("has, as row tile ", tile, " of ",
                                   symbols_.Describe(weights.symbol), ", part ", content.part,
                                   " of ", symbols_.Describe(content.symbol)));
      return nullptr;
    }
  }
  const auto placed = matrices_.find(weights.symbol);
  if (placed == matrices_.end()) {
    launch.Complain("has no matrix as its weights");
    return nullptr;
  }
  launch.Expect(matrix.exponent == placed->second.exponent, "exponent");
  return &placed->second;
}

namespace {

// Returns why no kernel of a set that fuses nothing takes the arguments; null if one does.
const char* UnfusedProblem(const KernelSet& kernels, const MatmulArgs& args) {
  const auto& p = args.product;
  const bool few = kernels.matvec_takes(p);
  const auto* const x = std::get_if<Activations>(&args.prologue);
  if (x == nullptr) return "normalises its input";
  if (x->tokens < p.tokens || (few && x->tokens != kMatvecTokens)) {
    return "has an input of other tokens";
  }
  for (int i = 0; i < p.num_matrices; ++i) {
    const TiledMatrix& matrix = p.matrices[i];
    const TiledMatrix& before = p.matrices[std::max(i - 1, 0)];
    if (matrix.cols != before.cols || (i > 0 && before.rows % kTileRows != 0)) {
      return "has matrices that do not fit together";
    }
    if (!few && !(i == 0 ? kernels.gemm_takes(matrix.format, p.tokens)
                         : kernels.gemm_takes_behind(before.format, matrix.format))) {
      return "does not take such formats";
    }
  }
  if (std::holds_alternative<SwiGlu>(args.epilogue)) {
    return p.num_matrices > 1 || p.splits > 1 ? "has several parts for SwiGLU" : nullptr;
  }
  const auto* const store = std::get_if<StoreF32>(&args.epilogue);
  if (store == nullptr) return "does more than a product";
  const bool sums = p.tokens > kMaxPartialsTokens;
  if (p.splits > 1 && store->sum != sums) return "cannot store its result so";
  return nullptr;
}

}  // namespace

void SymbolicGpu::Multiply(Launch& launch, const MatmulArgs& args, Symbol x) {
  const char* const problem =
      kernels_.fuses ? sm90::MatmulProblem(args) : UnfusedProblem(kernels_, args);
  if (problem != nullptr) launch.Complain(problem);
  const auto& p = args.product;
  launch.ExpectRows(p.tokens);
  const auto* const store = std::get_if<StoreF32>(&args.epilogue);
  const auto* const qkv = std::get_if<StoreQkv>(&args.epilogue);
  int first_row = 0;
  for (int i = 0; i < p.num_matrices; ++i) {
    const TiledMatrix& matrix = p.matrices[i];
    Weights weights;
    const Placed* const placed = ReadWeights(launch, matrix, weights);
    if (placed == nullptr) return;
    if (Address(matrix.data) >= weights_end_ && !p.weights_are_new) {
      launch.Complain("does not know that its weights are new");
    }
    launch.Expect(p.splits == placed->splits, "split-K factor");
    const int first_tile = weights.first_tile;
    const Symbol product = Product(weights.symbol, x);
    const bool is_whole = first_tile == 0 && matrix.row_tiles() == placed->row_tiles;
    if (store == nullptr && !is_whole) launch.Complain("takes a part of a matrix");
    if (store != nullptr) {
      const int parts = store->sum ? 1 : p.splits;
      for (int s = 0; s < parts; ++s) {
        for (int t = 0; t < p.tokens; ++t) {
          const int64_t row = int64_t{s} * PartialsTokens(p.tokens) + t;
          launch.Write(store->y + row * store->stride + first_row, int64_t{matrix.rows} * 4,
                       {product, RowPart(parts, s, t, first_tile)});
        }
      }
    } else if (qkv != nullptr) {
      qkv_products_[qkv->first_row + first_row] = product;
    } else if (const auto* const swiglu = std::get_if<SwiGlu>(&args.epilogue)) {
      launch.WriteColumns(swiglu->out, matrix.rows / 2, {Gate(product, swiglu->activation)});
    } else {
      const auto& add = std::get<AddToResidual>(args.epilogue);
      const int64_t bytes = int64_t{p.tokens} * add.stride * 4;
      const Symbol residual = launch.Look(add.residual, bytes, "the residual").symbol;
      launch.Write(add.residual, bytes, {Add(residual, product, add.scale)});
    }
    first_row += matrix.rows;
  }
  // Queries, keys and values count as written when the product of the values has run.
  const int values_at = layer_.q_size() + layer_.kv_size();
  if (qkv != nullptr && qkv_products_.contains(values_at)) {
    const RopeArgs& rope = qkv->rope;
    if (qkv_products_.size() != 3) launch.Complain("makes queries of other than three matrices");
    QkvParts parts =
        ReadConstants(launch, rope.qkv, launch.ExpectLayer(rope.step, rope.kv, rope.layer));
    parts.q = qkv_products_[0];
    parts.k = qkv_products_[layer_.q_size()];
    parts.v = qkv_products_[values_at];
    WriteQkv(launch, rope, Qkv(parts));
    qkv_products_.clear();
  }
}

void SymbolicGpu::Perform(const SwiGluArgs& args) {
  Launch launch(*this, "the gate");
  launch.ExpectRows(args.tokens);
  // The gate of a single matrix is launched for taps only, which need a GPU.
  if (!args.apart) launch.Complain("is of one matrix");
  const auto read = [&](int first_col, const char* what) {
    return launch.ProductRows(args.products, 1, args.tokens, args.tokens, 2 * args.ffn, first_col,
                              args.ffn, what);
  };
  const Symbol gate = read(0, "the gate's product");
  const Symbol up = read(args.ffn, "up's product");
  const Symbol bias =
      args.bias == nullptr ? -1 : launch.Whole(args.bias, int64_t{args.ffn} * 2 * 4, "a bias");
  launch.WriteColumns(args.out, args.ffn, {Gate(gate, up, bias, args.activation)});
}

namespace {

// Numbers of the ExpertTables.
enum TablePart { kChosenPart, kWeightsPart, kSharedPart, kRowsPart, kTokensPart, kTilesPart };

}  // namespace

Symbol SymbolicGpu::Choice(const ExpertsSpec& spec, bool shared_joins, Symbol logits,
                           Symbol selection_bias) {
  return symbols_.Make(absl::StrCat("choice of ", spec.used, " of ", spec.count, " by ",
                                    static_cast<int>(spec.score), " in ", spec.groups, " groups, ",
                                    spec.groups_used, ", ", spec.normalise ? "normalised" : "",
                                    spec.scale, shared_joins ? " and the shared one" : ""),
                       {logits, selection_bias});
}

void SymbolicGpu::Perform(const RouterArgs& args) {
  Launch launch(*this, "a router");
  launch.ExpectRows(args.tokens);
  const Symbol x =
      launch.Whole(args.x, int64_t{args.tokens} * args.hidden * 4, "the input of a router");
  launch.Write(args.logits, int64_t{args.tokens} * args.outputs * 4, {LogitsOf(launch, args, x)});
}

Symbol SymbolicGpu::LogitsOf(Launch& launch, const RouterArgs& args, Symbol x) {
  const Symbol weights =
      launch.Vector(args.weights, int64_t{args.outputs} * args.hidden, "a router's weights");
  return RouterLogits(weights, x, launch.Vector(args.bias, args.count, "a router's bias"));
}

void SymbolicGpu::Perform(const ChooseExpertsArgs& args) {
  Launch launch(*this, "the choice of experts");
  launch.ExpectRows(args.tokens);
  const int outputs = RouterOutputs(args.spec);
  Choose(launch, args,
         launch.Whole(args.logits, int64_t{args.tokens} * outputs * 4, "a router's logits"));
}

void SymbolicGpu::Perform(const RouteOneTokenArgs& args) {
  Launch launch(*this, "the choice of one token's experts");
  const RouterArgs& router = args.router;
  const ExpertsSpec& spec = args.choice.spec;
  launch.Expect(RoutesOneToken(args.norm, spec) && router.hidden == args.norm.hidden, "norm");
  launch.ExpectRows(args.choice.tokens);
  launch.Expect(router.tokens == 1 && router.outputs == RouterOutputs(spec), "router");
  launch.Expect(args.passed == buffers_.experts.passed, "logits that blocks pass");
  const Symbol x = NormOfOneToken(launch, args.norm, spec_.hidden);
  launch.WriteColumns(args.norm.out, spec_.hidden, {x});
  Choose(launch, args.choice, LogitsOf(launch, router, x));
}

void SymbolicGpu::Choose(Launch& launch, const ChooseExpertsArgs& args, Symbol logits) {
  const ExpertsSpec& spec = args.spec;
  const ExpertsSpec all = AllExperts(spec, args.shared_joins);
  // Rows that were gathered are no longer the step's tokens.
  const bool gathered = shape_.logit_rows == rows_ && shape_.logit_rows < shape_.tokens;
  launch.Expect(args.step_tokens == (gathered ? nullptr : tables_.tokens), "tables");
  launch.Expect(args.load == (follows_ ? nullptr : buffers_.experts.load), "counters");
  launch.Expect(args.tile_rows == ExpertTileRows(all, args.tokens), "rows of a tile");
  const Symbol choice = Choice(spec, args.shared_joins, logits,
                               launch.Vector(args.selection_bias, spec.count, "a selection bias"));
  const ExpertTables& tables = args.tables;
  const int64_t choices = int64_t{args.tokens} * all.used * 4;
  launch.Write(tables.chosen, choices, {choice, kChosenPart});
  launch.Write(tables.weights, choices, {choice, kWeightsPart});
  launch.Expect((tables.shared_weights != nullptr) ==
                    (RouterOutputs(spec) > spec.count && !args.shared_joins),
                "weights of the shared expert");
  if (tables.shared_weights != nullptr) {
    launch.Write(tables.shared_weights, int64_t{args.tokens} * 4, {choice, kSharedPart});
  }
  launch.Write(tables.rows, choices, {choice, kRowsPart});
  launch.Write(tables.tokens, int64_t{MaxExpertRows(all, args.tokens)} * 4, {choice, kTokensPart});
  launch.Write(tables.tiles,
               int64_t{MaxExpertTiles(all, args.tokens, args.tile_rows)} * sizeof(ExpertTile),
               {choice, kTilesPart});
  tile_rows_ = args.tile_rows;
  if (args.published_load != nullptr) told_load_ = choice;
}

void SymbolicGpu::Perform(const GatherExpertRowsArgs& args) {
  Launch launch(*this, "sorting tokens by expert");
  launch.Expect(args.cols % kActivationCols == 0, "columns");
  const Symbol x =
      launch.Whole(args.x.data, ActivationBytes(args.x.tokens, args.cols), "the experts' input");
  const Symbol choice = launch.Choice(args.tables.tokens, int64_t{args.max_rows} * 4, kTokensPart);
  launch.Expect(args.to.tokens == args.max_rows, "rows");
  launch.Write(args.to.data, ActivationBytes(args.to.tokens, args.cols), {Sorted(x, choice)});
}

void SymbolicGpu::Perform(const ExpertMatmulArgs& args) {
  Launch launch(*this, "a product of experts");
  Symbol x = launch.Whole(args.x.data, ActivationBytes(args.x.tokens, args.experts.cols),
                          "the experts' rows");
  const Symbol choice =
      launch.Choice(args.tiles, int64_t{args.max_tiles} * sizeof(ExpertTile), kTilesPart);
  Weights weights;
  const Placed* const placed = ReadWeights(launch, args.experts, weights);
  if (placed == nullptr) return;
  launch.Expect(args.tile_rows == tile_rows_, "rows of a tile");
  launch.Expect(args.experts.row_tiles() == placed->row_tiles, "experts");
  launch.Expect(args.expert_rows == placed->expert_rows, "rows of an expert");
  launch.Expect(args.stored_rows == placed->stored_rows, "rows of an expert to store");
  const bool one = args.one_token != OneToken::kNo;
  if (one) launch.ExpectRows(1);
  if (args.one_token == OneToken::kSharedRow) {
    x = Sorted(x, choice);
  } else if (one) {
    const auto* const before = std::get_if<ExpertMatmulArgs>(&before_->args);
    launch.Expect(before != nullptr && before->one_token == OneToken::kSharedRow &&
                      before->tiles == args.tiles,
                  "launch before it");
  }
  const Symbol bias = launch.Vector(args.bias, args.experts.rows, "a bias of experts");
  const Symbol product = ExpertProduct(weights.symbol, x, choice, bias);
  // Rows of y: those of the tiles.
  const int rows = one ? args.max_tiles * kExpertRowAlign : args.x.tokens;
  if (const auto* const swiglu = std::get_if<SwiGlu>(&args.epilogue)) {
    launch.Expect(one ? swiglu->out.tokens >= args.max_tiles && args.x.tokens == kExpertRowAlign
                      : swiglu->out.tokens == args.x.tokens,
                  "rows");
    launch.WriteColumns(swiglu->out, args.stored_rows / 2, {Gate(product, swiglu->activation)});
    return;
  }
  launch.Expect(!one || args.x.tokens >= args.max_tiles, "rows");
  if (const auto* const sum = std::get_if<SumOfChoices>(&args.epilogue)) {
    launch.Expect(one, "epilogue");
    const int64_t bytes = int64_t{args.max_tiles} * 4;
    launch.Expect(launch.Choice(sum->weights, bytes, kWeightsPart) == choice, "weights");
    const int experts = args.experts.rows / args.expert_rows;
    const Symbol added =
        launch.Vector(sum->bias, int64_t{experts} * args.stored_rows, "a bias of experts");
    launch.Write(sum->out, int64_t{args.stored_rows} * 4,
                 {Combined(product, choice, added, -1, sum->scale, false), RowPart(1, 0, 0, 0)});
    return;
  }
  const auto& store = std::get<StoreF32>(args.epilogue);
  launch.Write(store.y, int64_t{rows} * store.stride * 4, {product});
}

void SymbolicGpu::Perform(const CombineExpertsArgs& args) {
  Launch launch(*this, "the sum of experts");
  const ExpertsSpec& spec = args.spec;
  launch.ExpectRows(args.tokens);
  launch.Expect(args.added == spec.used, "choices");
  const Symbol y = launch.Whole(args.y, int64_t{MaxExpertRows(spec, args.tokens)} * args.hidden * 4,
                                "the experts' outputs");
  const int64_t choices = int64_t{args.tokens} * spec.used * 4;
  const Symbol choice = launch.Choice(args.tables.rows, choices, kRowsPart);
  launch.Expect(launch.Choice(args.tables.weights, choices, kWeightsPart) == choice, "weights");
  launch.Expect(launch.Choice(args.tables.chosen, choices, kChosenPart) == choice, "experts");
  const Symbol bias =
      launch.Vector(args.bias, int64_t{spec.count} * args.hidden, "a bias of experts");
  const bool gated = args.tables.shared_weights != nullptr;
  if (gated) {
    launch.Expect(
        launch.Choice(args.tables.shared_weights, int64_t{args.tokens} * 4, kSharedPart) == choice,
        "weights of the shared expert");
  }
  launch.Expect(args.shared == nullptr || args.shared_scale == args.scale, "scale");
  const Symbol shared =
      args.shared == nullptr
          ? -1
          : launch.ProductRows(args.shared, args.shared_splits, args.tokens, args.shared_tokens,
                               args.hidden, 0, args.hidden, "the shared expert's product");
  const Symbol sum = Combined(y, choice, bias, shared, args.scale, gated);
  for (int t = 0; t < args.tokens; ++t) {
    launch.Write(args.out + int64_t{t} * args.hidden, int64_t{args.hidden} * 4,
                 {sum, RowPart(1, 0, t, 0)});
  }
}

Symbol SymbolicGpu::ReadDelta(Launch& launch, const DeltaArgs& args, int first_col, int cols,
                              const std::string& what) {
  const DeltaInputs& in = args.inputs;
  return launch.ProductRows(in.partials, in.splits, args.tokens, in.partials_tokens, in.rows,
                            first_col, cols, what);
}

Symbol SymbolicGpu::ReadConvolved(Launch& launch, const DeltaArgs& args, Symbol u, int layer) {
  if (recurrent_states_[layer] >= 0) launch.Complain("finds a state that was moved on");
  const Symbol conv = launch.Vector(
      args.inputs.conv, int64_t{args.spec.conv} * args.spec.channels(), "a convolution");
  return Convolved(u, conv, layer);
}

Symbol SymbolicGpu::ReadFactors(Launch& launch, const DeltaArgs& args, Symbol& rates) {
  const DeltaNetSpec& spec = args.spec;
  const int first = spec.channels() + spec.value_size();
  rates = ReadDelta(launch, args, first, args.inputs.rows - first, "beta and alpha");
  const Symbol a = launch.Vector(args.inputs.a, spec.value_heads, "rates of decay");
  return Factors(rates, a, launch.Vector(args.inputs.dt_bias, spec.value_heads, "a time's bias"));
}

void SymbolicGpu::MoveState(Launch& launch, const DeltaSymbols& of, int layer) {
  if (recurrent_states_[layer] >= 0) launch.Complain("moves a state on again");
  recurrent_states_[layer] = MovedState(of, layer);
}

void SymbolicGpu::Perform(const DeltaInputsLaunch& args) {
  Launch launch(*this, "a delta net's inputs");
  const int layer = launch.ExpectDelta(args);
  const DeltaNetSpec& spec = args.spec;
  DeltaSymbols of;
  of.u = ReadDelta(launch, args, 0, spec.channels(), "u");
  of.convolved = ReadConvolved(launch, args, of.u, layer);
  of.factors = ReadFactors(launch, args, of.rates);
  launch.Write(args.convolved, int64_t{args.tokens} * spec.channels() * 4, {of.convolved});
  launch.Write(args.factors, int64_t{args.tokens} * 2 * spec.value_heads * 4, {of.factors});
  if (!shape_.drafts) return;
  // The step's first draft stands for all.
  launch.Write(args.drafts.data + args.drafts.layer_offset, DeltaDraftFloats(spec) * 4,
               {KeptDraft(of)});
}

void SymbolicGpu::Perform(const DeltaRuleLaunch& args) {
  Launch launch(*this, "the delta rule");
  const int layer = launch.ExpectDelta(args);
  const DeltaNetSpec& spec = args.spec;
  DeltaSymbols of;
  of.u = ReadDelta(launch, args, 0, spec.channels(), "u");
  of.convolved = launch.Whole(args.convolved, int64_t{args.tokens} * spec.channels() * 4,
                              "queries, keys and values");
  of.factors =
      launch.Whole(args.factors, int64_t{args.tokens} * 2 * spec.value_heads * 4, "factors");
  if (shape_.drafts) {
    const Symbol kept = launch.Whole(args.drafts.data + args.drafts.layer_offset,
                                     DeltaDraftFloats(spec) * 4, "a draft");
    launch.Expect(kept == KeptDraft(of), "draft");
  }
  launch.Write(args.o, int64_t{args.tokens} * spec.value_size() * 4, {DeltaRule(of, layer)});
  MoveState(launch, of, layer);
}

void SymbolicGpu::Perform(const DeltaGateLaunch& args) {
  Launch launch(*this, "a delta net's gate");
  launch.ExpectDelta(args);
  const DeltaNetSpec& spec = args.spec;
  const Symbol o =
      launch.Whole(args.o, int64_t{args.tokens} * spec.value_size() * 4, "what the rule made");
  const Symbol z = ReadDelta(launch, args, spec.channels(), spec.value_size(), "z");
  const Symbol norm = launch.Vector(args.inputs.norm, spec.head_dim, "a norm of values");
  launch.WriteColumns(args.out, spec.value_size(), {DeltaGated(o, z, norm)});
}

void SymbolicGpu::Perform(const DeltaTokenLaunch& args) {
  Launch launch(*this, "a delta net of one token each");
  const int layer = launch.ExpectDelta(args);
  launch.Expect(shape_.decode && !shape_.drafts, "kind of step");
  const DeltaNetSpec& spec = args.spec;
  DeltaSymbols of;
  of.u = ReadDelta(launch, args, 0, spec.channels(), "u");
  of.z = ReadDelta(launch, args, spec.channels(), spec.value_size(), "z");
  of.convolved = ReadConvolved(launch, args, of.u, layer);
  of.factors = ReadFactors(launch, args, of.rates);
  const Symbol norm = launch.Vector(args.inputs.norm, spec.head_dim, "a norm of values");
  launch.WriteColumns(args.out, spec.value_size(), {DeltaGated(DeltaRule(of, layer), of.z, norm)});
  MoveState(launch, of, layer);
}

void SymbolicGpu::Perform(const DeltaReplayArgs& args) {
  Launch launch(*this, "moving states on");
  const bool right = args.states.data == states_.data &&
                     args.states.state_floats == states_.state_floats &&
                     args.states.layer_offset == 0;
  launch.Expect(right, "states");
  launch.ExpectDrafts(args.drafts, 0);
  launch.Expect(args.layers == static_cast<int>(recurrent_layers_.size()), "layers");
  launch.Expect(args.spec == spec_.layers[recurrent_layers_[0]].delta, "heads");
  launch.Expect(args.replays == 1 && args.of[0].first_draft == 0 && args.of[0].drafts == 1,
                "drafts");
  const float* at = args.drafts.data;
  for (const int layer : recurrent_layers_) {
    const Symbol kept = launch.Whole(at, DeltaDraftFloats(args.spec) * 4, "a draft");
    recurrent_states_[layer] = Replayed(recurrent_states_[layer], kept);
    at += DeltaDraftFloats(args.spec);
  }
}

void SymbolicGpu::Perform(const GateAttentionArgs& args) {
  Launch launch(*this, "the gate of attention");
  launch.ExpectRows(args.tokens);
  const Symbol gate = launch.ProductRows(args.partials, args.splits, args.tokens,
                                         args.partials_tokens, args.cols, 0, args.cols, "a gate");
  const int64_t bytes = ActivationBytes(args.values.tokens, args.cols);
  const Symbol attended = launch.Look(args.values.data, bytes, "what attention made").symbol;
  launch.Write(args.values.data, bytes, {GatedAttention(attended, gate)});
}

void SymbolicGpu::Perform(const ScaleLogitsArgs& args) {
  Launch launch(*this, "scaling logits");
  launch.ExpectRows(args.rows);
  launch.Expect(args.logits == buffers_.logits && args.vocab == spec_.vocab, "logits");
  const Symbol scaled = ScaledLogits(LogitsHeld(launch, args.rows), args.scale, args.softcap);
  for (int row = 0; row < args.rows; ++row) {
    launch.Write(args.logits + int64_t{row} * args.vocab, int64_t{args.vocab} * 4,
                 {scaled, RowPart(1, 0, row, 0)});
  }
}

void SymbolicGpu::Perform(const SampleArgs& args) {
  if (predicts_) return PerformPrediction(args);
  Launch launch(*this, "the sampler");
  rows_ = shape_.logit_rows;
  launch.ExpectRows(args.rows);
  launch.ExpectTables(args.step);
  launch.Expect(args.draws == layout_->draws, "draws");
  launch.Expect(args.biases == layout_->biases, "biases");
  launch.Expect(args.masks == layout_->masks, "masks");
  launch.Expect(args.block_token_ids == buffers_.block_token_ids &&
                    args.block_tokens == kv_.whole.block_tokens,
                "ids of tokens in blocks");
  launch.Expect(args.not_finite == buffers_.not_finite, "marks of values that are not finite");
  launch.Expect(args.last_sample == buffers_.last_sample, "samples");
  launch.Expect(args.logits == buffers_.logits && args.vocab == spec_.vocab, "logits");
  if (drawn_from_ >= 0) launch.Complain("draws again");
  drawn_from_ = LogitsHeld(launch, args.rows);
}

void SymbolicGpu::PerformPrediction(const SampleArgs& args) {
  Launch launch(*this, "the sampler of predictions");
  launch.ExpectRows(args.rows);
  launch.ExpectTables(args.step);
  launch.Expect(args.draws == layout_->predict_draws, "draws");
  launch.Expect(args.not_finite == buffers_.predict.no_marks,
                "marks of values that are not finite");
  launch.Expect(args.last_sample == buffers_.predict.predicted, "samples");
  launch.Expect(args.logits == buffers_.logits && args.vocab == spec_.vocab, "logits");
  predicted_from_.push_back(LogitsHeld(launch, args.rows));
  launch.Write(args.last_sample, int64_t{args.rows} * 4, {Drawn(predicted_from_.back())});
}

Symbol SymbolicGpu::ExpectDraws(Launch& launch, const StepDraws& of) {
  const StepTables tables = layout_->tables();
  launch.Expect(of.step.tokens == tables.tokens && of.step.sequences == tables.sequences, "tables");
  launch.Expect(of.runs.runs == layout_->runs && of.runs.run_of_token == layout_->run_of_token,
                "runs");
  launch.Expect(of.draws == layout_->draws, "draws");
  launch.Expect(of.last_sample == buffers_.last_sample, "samples");
  return drawn_from_ < 0 ? -1 : Drawn(drawn_from_);
}

void SymbolicGpu::Perform(const PredictInputsArgs& args) {
  Launch launch(*this, "the inputs of predictions");
  follows_ = true;
  if (!predicts_) rows_ = shape_.tokens;
  launch.ExpectTables(args.step);
  launch.ExpectRows(args.tokens);
  launch.Expect(args.eps == spec_.norm_eps && args.hidden == spec_.hidden, "norm");
  PredictParts of;
  if (args.states.of_slots != nullptr) of.slots = launch.Whole(args.states.of_slots, 4, "states");
  const auto* const rows = memory_.Find(Address(args.states.rows));
  if (predicts_) {
    launch.Expect(args.runs.runs == nullptr, "runs");
    of.tokens = launch.Whole(args.step.tokens, args.tokens * int64_t{sizeof(TokenEntry)}, "tokens");
    launch.Expect(launch.Whole(args.step.sequences, args.tokens * int64_t{sizeof(SequenceEntry)},
                               "sequences") == of.tokens,
                  "sequences");
    // Fewer rows than before may follow.
    if (of.slots < 0) {
      launch.Expect(rows != nullptr && rows->content.part == 0, "hidden states");
      if (rows != nullptr) of.rows = rows->content.symbol;
    }
  } else {
    launch.Expect(
        args.runs.runs == layout_->runs && args.runs.run_of_token == layout_->run_of_token, "runs");
    launch.Expect(args.block_token_ids == buffers_.block_token_ids &&
                      args.block_tokens == kv_.whole.block_tokens,
                  "ids of tokens in blocks");
    // The ids are there once tokens have been embedded, however they were drawn.
    of.tokens = StepTokens();
    of.rows =
        launch.Whole(args.states.rows, int64_t{args.tokens} * args.hidden * 4, "hidden states");
  }
  const TiledMatrix& matrix = args.embedding;
  const Symbol embedding = launch.Read(matrix.data, matrix.tile_bytes(), "a row tile").symbol;
  const Symbol pairs = Pairs(embedding, launch.Vector(args.embedding_norm, args.hidden, "a norm"),
                             launch.Vector(args.hidden_norm, args.hidden, "a norm"), of);
  launch.WriteColumns(args.pairs, 2 * args.hidden, {pairs});
  launch.Write(args.residual, int64_t{args.tokens} * args.hidden * 4, {Zeros()});
}

void SymbolicGpu::Perform(const KeepHiddenArgs& args) {
  Launch launch(*this, "keeping hidden states");
  const Symbol drawn = ExpectDraws(launch, args.of);
  launch.Expect(args.runs == shape_.sequences, "runs");
  launch.Expect(shape_.logit_rows == 0 || drawn >= 0, "time: nothing has been drawn");
  const Symbol rows =
      launch.Whole(args.states.rows, int64_t{shape_.tokens} * args.hidden * 4, "hidden states");
  kept_hidden_ = Kept(rows, drawn);
  launch.Write(args.states.of_slots, 4, {kept_hidden_});
  followed_ = keys_and_values_.back();
}

void SymbolicGpu::Perform(const PredictTokensArgs& args) {
  Launch launch(*this, "the tokens of predictions");
  const Symbol drawn = ExpectDraws(launch, args.of);
  launch.Expect(drawn >= 0, "time: nothing has been drawn");
  launch.Expect(args.entries == layout_->predicting, "entries");
  launch.Expect(args.before == static_cast<int>(predicted_from_.size()), "number");
  launch.Expect(args.predicted == buffers_.predict.predicted, "predictions");
  const Symbol tokens = args.before == 0 ? drawn : Drawn(predicted_from_.back());
  launch.Write(args.tokens, args.count * int64_t{sizeof(TokenEntry)}, {tokens});
  launch.Write(args.sequences, args.count * int64_t{sizeof(SequenceEntry)}, {tokens});
  // From here on, launches are those of a step of one token a sequence.
  predicts_ = true;
  rows_ = args.count;
  shape_ = DecodeShape(args.count, layer_);
  tables_.tokens = args.tokens;
  tables_.sequences = args.sequences;
  tables_.logit_tokens = nullptr;
}

void SymbolicGpu::Perform(const DequantiseArgs& args) {
  Launch launch(*this, "dequantising");
  const auto& [product, first_tile, tiles, out] = args;
  int before = 0;
  for (int i = 0; i < product.num_matrices; ++i) {
    const TiledMatrix& matrix = product.matrices[i];
    if (matrix.format != product.matrices[0].format) launch.Complain("has several formats");
    for (int tile = 0; tile < matrix.row_tiles(); ++tile) {
      const int at = before + tile - first_tile;
      if (at >= 0 && at < tiles) launch.DequantiseTile(matrix, tile, out, at);
    }
    before += matrix.row_tiles();
  }
}

// --- The launches' names. ------------------------------------------------------------------------

namespace {

template <typename Args>
cudaError_t Record(const Args& args, cudaStream_t stream) {
  current->Record({args, stream});
  return cudaSuccess;
}

}  // namespace

cudaError_t LaunchEmbed(const EmbedArgs& args, cudaStream_t stream) { return Record(args, stream); }
cudaError_t LaunchNorm(const NormArgs& args, cudaStream_t stream) { return Record(args, stream); }
cudaError_t LaunchClearPadding(const ClearPaddingArgs& args, cudaStream_t stream) {
  return Record(args, stream);
}
cudaError_t LaunchScaleLogits(const ScaleLogitsArgs& args, cudaStream_t stream) {
  return Record(args, stream);
}
cudaError_t LaunchGatherRows(const GatherRowsArgs& args, cudaStream_t stream) {
  return Record(args, stream);
}
cudaError_t LaunchRope(const RopeArgs& args, cudaStream_t stream) { return Record(args, stream); }
cudaError_t LaunchSwiGlu(const SwiGluArgs& args, cudaStream_t stream) {
  return Record(args, stream);
}
cudaError_t LaunchRouter(const RouterArgs& args, cudaStream_t stream) {
  return Record(args, stream);
}
cudaError_t LaunchChooseExperts(const ChooseExpertsArgs& args, cudaStream_t stream) {
  return Record(args, stream);
}
cudaError_t LaunchGatherExpertRows(const GatherExpertRowsArgs& args, cudaStream_t stream) {
  return Record(args, stream);
}
cudaError_t LaunchCombineExperts(const CombineExpertsArgs& args, cudaStream_t stream) {
  return Record(args, stream);
}
cudaError_t LaunchDeltaInputs(const DeltaArgs& args, cudaStream_t stream) {
  return Record(DeltaInputsLaunch{args}, stream);
}
cudaError_t LaunchDeltaRule(const DeltaArgs& args, const DeviceTraits& /*device*/,
                            cudaStream_t stream) {
  return Record(DeltaRuleLaunch{args}, stream);
}
cudaError_t LaunchDeltaGate(const DeltaArgs& args, cudaStream_t stream) {
  return Record(DeltaGateLaunch{args}, stream);
}
cudaError_t LaunchDeltaToken(const DeltaArgs& args, cudaStream_t stream) {
  return Record(DeltaTokenLaunch{args}, stream);
}
cudaError_t LaunchDeltaReplay(const DeltaReplayArgs& args, cudaStream_t stream) {
  return Record(args, stream);
}
cudaError_t LaunchGateAttention(const GateAttentionArgs& args, cudaStream_t stream) {
  return Record(args, stream);
}

cudaError_t LaunchPredictInputs(const PredictInputsArgs& args, cudaStream_t stream) {
  return Record(args, stream);
}
cudaError_t LaunchKeepHidden(const KeepHiddenArgs& args, cudaStream_t stream) {
  return Record(args, stream);
}
cudaError_t LaunchPredictTokens(const PredictTokensArgs& args, cudaStream_t stream) {
  return Record(args, stream);
}

KernelSet SymbolicKernels(bool fuses) {
  KernelSet kernels = fuses ? sm90::kKernels : portable::KernelSets().front();
  kernels.matvec = [](const MatmulArgs& args, const DeviceTraits&, cudaStream_t stream) {
    return Record(MatvecArgs{args}, stream);
  };
  kernels.gemm = [](const MatmulArgs& args, const DeviceTraits&, cudaStream_t stream) {
    return Record(GemmArgs{args}, stream);
  };
  kernels.dequantise = [](const Product& product, int first_tile, int tiles, uint8_t* out,
                          cudaStream_t stream) {
    return Record(DequantiseArgs{product, first_tile, tiles, out}, stream);
  };
  if (fuses) {
    kernels.route_one_token = [](const RouteOneTokenArgs& args, const DeviceTraits&,
                                 cudaStream_t stream) { return Record(args, stream); };
  }
  kernels.expert_gemm = [](const ExpertMatmulArgs& args, const DeviceTraits&, cudaStream_t stream) {
    return Record(args, stream);
  };
  kernels.decode_attention = [](const DecodeAttentionArgs& args, const DeviceTraits&,
                                cudaStream_t stream) { return Record(args, stream); };
  kernels.prefill_attention = [](const PrefillAttentionArgs& args, const DeviceTraits&,
                                 cudaStream_t stream) { return Record(args, stream); };
  kernels.sample = [](const SampleArgs& args, const DeviceTraits&, cudaStream_t stream) {
    return Record(args, stream);
  };
  return kernels;
}

}  // namespace orcd::cuda
