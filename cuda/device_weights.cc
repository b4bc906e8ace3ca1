#include "cuda/device_weights.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cuda/kernels/common/experts.h"
#include "cuda/kernels/common/repack.h"
#include "cuda/status.h"
#include "cuda/weight_exponent.h"
#include "runtime/base/error.h"
#include "runtime/gguf/dequantize.h"
#include "runtime/model/load_cancelled.h"

namespace orcd::cuda {
namespace {

// Bytes that a reader reads, copies and repacks at a time, and the number of such chunks that it
// has in flight.
constexpr int64_t kChunkBytes = 4 << 20;
constexpr int kSlots = 2;

// True if all of these weights stay finite in F16, as which F32 and BF16 are kept.
bool FitsF16(TensorType type, const uint8_t* data, int64_t bytes) {
  // Smaller values are rounded to at most 65504, the largest F16.
  constexpr float kTooLarge = 65520.0f;
  if (type == TensorType::kF32) {
    const std::span values(reinterpret_cast<const float*>(data), bytes / sizeof(float));
    return std::all_of(values.begin(), values.end(),
                       [](float v) { return std::abs(v) < kTooLarge; });
  }
  if (type == TensorType::kBF16) {
    // Magnitudes of BF16 are ordered as their bits are.
    const uint16_t too_large = static_cast<uint16_t>(std::bit_cast<uint32_t>(kTooLarge) >> 16);
    const std::span values(reinterpret_cast<const uint16_t*>(data), bytes / sizeof(uint16_t));
    return std::all_of(values.begin(), values.end(),
                       [&](uint16_t v) { return (v & 0x7fff) <= too_large; });
  }
  return true;
}

// True of layers whose products are IsPlain (step.h) but for a bias or the order of rows.
bool RotatesHeads(const LayerSpec& layer) {
  return (layer.head_dim == 64 || layer.head_dim == 128) && layer.rope.kind != RopeKind::kNone &&
         layer.rope.dims == layer.head_dim && layer.qk_norm == QkNorm::kNone &&
         layer.temperature == 0;
}

std::string TypeName(TensorType type) { return std::string(GetTensorTypeInfo(type).name); }

absl::Status UnsupportedWeights(const std::string& what) {
  return MakeError(absl::StatusCode::kUnimplemented, absl::StrCat(what, "; use --backend cpu"),
                   {.reason = "MODEL_UNSUPPORTED"});
}

absl::Status TooLarge(const Matrix& matrix) {
  return UnsupportedWeights(
      absl::StrCat("a matrix of ", matrix.rows, " rows and ", matrix.cols,
                   " columns has a weight beyond 65504, and the GPU backend keeps "
                   "weights of F32 and BF16 as F16"));
}

absl::Status ExpertsDiffer(size_t layer, const Matrix& first, const Matrix& other) {
  return UnsupportedWeights(absl::StrCat("layer ", layer, " has matrices of experts of ",
                                         TypeName(first.type), " and ", TypeName(other.type),
                                         " where the GPU backend needs one type"));
}

absl::Status TooManyRows(size_t layer, int64_t rows) {
  return UnsupportedWeights(absl::StrCat("layer ", layer, " has experts of ", rows,
                                         " rows together, which the GPU backend does not support"));
}

bool FollowsInMemory(const Matrix& matrix, const Matrix& before) {
  return matrix.data == before.data + before.bytes();
}

// True if the shared expert is kept with the others.
bool SharedJoins(const ExpertsSpec& spec, const ExpertWeights& experts) {
  return SharedMayJoin(spec) && experts.gate_bias.empty() && experts.down_bias.empty() &&
         experts.shared_gate.type == experts.gate[0].type &&
         experts.shared_up.type == experts.up[0].type &&
         experts.shared_down.type == experts.down[0].type;
}

std::vector<Matrix> WithLast(std::vector<Matrix> matrices, const Matrix* last) {
  if (last != nullptr) matrices.push_back(*last);
  return matrices;
}

std::vector<float> RouterRows(const ExpertWeights& experts) {
  const Matrix& router = experts.router;
  std::vector<float> rows(router.rows * router.cols);
  for (int64_t r = 0; r < router.rows; ++r) {
    Dequantize(router.type, router.row(r), router.cols, rows.data() + r * router.cols);
  }
  rows.insert(rows.end(), experts.shared_router.begin(), experts.shared_router.end());
  return rows;
}

// Groups of 8 values of the gate and of up in turn, as the rows of their tiles.
std::vector<float> Interleaved(Vector gate, Vector up) {
  std::vector<float> values;
  values.reserve(gate.size() + up.size());
  for (size_t i = 0; i < gate.size(); i += kTileRows / 2) {
    const size_t count = std::min<size_t>(kTileRows / 2, gate.size() - i);
    for (const Vector& part : {gate.subspan(i, count), up.subspan(i, count)}) {
      values.insert(values.end(), part.begin(), part.end());
    }
  }
  return values;
}

// [channels, conv] as [conv, channels].
std::vector<float> TransposedConvolution(const Matrix& conv) {
  std::vector<float> values(conv.rows * conv.cols);
  std::vector<float> row(conv.cols);
  for (int64_t r = 0; r < conv.rows; ++r) {
    Dequantize(conv.type, conv.row(r), conv.cols, row.data());
    for (int64_t c = 0; c < conv.cols; ++c) values[c * conv.rows + r] = row[c];
  }
  return values;
}

}  // namespace

ModelSpec WithBlock(ModelSpec spec, const PredictBlock& block) {
  spec.layers.push_back(block.spec);
  return spec;
}

ModelWeights WithBlock(ModelWeights weights, const PredictBlock& block) {
  weights.layers.push_back(block.layer);
  return weights;
}

// Gives every weight a place in a slab, in the order in which a step needs them.
class DeviceWeights::Planner {
 public:
  // If `slab` is null, the places are only counted. References must outlive the layout.
  Planner(const ModelSpec& spec, const ModelWeights& weights, const PredictBlock* block,
          uint8_t* slab, DeviceWeights& to)
      : spec_(spec),
        weights_(weights),
        block_(block),
        counts_only_(slab == nullptr),
        to_(to),
        carver_(slab) {}

