// The model's weights in VRAM.
#ifndef ORCD_CUDA_DEVICE_WEIGHTS_H_
#define ORCD_CUDA_DEVICE_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/device_memory.h"
#include "cuda/kernels/tile_format.h"
#include "runtime/load_observer.h"
#include "runtime/model/config.h"
#include "runtime/model/weights.h"

namespace orcd::cuda {

// Views into the slab. Vectors are F32.
struct DeviceLayer {
  const float* attn_norm = nullptr;  // [hidden]
  TiledMatrix qkv[3];                // q, k, v
  const float* qkv_bias = nullptr;   // [q, k, v rows]
  TiledMatrix attn_output;
  const float* ffn_norm = nullptr;  // [hidden]
  // Of one type, each tile holds 8 rows of the gate above the same 8 rows of up; 2 * ffn rows, ffn
  // padded to 8. Of two types it is the gate alone, and `up`, which has no rows otherwise, is
  // apart.
  TiledMatrix gate_up;
  TiledMatrix up;
  bool gate_apart() const { return up.rows > 0; }
  TiledMatrix down;
};

// Owns the slab of weights. Immutable once made.
class DeviceWeights {
 public:
  // Of no model.
  DeviceWeights() = default;

  // The layout alone, without memory, as if that began at `slab`. kUnimplemented, naming the
  // tensor, where the GPU backend cannot hold the model.
  static absl::StatusOr<DeviceWeights> Plan(const ModelWeights& weights, int readers,
                                            uint8_t* slab = nullptr);

  // Reads the weights' bytes (mapped files, perhaps not yet in memory), copies and repacks them, on
  // `readers` threads, into the memory of GPU `device`. Reports LoadStage::kPlace; kCancelled when
  // the observer says so.
  static absl::StatusOr<DeviceWeights> Upload(const ModelWeights& weights, int readers, int device,
                                              LoadObserver& observer);

  const TiledMatrix& embedding() const { return embedding_; }
  const std::vector<DeviceLayer>& layers() const { return layers_; }
  const float* output_norm() const { return output_norm_; }
  // The embedding again where the model ties them.
  const TiledMatrix& output() const { return tied_ ? embedding_ : output_; }
  // Of all matrices, as FormatBit has them.
  uint32_t formats() const { return formats_; }
  // Of VRAM, and of what Upload takes beside it for a while.
  size_t planned_bytes() const { return planned_bytes_; }
  size_t staging_bytes() const { return staging_bytes_; }

 private:
  // A matrix on its way to `tiles`: `lower` is null, or its rows lie below those of `upper` in
  // every tile.
  struct Placement {
    const Matrix* upper;
    const Matrix* lower;
    TiledMatrix* tiles;
  };
  struct VectorPlacement {
    Vector values;
    float* to;
  };

  // All that is to be placed.
  struct Layout {
    std::vector<Placement> placements;
    std::vector<VectorPlacement> vectors;
  };

  // Some tiles of a placement, which are read, copied and repacked at a time.
  struct Chunk {
    const Placement* placement;
    int first_tile;
    int tiles;
    // What its blocks need, once they are read.
    int exponent = 0;
  };
  class Copier;

  // Lays everything out in `slab` (null: only counts). What is returned points into this object.
  absl::StatusOr<Layout> LayOut(const ModelWeights& weights, uint8_t* slab);
  // The most that a chunk reads.
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
  uint32_t formats_ = 0;
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_DEVICE_WEIGHTS_H_
