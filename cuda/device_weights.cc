#include "cuda/device_weights.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cuda/kernels/repack.h"
#include "cuda/status.h"
#include "runtime/error.h"
#include "runtime/model/load_cancelled.h"

namespace orcd::cuda {
namespace {

// What is read, copied and repacked at a time, and how many of these are on their way at once.
constexpr int64_t kChunkBytes = 8 << 20;
constexpr int kChunks = 4;

}  // namespace

absl::Status DeviceWeights::LayOut(const ModelWeights& weights, uint8_t* slab) {
  Carver carver(slab);
  placements_.clear();
  vectors_.clear();
  layers_.clear();
  const auto matrix = [&](const Matrix& upper, const Matrix* lower = nullptr) {
    TiledMatrix tiles;
    tiles.format = FormatFor(upper.type);
    tiles.rows = static_cast<int>(lower == nullptr ? upper.rows : (upper.rows + 7) / 8 * kTileRows);
    tiles.cols = static_cast<int>(upper.cols);
    tiles.data = carver.Take<uint8_t>(tiles.bytes());
    placements_.push_back({&upper, lower, tiles});
    return tiles;
  };
  const auto vector = [&](std::initializer_list<Vector> parts) {
    int64_t size = 0;
    for (const Vector& part : parts) size += static_cast<int64_t>(part.size());
    float* const begin = carver.Take<float>(size);
    float* to = begin;
    for (const Vector& part : parts) {
      vectors_.push_back({part, to});
      if (slab != nullptr) to += part.size();
    }
    return begin;
  };

  embedding_ = matrix(weights.token_embd);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& layer = weights.layers[i];
    if (FormatFor(layer.ffn_gate.type) != FormatFor(layer.ffn_up.type)) {
      return MakeError(absl::StatusCode::kUnimplemented,
                       absl::StrCat("blk.", i, ".ffn_gate and blk.", i,
                                    ".ffn_up have different types, which the GPU backend does not "
                                    "support; use --backend cpu or quantise both alike"),
                       {.reason = "UNSUPPORTED_MODEL"});
    }
    layers_.push_back(
        {.attn_norm = vector({layer.attn_norm}),
         .qkv = {matrix(layer.attn_q), matrix(layer.attn_k), matrix(layer.attn_v)},
         .qkv_bias = vector({layer.attn_q_bias, layer.attn_k_bias, layer.attn_v_bias}),
         .attn_output = matrix(layer.attn_output),
         .ffn_norm = vector({layer.ffn_norm}),
         .gate_up = matrix(layer.ffn_gate, &layer.ffn_up),
         .down = matrix(layer.ffn_down)});
  }
  output_norm_ = vector({weights.output_norm});
  output_ = weights.tied ? embedding_ : matrix(weights.output);
  planned_bytes_ = carver.taken();
  return absl::OkStatus();
}

absl::StatusOr<DeviceWeights> DeviceWeights::Plan(const ModelWeights& weights) {
  DeviceWeights plan;
  ORCD_RETURN_IF_ERROR(plan.LayOut(weights, nullptr));
  return plan;
}

absl::StatusOr<DeviceWeights> DeviceWeights::Upload(const ModelWeights& weights, int threads,
                                                    LoadObserver& observer) {
  ORCD_ASSIGN_OR_RETURN(DeviceWeights result, Plan(weights));
  ORCD_ASSIGN_OR_RETURN(result.slab_, DeviceMemory::Allocate(result.planned_bytes_, "weights"));
  ORCD_RETURN_IF_ERROR(result.LayOut(weights, result.slab_.data()));
  ORCD_RETURN_IF_ERROR(result.Copy(threads, observer));
  result.placements_ = {};
  result.vectors_ = {};
  return result;
}

int64_t DeviceWeights::ChunkBytes() const {
  int64_t largest = kChunkBytes;
  // A chunk is whole tiles.
  for (const Placement& p : placements_) {
    largest = std::max(largest, p.upper->row_bytes * kTileRows);
  }
  return largest;
}