  absl::StatusOr<Layout> Run() {
    to_.formats_ = 0;
    to_.num_weights_ = 0;
    Place(to_.embedding_, weights_.token_embd);
    to_.predict_block_.reset();
    to_.layers_.assign(weights_.layers.size(), {});
    for (size_t i = 0; i < weights_.layers.size(); ++i) ORCD_RETURN_IF_ERROR(PlaceLayer(i));
    to_.output_norm_ = PlaceVector(weights_.output_norm);
    to_.tied_ = weights_.tied;
    if (!to_.tied_) Place(to_.output_, weights_.output);
    if (block_ != nullptr) PlaceBlock(*block_, to_.predict_block_.emplace());
    to_.planned_bytes_ = carver_.taken();
    return std::move(layout_);
  }

 private:
  struct Part {
    Vector values;
    int64_t size;
  };

  void Take(TiledMatrix& tiles, const Matrix& of, int64_t rows) {
    tiles = {};
    tiles.format = FormatFor(of.type);
    tiles.rows = static_cast<int>(rows);
    tiles.cols = static_cast<int>(of.cols);
    tiles.data = carver_.Take<uint8_t>(tiles.bytes());
    to_.num_weights_ += rows * of.cols;
  }

  void Place(TiledMatrix& tiles, const Matrix& upper, const Matrix* lower = nullptr) {
    Take(tiles, upper, lower == nullptr ? upper.rows : (upper.rows + 7) / 8 * kTileRows);
    to_.formats_ |= FormatBit(tiles.format);
    layout_.placements.push_back({.upper = upper,
                                  .lower = lower == nullptr ? std::nullopt : std::optional(*lower),
                                  .tiles = &tiles});
  }

  // `rows` rows of a matrix, of which row_of(row) stands at `row`.
  void PlaceRows(TiledMatrix& tiles, const Matrix& of, int64_t rows,
                 const std::function<int(int)>& row_of) {
    Matrix placed = of;
    placed.rows = rows;
    Place(tiles, placed);
    layout_.placements.back().read_row = [of, row_of](int64_t row, std::byte* to) {
      std::memcpy(to, of.row(row_of(static_cast<int>(row))), static_cast<size_t>(of.row_bytes));
    };
  }

