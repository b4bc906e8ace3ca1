// A warp's ring of stages in shared memory for the kernel of matvec.cuh. The warp fills it by
// itself and nobody else reads it, so it needs no barrier but __syncwarp: one between the arrival
// of a stage and its use, since each lane waits for its own copies only, and before a stage is
// filled again, which is the same one.
#ifndef ORCD_CUDA_KERNELS_PORTABLE_MATVEC_RING_CUH_
#define ORCD_CUDA_KERNELS_PORTABLE_MATVEC_RING_CUH_

#include <algorithm>
#include <cstdint>

#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/tile_format.h"
#include "cuda/kernels/portable/matvec_params.h"

namespace orcd::cuda::portable::matvec {

// Returns when at most the thread's `newer` latest groups of copies have not arrived, or fewer. The
// number is the same for all threads, and of a few that one instruction each waits for.
__device__ __forceinline__ void AwaitAllCopiesBut(int newer) {
  if (newer >= 2) {
    if (newer >= 6) {
      AwaitCopies<6>();
    } else if (newer >= 4) {
      AwaitCopies<4>();
    } else {
      AwaitCopies<2>();
    }
  } else if (newer == 1) {
    AwaitCopies<1>();
  } else {
    AwaitCopies<0>();
  }
}

constexpr int MostStageBytes(uint32_t formats) {
  int most = 0;
  for (int i = 0; i < kFormatCount; ++i) {
    const auto format = static_cast<TileFormat>(i);
    if ((formats & FormatBit(format)) != 0) most = std::max(most, StageBytes(format));
  }
  return most;
}

// The warp's number in its block; the compiler sees that it is the same for all lanes.
__device__ __forceinline__ int WarpNumber() {
  return static_cast<int>(InRegister(threadIdx.x / 32));
}

// Returns the part that holds row tile `tile`.
__device__ __forceinline__ const Part& PartOf(const MatvecParams& args, int tile) {
  static_assert(kMaxParts == 3);
  return args.parts[(tile >= args.parts[1].first_tile ? 1 : 0) +
                    (tile >= args.parts[2].first_tile ? 1 : 0)];
}

template <uint32_t kFormats>
class Ring {
 public:
  // For tiles `tile`, `tile` + members * tile_warps, … in the block's split. `rings` is the address
  // of the block's rings. Nothing is copied yet.
  __device__ __forceinline__ Ring(const MatvecParams& args, const LaunchShape& shape,
                                  uint32_t rings, int tile)
      : args_(args), shape_(shape), rings_(rings), tile_(tile) {
    // The last stage. Warps without tiles have no ring, and copy nothing.
    current_ = rings + shape.ring_bytes - shape.all_stages_bytes + WarpNumber() * shape.stage_bytes;
    FindBytes();
  }

  // Starts the copy of the first stages: of each but the last, in order.
  __device__ __forceinline__ void Begin(int stage) {
    Fill(current_ - shape_.ring_bytes + (stage + 1) * shape_.all_stages_bytes);
  }

  // Waits for the next stage and returns it, and starts the copy of a later one in place of the
  // stage that was returned before.
  __device__ __forceinline__ const uint8_t* Next() {
    const uint32_t released = current_;
    current_ += shape_.all_stages_bytes;
    if (current_ - rings_ >= static_cast<uint32_t>(shape_.ring_bytes)) {
      current_ -= shape_.ring_bytes;
    }
    AwaitAllCopiesBut(shape_.stages - 2);
    __syncwarp();
    Fill(released);
    return static_cast<const uint8_t*>(__cvta_shared_to_generic(current_));
  }

 private:
  // Bytes that a warp copies at once.
  static constexpr int kAtOnce = 32 * 16;
  // Instructions that copy have offsets from -kMiddle to kMiddle - 1.
  static constexpr int kMiddle = 2048;
  static_assert(MostStageBytes(kFormats) <= 2 * kMiddle);

  // Finds the bytes of tile_.
  __device__ __forceinline__ void FindBytes() {
    left_ = 0;
    if (tile_ >= args_.tiles) return;
    const Part& part = PartOf(args_, tile_);
    const int begin = shape_.split_begin[blockIdx.y];
    const int end = shape_.split_begin[blockIdx.y + 1];
    from_ = part.data + int64_t{tile_ - part.first_tile} * part.tile_bytes +
            (begin >> part.unit_cols_log2) * part.unit_bytes + threadIdx.x % 32 * 16 + kMiddle;
    stage_bytes_ = part.stage_bytes;
    left_ = ((end - begin) >> part.unit_cols_log2) * part.unit_bytes;
  }
  // Copies the next bytes, if there are any, and makes a group of the copies, so that groups can be
  // counted.
  __device__ __forceinline__ void Fill(uint32_t to) {
    if (left_ > 0) {
      const int bytes = min(left_, stage_bytes_);
      const int lane_byte = static_cast<int>(threadIdx.x % 32) * 16;
#pragma unroll
      for (int i = 0; i < MostStageBytes(kFormats); i += kAtOnce) {
        if (lane_byte + i < bytes) CopyAsync(to + lane_byte + i, from_ + (i - kMiddle));
      }
      from_ += bytes;
      left_ -= bytes;
      if (left_ == 0) {
        tile_ += shape_.members * shape_.tile_warps;
        FindBytes();
      }
    }
    CommitCopies();
  }

  const MatvecParams& args_;
  const LaunchShape& shape_;
  const uint32_t rings_;
  // The tile whose bytes are copied next: from `from_` - kMiddle on, with the lane's
  // offset, `left_` of them,
  // in stages of `stage_bytes_`.
  int tile_;
  const uint8_t* from_ = nullptr;
  int left_ = 0;
  int stage_bytes_ = 0;
  // Address of the stage that was returned last.
  uint32_t current_;
};

}  // namespace orcd::cuda::portable::matvec

#endif  // ORCD_CUDA_KERNELS_PORTABLE_MATVEC_RING_CUH_