size_t DeviceWeights::staging_bytes() const { return ChunkBytes() * kChunks; }

absl::Status DeviceWeights::Copy(int threads, LoadObserver& observer) {
  uint64_t total = 0;
  const int64_t largest = ChunkBytes();
  for (const Placement& p : placements_) {
    total += static_cast<uint64_t>(p.upper->bytes() + (p.lower != nullptr ? p.lower->bytes() : 0));
  }
  ORCD_ASSIGN_OR_RETURN(const Stream stream, CreateStream());
  ORCD_ASSIGN_OR_RETURN(const PinnedMemory pinned,
                        PinnedMemory::Allocate(largest * kChunks, "reading weights"));
  ORCD_ASSIGN_OR_RETURN(const DeviceMemory staging,
                        DeviceMemory::Allocate(largest * kChunks, "reading weights"));
  Event done[kChunks];
  for (Event& event : done) {
    ORCD_ASSIGN_OR_RETURN(event, CreateEvent());
  }

  for (const VectorPlacement& v : vectors_) {
    ORCD_RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(v.to, v.values.data(), v.values.size_bytes(),
                                              cudaMemcpyHostToDevice, stream.get()),
                              "copying weights");
  }

  uint64_t copied = 0;
  int next = 0;
  observer.OnProgress(LoadStage::kPlace, 0, total);
  for (const Placement& p : placements_) {
    const int sources = p.lower == nullptr ? 1 : 2;
    const int rows_a_tile = kTileRows / sources;
    const int64_t tile_bytes = p.upper->row_bytes * kTileRows;
    const int tiles_a_chunk = static_cast<int>(std::max<int64_t>(1, kChunkBytes / tile_bytes));
    for (int tile = 0; tile < p.tiles.row_tiles(); tile += tiles_a_chunk) {
      if (observer.cancelled()) return LoadCancelled();
      const int slot = next++ % kChunks;
      ORCD_RETURN_IF_CUDA_ERROR(cudaEventSynchronize(done[slot].get()), "copying weights");
      const int64_t first_row = int64_t{tile} * rows_a_tile;
      const int64_t rows =
          std::min<int64_t>(p.upper->rows - first_row, int64_t{tiles_a_chunk} * rows_a_tile);
      const int64_t bytes = rows * p.upper->row_bytes;
      uint8_t* const from = pinned.data() + slot * largest;
      uint8_t* const to = staging.data() + slot * largest;
      // Pieces of the chunk, one a thread: reading may mean waiting for the disk.
      const auto read = [&](int thread) {
        for (int s = 0; s < sources; ++s) {
          const std::byte* const source = (s == 0 ? p.upper : p.lower)->row(first_row);
          const int64_t begin = bytes * thread / threads;
          const int64_t end = bytes * (thread + 1) / threads;
          std::memcpy(from + s * bytes + begin, source + begin, static_cast<size_t>(end - begin));
        }
      };
      std::vector<std::thread> readers;
      for (int i = 1; i < threads; ++i) readers.emplace_back(read, i);
      read(0);
      for (std::thread& reader : readers) reader.join();
      ORCD_RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(to, from, static_cast<size_t>(sources * bytes),
                                                cudaMemcpyHostToDevice, stream.get()),
                                "copying weights");
      const RawRows raw = {.type = p.upper->type,
                           .data = to,
                           .lower = p.lower == nullptr ? nullptr : to + bytes,
                           .rows = static_cast<int>(rows),
                           .row_bytes = p.upper->row_bytes};
      ORCD_RETURN_IF_CUDA_ERROR(LaunchRepack(raw, p.tiles, tile, stream.get()),
                                "repacking weights");
      ORCD_RETURN_IF_CUDA_ERROR(cudaEventRecord(done[slot].get(), stream.get()),
                                "repacking weights");
      copied += static_cast<uint64_t>(sources * bytes);
      observer.OnProgress(LoadStage::kPlace, copied, total);
    }
  }
  ORCD_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream.get()), "repacking weights");
  return absl::OkStatus();
}

}  // namespace orcd::cuda