  // The experts' matrices, one below the other. Matrices of whole tiles that follow one another in
  // the file are placed as one, so that chunks span experts.
  absl::Status Stack(size_t i, TiledMatrix& tiles, const std::vector<Matrix>& upper,
                     const std::vector<Matrix>* lower = nullptr) {
    for (const std::vector<Matrix>* matrices : {&upper, lower}) {
      if (matrices == nullptr) continue;
      for (const Matrix& matrix : *matrices) {
        if (matrix.type != upper[0].type) return ExpertsDiffer(i, upper[0], matrix);
      }
    }
    const int rows_a_tile = lower == nullptr ? kTileRows : kTileRows / 2;
    const int64_t tiles_each = (upper[0].rows + rows_a_tile - 1) / rows_a_tile;
    const int64_t rows = static_cast<int64_t>(upper.size()) * tiles_each * kTileRows;
    if (rows > std::numeric_limits<int32_t>::max()) return TooManyRows(i, rows);
    Take(tiles, upper[0], rows);
    const bool whole_tiles = upper[0].rows % rows_a_tile == 0;
    for (size_t e = 0; e < upper.size(); ++e) {
      if (e > 0 && whole_tiles) {
        Placement& before = layout_.placements.back();
        if (FollowsInMemory(upper[e], before.upper) &&
            (lower == nullptr || FollowsInMemory((*lower)[e], *before.lower))) {
          before.upper.rows += upper[e].rows;
          if (lower != nullptr) before.lower->rows += (*lower)[e].rows;
          continue;
        }
      }
      layout_.placements.push_back(
          {.upper = upper[e],
           .lower = lower == nullptr ? std::nullopt : std::optional((*lower)[e]),
           .tiles = &tiles,
           .first_tile = static_cast<int>(static_cast<int64_t>(e) * tiles_each)});
    }
    return absl::OkStatus();
  }

  // Consecutive vectors; absent ones become zeros. Null if all are absent and not `wanted`.
  const float* PlaceVectors(std::initializer_list<Part> parts, bool wanted = false) {
    int64_t size = 0;
    bool there = wanted;
    for (const Part& part : parts) {
      size += part.size;
      there = there || !part.values.empty();
    }
    if (!there) return nullptr;
    float* const begin = carver_.Take<float>(size);
    float* to = begin;
    for (const Part& part : parts) {
      layout_.vectors.push_back(
          {part.values.empty() ? nullptr : part.values.data(), part.size, to});
      if (!counts_only_) to += part.size;
    }
    return begin;
  }
  const float* PlaceVector(const Vector& values) {
    return PlaceVectors({{values, static_cast<int64_t>(values.size())}});
  }
  // `size` values that are made when they are copied.
  const float* PlaceMade(int64_t size, std::function<std::vector<float>()> make) {
    float* const to = carver_.Take<float>(size);
    layout_.vectors.push_back({nullptr, size, to, std::move(make)});
    return to;
  }

  absl::Status PlaceLayer(size_t i) {
    const LayerSpec& spec = spec_.layers[i];
    const LayerWeights& layer = weights_.layers[i];
    DeviceLayer& to = to_.layers_[i];
    to.attn_norm = PlaceVector(layer.attn_norm);
    if (spec.recurrent()) {
      PlaceDeltaNet(spec.delta, layer.delta, to.delta);
    } else {
      ORCD_RETURN_IF_ERROR(PlaceAttention(i, spec, layer, to));
    }
    to.attn_post_norm = PlaceVector(layer.attn_post_norm);
    to.ffn_norm = PlaceVector(layer.ffn_norm);
    to.gate_up_bias = PlaceVectors(
        {{layer.ffn_gate_bias, layer.ffn_gate.rows}, {layer.ffn_up_bias, layer.ffn_up.rows}});
    const ExpertWeights& experts = layer.experts;
    if (spec.experts.count == 0) {
      PlaceFfn(layer.ffn_gate, layer.ffn_up, layer.ffn_down, to);
    } else {
      to.experts.shared_joins = SharedJoins(spec.experts, experts);
      if (spec.experts.shared_ffn > 0 && !to.experts.shared_joins) {
        PlaceFfn(experts.shared_gate, experts.shared_up, experts.shared_down, to);
      }
      ORCD_RETURN_IF_ERROR(PlaceExperts(i, experts, to.experts));
    }
    to.down_bias = PlaceVector(layer.ffn_down_bias);
    to.ffn_post_norm = PlaceVector(layer.ffn_post_norm);
    return absl::OkStatus();
  }

