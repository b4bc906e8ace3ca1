// The model's weights in VRAM.
#ifndef ORCD_CUDA_DEVICE_WEIGHTS_H_
#define ORCD_CUDA_DEVICE_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/device_memory.h"
#include "cuda/kernels/common/tile_format.h"
#include "cuda/row_order.h"
#include "runtime/base/load_observer.h"
#include "runtime/model/predict_block.h"
#include "runtime/model/spec.h"
#include "runtime/model/weights.h"

namespace orcd::cuda {

// The experts of a layer (ExpertsSpec). Vectors are null where there are none.
struct DeviceExperts {
  // The shared expert's matrices are the last of these, not the layer's (SharedMayJoin).
  bool shared_joins = false;
  // [count, hidden] and, if the shared expert is gated, its router's row; F32 whatever the file's
  // type.
  const float* router = nullptr;
  const float* router_bias = nullptr;     // [count]
  const float* selection_bias = nullptr;  // [count]
  // The experts' matrices, one below the other, each padded to whole tiles; their exponent is the
  // largest that any of them needs. Gate and up are tiles of 8 gate rows above the same 8 up rows.
  TiledMatrix gate_up;
  TiledMatrix down;
  // [count, ffn / 8, 2, 8]: as the rows of the tiles.
  const float* gate_up_bias = nullptr;
  const float* down_bias = nullptr;  // [count, hidden]
};

// Gate and up of a shared expert that joins the others.
inline TiledMatrix SharedGateUp(const ExpertsSpec& spec, const DeviceExperts& experts) {
  TiledMatrix shared = experts.gate_up;
  shared.data += shared.bytes() / (spec.count + 1) * spec.count;
  shared.rows /= spec.count + 1;
  return shared;
}

// The delta net of a recurrent layer, without which its matrices have no rows.
struct DeviceDeltaNet {
  // qkv; gate; and beta of all value heads, then alpha of all, with zeros behind them up to whole
  // tiles. Rows are in the order of DeltaInputs (delta_net.h), whatever the file's.
  TiledMatrix inputs[3];
  const float* conv = nullptr;     // [conv, channels]
  const float* a = nullptr;        // [value_heads]
  const float* dt_bias = nullptr;  // [value_heads]
  const float* norm = nullptr;     // [head_dim]
  TiledMatrix output;              // [hidden, value_size]
};

// Views into the slab. Vectors are F32, and null where the layer has none.
struct DeviceLayer {
  const float* attn_norm = nullptr;  // [hidden]
  TiledMatrix qkv[3];                // q, k, v
  // True if the rows of q and k stand in the order of RowOfHalves, so that RoPE rotates halves of a
  // head where the model rotates neighbours, as kernels do best. Scores are the same, since queries
  // and keys change alike.
  bool halves = false;
  // [q, k, v rows], zeros for those of the three without a bias. Null if there is none, unless the
  // kernels are faster with one.
  const float* qkv_bias = nullptr;
  const float* q_norm = nullptr;  // As LayerWeights::attn_q_norm.
  const float* k_norm = nullptr;
  // The gates' rows of attn_q, of gated attention; qkv[0] has the queries' alone.
  TiledMatrix attn_gate;
  TiledMatrix attn_output;
  const float* attn_output_bias = nullptr;  // [hidden]
  const float* attn_post_norm = nullptr;    // [hidden]
  const float* attn_sinks = nullptr;        // [heads]
  const float* ffn_norm = nullptr;          // [hidden]
  // The layer's FFN or, of a layer with experts, a shared expert that is apart; no rows if it has
  // none.
  // If gate and up have one type and no bias: tiles of 8 gate rows above the same 8 up rows, 2 *
  // ffn rows with ffn padded to 8. Else: the gate alone, and `up`, which has no rows otherwise, is
  // separate.
  TiledMatrix gate_up;
  TiledMatrix up;
  bool gate_apart() const { return up.rows > 0; }
  const float* gate_up_bias = nullptr;  // [gate, up rows]
  TiledMatrix down;
  const float* down_bias = nullptr;      // [hidden]
  const float* ffn_post_norm = nullptr;  // [hidden]
  DeviceExperts experts;
  DeviceDeltaNet delta;
};

// A PredictBlock without its layer.
struct DevicePredictBlock {
  TiledMatrix projection;                 // [hidden, 2 * hidden]
  const float* embedding_norm = nullptr;  // [hidden]
  const float* hidden_norm = nullptr;     // [hidden]
  // Its own or the model's.
  const float* output_norm = nullptr;  // [hidden]
  // [vocab, hidden]; no rows if they are the model's (DeviceWeights::block_embedding,
  // block_output).
  TiledMatrix own_embedding;
  TiledMatrix own_output;
};

// A model and its block that predicts tokens, as a model with one layer more.
ModelSpec WithBlock(ModelSpec spec, const PredictBlock& block);
ModelWeights WithBlock(ModelWeights weights, const PredictBlock& block);

// Width of a DeviceLayer's FFN.
constexpr int FfnWidth(const LayerSpec& layer) {
  return layer.experts.count > 0 ? layer.experts.shared_ffn : layer.ffn;
}

// Owns the slab of weights. Immutable once made.
class DeviceWeights {
 public:
  // Weights of no model.
  DeviceWeights() = default;