  // All but its layer. What the block shares with the model is there already.
  void PlaceBlock(const PredictBlock& block, DevicePredictBlock& to) {
    Place(to.projection, block.projection);
    to.embedding_norm = PlaceVector(block.embedding_norm);
    to.hidden_norm = PlaceVector(block.hidden_norm);
    const bool own_norm = block.output_norm.data() != weights_.output_norm.data();
    to.output_norm = own_norm ? PlaceVector(block.output_norm) : to_.output_norm_;
    if (block.token_embd.data != weights_.token_embd.data) {
      Place(to.own_embedding, block.token_embd);
    }
    if (block.output.data != weights_.output.data) Place(to.own_output, block.output);
  }

  absl::Status PlaceAttention(size_t i, const LayerSpec& spec, const LayerWeights& layer,
                              DeviceLayer& to) {
    const int head_dim = spec.head_dim;
    const bool gated = spec.gated_attention;
    if (gated && !layer.attn_q_bias.empty()) {
      return UnsupportedWeights(
          absl::StrCat("layer ", i,
                       " has a bias of the queries of gated attention, which the "
                       "GPU backend does not support"));
    }
    const bool rotates_heads = RotatesHeads(spec);
    to.halves = rotates_heads && spec.rope.kind == RopeKind::kNorm && layer.attn_q_bias.empty() &&
                layer.attn_k_bias.empty();
    const auto key_row = [head_dim](int row) { return RowOfHalves(row, head_dim); };
    const auto query_row = [head_dim, halves = to.halves](int row) {
      return RowOfQuery(halves ? RowOfHalves(row, head_dim) : row, head_dim);
    };
    if (gated) {
      PlaceRows(to.qkv[0], layer.attn_q, spec.q_size(), query_row);
      PlaceRows(to.attn_gate, layer.attn_q, spec.q_size(),
                [head_dim](int row) { return RowOfAttentionGate(row, head_dim); });
    } else if (to.halves) {
      PlaceRows(to.qkv[0], layer.attn_q, layer.attn_q.rows, key_row);
    } else {
      Place(to.qkv[0], layer.attn_q);
    }
    if (to.halves) {
      PlaceRows(to.qkv[1], layer.attn_k, layer.attn_k.rows, key_row);
    } else {
      Place(to.qkv[1], layer.attn_k);
    }
    Place(to.qkv[2], layer.attn_v);
    to.qkv_bias = PlaceVectors({{layer.attn_q_bias, to.qkv[0].rows},
                                {layer.attn_k_bias, to.qkv[1].rows},
                                {layer.attn_v_bias, to.qkv[2].rows}},
                               rotates_heads);
    to.q_norm = PlaceVector(layer.attn_q_norm);
    to.k_norm = PlaceVector(layer.attn_k_norm);
    Place(to.attn_output, layer.attn_output);
    to.attn_output_bias = PlaceVector(layer.attn_output_bias);
    to.attn_sinks = PlaceVector(layer.attn_sinks);
    return absl::OkStatus();
  }

  void PlaceDeltaNet(const DeltaNetSpec& spec, const DeltaNetWeights& net, DeviceDeltaNet& to) {
    if (net.qkv_gate.rows > 0) {
      PlaceRows(to.inputs[0], net.qkv_gate, spec.channels(),
                [&spec](int row) { return RowOfDeltaInputs(row, spec); });
      PlaceRows(to.inputs[1], net.qkv_gate, spec.value_size(),
                [&spec](int row) { return RowOfDeltaInputs(spec.channels() + row, spec); });
    } else {
      Place(to.inputs[0], net.qkv);
      Place(to.inputs[1], net.gate);
    }
    PlaceDeltaFactors(spec, net, to.inputs[2]);
    to.conv = PlaceMade(net.conv.rows * net.conv.cols,
                        [&net] { return TransposedConvolution(net.conv); });
    to.a = PlaceVector(net.a);
    to.dt_bias = PlaceVector(net.dt_bias);
    to.norm = PlaceVector(net.norm);
    Place(to.output, net.output);
  }

  void PlaceDeltaFactors(const DeltaNetSpec& spec, const DeltaNetWeights& net, TiledMatrix& tiles) {
    const bool fused = net.beta_alpha.rows > 0;
    Matrix placed = fused ? net.beta_alpha : net.beta;
    placed.rows = 2 * spec.value_heads;
    // A matrix has one type, and F32 holds the values of all.
    const bool as_f32 = !fused && net.beta.type != net.alpha.type;
    if (as_f32) {
      placed.type = TensorType::kF32;
      placed.row_bytes = placed.cols * static_cast<int64_t>(sizeof(float));
    }
    Take(tiles, placed, (placed.rows + kTileRows - 1) / kTileRows * kTileRows);
    to_.formats_ |= FormatBit(tiles.format);
    const auto read_row = [fused, as_f32, &spec, &net](int64_t row, std::byte* to) {
      const int at = static_cast<int>(row);
      const Matrix& of = fused ? net.beta_alpha : at < spec.value_heads ? net.beta : net.alpha;
      const std::byte* const from =
          of.row(fused ? RowOfDeltaFactors(at, spec) : at % spec.value_heads);
      if (as_f32) {
        Dequantize(of.type, from, of.cols, reinterpret_cast<float*>(to));
      } else {
        std::memcpy(to, from, static_cast<size_t>(of.row_bytes));
      }
    };
    layout_.placements.push_back({.upper = placed, .tiles = &tiles, .read_row = read_row});
  }

  // The rows of a tile are read, repacked and multiplied as one type, and epilogues add no bias.
  void PlaceFfn(const Matrix& gate, const Matrix& up, const Matrix& down, DeviceLayer& to) {
    if (gate.type == up.type && to.gate_up_bias == nullptr) {
      Place(to.gate_up, gate, &up);
    } else {
      Place(to.gate_up, gate);
      Place(to.up, up);
    }
    Place(to.down, down);
  }

  absl::Status PlaceExperts(size_t i, const ExpertWeights& experts, DeviceExperts& to) {
    to.router = PlaceMade(experts.router.rows * experts.router.cols +
                              static_cast<int64_t>(experts.shared_router.size()),
                          [&experts] { return RouterRows(experts); });
    to.router_bias = PlaceVector(experts.router_bias);
    to.selection_bias = PlaceVector(experts.selection_bias);
    const auto all = [&](const std::vector<Matrix>& each, const Matrix& shared) {
      return WithLast(each, to.shared_joins ? &shared : nullptr);
    };
    const std::vector<Matrix> up = all(experts.up, experts.shared_up);
    ORCD_RETURN_IF_ERROR(Stack(i, to.gate_up, all(experts.gate, experts.shared_gate), &up));
    ORCD_RETURN_IF_ERROR(Stack(i, to.down, all(experts.down, experts.shared_down)));
    if (!experts.gate_bias.empty()) {
      to.gate_up_bias =
          PlaceMade(static_cast<int64_t>(experts.gate_bias.size() + experts.up_bias.size()),
                    [&experts] { return Interleaved(experts.gate_bias, experts.up_bias); });
    }
    to.down_bias = PlaceVector(experts.down_bias);
    return absl::OkStatus();
  }