  // Computes the layout alone, without memory, as if the slab began at `slab`. kUnimplemented if
  // experts of a layer, or their gate and up, are of different types, or if gated attention has a
  // bias of queries. `block`, if not null, is the last layer of the others (WithBlock).
  static absl::StatusOr<DeviceWeights> Plan(const ModelSpec& spec, const ModelWeights& weights,
                                            int readers, uint8_t* slab = nullptr,
                                            const PredictBlock* block = nullptr);

  // Reads the weights' bytes (mapped files, perhaps not yet in memory) on `readers` threads, and
  // copies and repacks them into the memory of GPU `device`. Reports LoadStage::kPlace.
  // kUnimplemented if a weight of F32 or BF16 does not fit into F16; kCancelled if the observer
  // says so.
  static absl::StatusOr<DeviceWeights> Upload(const ModelSpec& spec, const ModelWeights& weights,
                                              int readers, int device, LoadObserver& observer,
                                              const PredictBlock* block = nullptr);

  const TiledMatrix& embedding() const { return embedding_; }
  const std::vector<DeviceLayer>& layers() const { return layers_; }
  const float* output_norm() const { return output_norm_; }
  // The embedding again if the model ties them.
  const TiledMatrix& output() const { return tied_ ? embedding_ : output_; }
  // If there is a block that predicts tokens; its layer is the last of layers().
  const std::optional<DevicePredictBlock>& predict_block() const { return predict_block_; }
  const TiledMatrix& block_embedding() const {
    const TiledMatrix& own = predict_block_->own_embedding;
    return own.rows > 0 ? own : embedding();
  }
  const TiledMatrix& block_output() const {
    const TiledMatrix& own = predict_block_->own_output;
    return own.rows > 0 ? own : output();
  }
  // Formats of all matrices but those of experts, a set of FormatBit.
  uint32_t formats() const { return formats_; }
  // Number of the weights of all matrices.
  int64_t num_weights() const { return num_weights_; }
  // Bytes of VRAM for the weights, and of the staging memory that Upload uses meanwhile.
  size_t planned_bytes() const { return planned_bytes_; }
  size_t staging_bytes() const { return staging_bytes_; }

 private:
  // A matrix on its way to the tiles of `tiles` from `first_tile` on. If there is `lower`, its rows
  // lie below those of `upper` in every tile.
  struct Placement {
    Matrix upper;
    std::optional<Matrix> lower = {};
    TiledMatrix* tiles;
    int first_tile = 0;
    // If set, gives the bytes of a row of `upper`, whose data is not used.
    std::function<void(int64_t row, std::byte* to)> read_row = {};

    int rows_a_tile() const { return lower ? kTileRows / 2 : kTileRows; }
    int row_tiles() const {
      return static_cast<int>((upper.rows + rows_a_tile() - 1) / rows_a_tile());
    }
  };
  // Null values are zeros.
  struct VectorPlacement {
    const float* values;
    int64_t size;
    float* to;
    // If set, makes the values.
    std::function<std::vector<float>()> make = {};
  };

  // All matrices and vectors to be placed.
  struct Layout {
    std::vector<Placement> placements;
    std::vector<VectorPlacement> vectors;
  };

  // Consecutive tiles of a placement that are read, copied and repacked together.
  struct Chunk {
    const Placement* placement;
    // Within the placement.
    int first_tile;
    int tiles;
    // The TiledMatrix::exponent that the chunk's blocks need, known once they are read.
    int exponent = 0;
  };
  class Planner;
  class Copier;

  // Assigns every weight its place in `slab` (null: only counts bytes). The result points into this
  // object.
  absl::StatusOr<Layout> LayOut(const ModelSpec& spec, const ModelWeights& weights,
                                const PredictBlock* block, uint8_t* slab);
  // Largest number of bytes that a chunk reads.
  static int64_t ChunkBytes(const Layout& layout);
  static std::vector<Chunk> Chunks(const Layout& layout);
  static absl::Status Copy(const Layout& layout, int readers, int device, LoadObserver& observer);

  DeviceMemory slab_;
  size_t planned_bytes_ = 0;
  size_t staging_bytes_ = 0;
  TiledMatrix embedding_;
  std::vector<DeviceLayer> layers_;
  const float* output_norm_ = nullptr;
  bool tied_ = false;
  TiledMatrix output_;
  std::optional<DevicePredictBlock> predict_block_;
  uint32_t formats_ = 0;
  int64_t num_weights_ = 0;
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_DEVICE_WEIGHTS_H_