  const ModelSpec& spec_;
  const ModelWeights& weights_;
  const PredictBlock* const block_;
  const bool counts_only_;
  DeviceWeights& to_;
  Carver carver_;
  Layout layout_;
};

absl::StatusOr<DeviceWeights::Layout> DeviceWeights::LayOut(const ModelSpec& spec,
                                                            const ModelWeights& weights,
                                                            const PredictBlock* block,
                                                            uint8_t* slab) {
  return Planner(spec, weights, block, slab, *this).Run();
}

absl::StatusOr<DeviceWeights> DeviceWeights::Plan(const ModelSpec& spec,
                                                  const ModelWeights& weights, int readers,
                                                  uint8_t* slab, const PredictBlock* block) {
  DeviceWeights plan;
  ORCD_ASSIGN_OR_RETURN(const Layout layout, plan.LayOut(spec, weights, block, slab));
  plan.staging_bytes_ = ChunkBytes(layout) * kSlots * readers;
  return plan;
}

absl::StatusOr<DeviceWeights> DeviceWeights::Upload(const ModelSpec& spec,
                                                    const ModelWeights& weights, int readers,
                                                    int device, LoadObserver& observer,
                                                    const PredictBlock* block) {
  ORCD_ASSIGN_OR_RETURN(DeviceWeights result, Plan(spec, weights, readers, nullptr, block));
  ORCD_ASSIGN_OR_RETURN(result.slab_, DeviceMemory::Allocate(result.planned_bytes_, "weights"));
  ORCD_ASSIGN_OR_RETURN(const Layout layout,
                        result.LayOut(spec, weights, block, result.slab_.data()));
  ORCD_RETURN_IF_ERROR(Copy(layout, readers, device, observer));
  return result;
}

int64_t DeviceWeights::ChunkBytes(const Layout& layout) {
  int64_t largest = kChunkBytes;
  // A chunk consists of whole tiles.
  for (const Placement& p : layout.placements) {
    largest = std::max(largest, p.upper.row_bytes * kTileRows);
  }
  return largest;
}

std::vector<DeviceWeights::Chunk> DeviceWeights::Chunks(const Layout& layout) {
  std::vector<Chunk> chunks;
  for (const Placement& p : layout.placements) {
    const int64_t tile_bytes = p.upper.row_bytes * kTileRows;
    const int most = static_cast<int>(std::max<int64_t>(1, kChunkBytes / tile_bytes));
    for (int tile = 0; tile < p.row_tiles(); tile += most) {
      chunks.push_back({&p, tile, std::min(most, p.row_tiles() - tile)});
    }
  }
  return chunks;
}

// One reader, on one thread: reads chunks into pinned memory, from which the GPU copies and repacks
// them while the next one is read.
class DeviceWeights::Copier {
 public:
  static absl::StatusOr<Copier> Create(int64_t chunk_bytes) {
    Copier copier;
    copier.chunk_bytes_ = chunk_bytes;
    ORCD_ASSIGN_OR_RETURN(copier.stream_, CreateStream());
    ORCD_ASSIGN_OR_RETURN(copier.pinned_,
                          PinnedMemory::Allocate(chunk_bytes * kSlots, "reading weights"));
    ORCD_ASSIGN_OR_RETURN(copier.staging_,
                          DeviceMemory::Allocate(chunk_bytes * kSlots, "reading weights"));
    for (Event& event : copier.done_) {
      ORCD_ASSIGN_OR_RETURN(event, CreateEvent());
    }
    return copier;
  }

  absl::Status CopyVectors(const std::vector<VectorPlacement>& vectors) {
    for (const VectorPlacement& v : vectors) {
      const size_t bytes = v.size * sizeof(float);
      // Memory that is not pinned has been read once the call returns.
      const std::vector<float> made = v.make ? v.make() : std::vector<float>();
      const float* const values = v.make ? made.data() : v.values;
      ORCD_RETURN_IF_CUDA_ERROR(
          values == nullptr
              ? cudaMemsetAsync(v.to, 0, bytes, stream_.get())
              : cudaMemcpyAsync(v.to, values, bytes, cudaMemcpyHostToDevice, stream_.get()),
          "copying weights");
    }
    return absl::OkStatus();
  }

  // Returns the bytes that it read.
  absl::StatusOr<int64_t> Copy(Chunk& chunk) {
    const int slot = next_++ % kSlots;
    ORCD_RETURN_IF_CUDA_ERROR(cudaEventSynchronize(done_[slot].get()), "copying weights");
    const Placement& p = *chunk.placement;
    const int64_t first_row = int64_t{chunk.first_tile} * p.rows_a_tile();
    const int64_t rows =
        std::min<int64_t>(p.upper.rows - first_row, int64_t{chunk.tiles} * p.rows_a_tile());
    const int64_t bytes = rows * p.upper.row_bytes;
    uint8_t* const from = pinned_.data() + slot * chunk_bytes_;
    uint8_t* const to = staging_.data() + slot * chunk_bytes_;
    int64_t read = 0;
    for (const Matrix* source : {&p.upper, p.lower ? &*p.lower : nullptr}) {
      if (source == nullptr) continue;
      ReadRows(p, *source, first_row, rows, from + read);
      if (!FitsF16(p.upper.type, from + read, bytes)) return TooLarge(*source);
      chunk.exponent = std::max(chunk.exponent, WeightExponent(p.upper.type, from + read, bytes));
      read += bytes;
    }
    ORCD_RETURN_IF_CUDA_ERROR(
        cudaMemcpyAsync(to, from, static_cast<size_t>(read), cudaMemcpyHostToDevice, stream_.get()),
        "copying weights");
    const RawRows raw = {.type = p.upper.type,
                         .data = to,
                         .lower = p.lower ? to + bytes : nullptr,
                         .rows = static_cast<int>(rows),
                         .row_bytes = p.upper.row_bytes};
    ORCD_RETURN_IF_CUDA_ERROR(
        LaunchRepack(raw, *p.tiles, p.first_tile + chunk.first_tile, stream_.get()),
        "repacking weights");
    ORCD_RETURN_IF_CUDA_ERROR(cudaEventRecord(done_[slot].get(), stream_.get()),
                              "repacking weights");
    return read;
  }

  absl::Status Finish() {
    ORCD_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream_.get()), "repacking weights");
    return absl::OkStatus();
  }

 private:
  static void ReadRows(const Placement& p, const Matrix& source, int64_t first, int64_t rows,
                       uint8_t* to) {
    if (!p.read_row) {
      std::memcpy(to, source.row(first), static_cast<size_t>(rows * source.row_bytes));
      return;
    }
    for (int64_t i = 0; i < rows; ++i) {
      p.read_row(first + i, reinterpret_cast<std::byte*>(to + i * source.row_bytes));
    }
  }

  int64_t chunk_bytes_ = 0;
  int next_ = 0;
  PinnedMemory pinned_;
  DeviceMemory staging_;
  Event done_[kSlots];
  Stream stream_;
};

absl::Status DeviceWeights::Copy(const Layout& layout, int readers, int device,
                                 LoadObserver& observer) {
  std::vector<Chunk> chunks = Chunks(layout);
  uint64_t total = 0;
  for (const Placement& p : layout.placements) {
    total += static_cast<uint64_t>(p.upper.bytes() + (p.lower ? p.lower->bytes() : 0));
  }
  observer.OnProgress(LoadStage::kPlace, 0, total);
  std::atomic<size_t> next_chunk = 0;
  std::atomic<uint64_t> copied = 0;
  std::atomic<bool> failed = false;
  const auto run = [&](int reader) -> absl::Status {
    ORCD_RETURN_IF_CUDA_ERROR(cudaSetDevice(device), "selecting the GPU");
    ORCD_ASSIGN_OR_RETURN(Copier copier, Copier::Create(ChunkBytes(layout)));
    if (reader == 0) ORCD_RETURN_IF_ERROR(copier.CopyVectors(layout.vectors));
    for (size_t i = next_chunk++; i < chunks.size() && !failed; i = next_chunk++) {
      if (observer.cancelled()) return LoadCancelled();
      ORCD_ASSIGN_OR_RETURN(const int64_t bytes, copier.Copy(chunks[i]));
      observer.OnProgress(LoadStage::kPlace, copied += static_cast<uint64_t>(bytes), total);
    }
    return copier.Finish();
  };
  std::vector<absl::Status> statuses(readers);
  const auto run_and_tell = [&](int reader) {
    statuses[reader] = run(reader);
    if (!statuses[reader].ok()) failed = true;
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < readers; ++i) threads.emplace_back(run_and_tell, i);
  run_and_tell(0);
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) ORCD_RETURN_IF_ERROR(status);
  for (const Chunk& chunk : chunks) {
    int& exponent = chunk.placement->tiles->exponent;
    exponent = std::max(exponent, chunk.exponent);
  }
  return absl::OkStatus();
}

}  // namespace orcd::cuda
