// wgmma.mma_async, the warpgroup's tensor-core instruction, in each width N that a kernel uses.
#ifndef ORCD_CUDA_KERNELS_SM90_WGMMA_CUH_
#define ORCD_CUDA_KERNELS_SM90_WGMMA_CUH_

#include <cstdint>

#include "cuda/kernels/common/ptx.cuh"

namespace orcd::cuda {

// Inline assembly names operands by number, and the results alone are up to 128. ORCD_TEN: ten
// operand numbers; ORCD_EIGHT: the registers of eight results.
#define ORCD_TEN(tens)                                                                    \
  "%" #tens "0, %" #tens "1, %" #tens "2, %" #tens "3, %" #tens "4, %" #tens "5, %" #tens \
  "6, %" #tens "7, %" #tens "8, %" #tens "9"
#define ORCD_EIGHT(first)                                                             \
  "+f"(c[(first)]), "+f"(c[(first) + 1]), "+f"(c[(first) + 2]), "+f"(c[(first) + 3]), \
      "+f"(c[(first) + 4]), "+f"(c[(first) + 5]), "+f"(c[(first) + 6]), "+f"(c[(first) + 7])

#define ORCD_NUMBERS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define ORCD_NUMBERS_16 ORCD_TEN() ", %10, %11, %12, %13, %14, %15"
#define ORCD_NUMBERS_30 ORCD_TEN() ", " ORCD_TEN(1) ", " ORCD_TEN(2)
#define ORCD_NUMBERS_60 ORCD_NUMBERS_30 ", " ORCD_TEN(3) ", " ORCD_TEN(4) ", " ORCD_TEN(5)
#define ORCD_NUMBERS_32 ORCD_NUMBERS_30 ", %30, %31"
#define ORCD_NUMBERS_40 ORCD_NUMBERS_30 ", " ORCD_TEN(3)
#define ORCD_NUMBERS_48 ORCD_NUMBERS_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define ORCD_NUMBERS_56 \
  ORCD_NUMBERS_30 ", " ORCD_TEN(3) ", " ORCD_TEN(4) ", %50, %51, %52, %53, %54, %55"
#define ORCD_NUMBERS_64 ORCD_NUMBERS_60 ", %60, %61, %62, %63"
#define ORCD_NUMBERS_72 ORCD_NUMBERS_60 ", " ORCD_TEN(6) ", %70, %71"
#define ORCD_NUMBERS_80 ORCD_NUMBERS_60 ", " ORCD_TEN(6) ", " ORCD_TEN(7)
#define ORCD_NUMBERS_128 \
  ORCD_NUMBERS_80 ", " ORCD_TEN(8) ", " ORCD_TEN(9) ", " ORCD_TEN(10) ", " ORCD_TEN(11) ", %120, " \
  "%121, %122, %123, %124, %125, %126, %127"

#define ORCD_REGISTERS_8 ORCD_EIGHT(0)
#define ORCD_REGISTERS_16 ORCD_EIGHT(0), ORCD_EIGHT(8)
#define ORCD_REGISTERS_32 ORCD_REGISTERS_16, ORCD_EIGHT(16), ORCD_EIGHT(24)
#define ORCD_REGISTERS_40 ORCD_REGISTERS_32, ORCD_EIGHT(32)
#define ORCD_REGISTERS_48 ORCD_REGISTERS_40, ORCD_EIGHT(40)
#define ORCD_REGISTERS_56 ORCD_REGISTERS_48, ORCD_EIGHT(48)
#define ORCD_REGISTERS_64 ORCD_REGISTERS_56, ORCD_EIGHT(56)
#define ORCD_REGISTERS_72 ORCD_REGISTERS_64, ORCD_EIGHT(64)
#define ORCD_REGISTERS_80 ORCD_REGISTERS_72, ORCD_EIGHT(72)
#define ORCD_REGISTERS_128                                                            \
  ORCD_REGISTERS_80, ORCD_EIGHT(80), ORCD_EIGHT(88), ORCD_EIGHT(96), ORCD_EIGHT(104), \
      ORCD_EIGHT(112), ORCD_EIGHT(120)

// Definitions of Wgmma's functions, with `count` results; i0… are the operand numbers that follow
// those of the results.
#define ORCD_MULTIPLY(cols, count, i0, i1, i2, i3, i4)                                         \
  __device__ __forceinline__ static void Multiply(float(&c)[count], const uint32_t(&a)[4],     \
                                                  uint64_t b) {                                \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #cols                                     \
                 "k16.f32.f16.f16 {" ORCD_NUMBERS_##count "}, {%" #i0 ", %" #i1 ", %" #i2      \
                                                          ", %" #i3 "}, %" #i4 ", 1, 1, 1, 0;" \
                 : ORCD_REGISTERS_##count                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                        \
  }
#define ORCD_MULTIPLY_SHARED_WITH(Name, transposed, cols, count, i0, i1, i2)                    \
  __device__ __forceinline__ static void Name(float(&c)[count], uint64_t a, uint64_t b,         \
                                              bool add) {                                       \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #i2                                   \
                 ", 0;\n"                                                                       \
                 "wgmma.mma_async.sync.aligned.m64n" #cols                                      \
                 "k16.f32.f16.f16 {" ORCD_NUMBERS_##count "}, %" #i0 ", %" #i1                  \
                                                          ", add, 1, 1, 0, " #transposed ";\n}" \
                 : ORCD_REGISTERS_##count                                                       \
                 : "l"(a), "l"(b), "r"(add ? 1 : 0));                                           \
  }
#define ORCD_MULTIPLY_SHARED(cols, count, i0, i1, i2) \
  ORCD_MULTIPLY_SHARED_WITH(MultiplyShared, 0, cols, count, i0, i1, i2)
#define ORCD_MULTIPLY_SHARED_TRANSPOSED(cols, count, i0, i1, i2) \
  ORCD_MULTIPLY_SHARED_WITH(MultiplySharedTransposed, 1, cols, count, i0, i1, i2)
#define ORCD_MULTIPLY_TRANSPOSED(cols, count, i0, i1, i2, i3, i4, i5)                      \
  __device__ __forceinline__ static void MultiplyTransposed(                               \
      float(&c)[count], const uint32_t(&a)[4], uint64_t b, bool add) {                     \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #i5                              \
                 ", 0;\n"                                                                  \
                 "wgmma.mma_async.sync.aligned.m64n" #cols                                 \
                 "k16.f32.f16.f16 {" ORCD_NUMBERS_##count                                  \
                 "}, {%" #i0 ", %" #i1 ", %" #i2 ", %" #i3 "}, %" #i4 ", add, 1, 1, 1;\n}" \
                 : ORCD_REGISTERS_##count                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add ? 1 : 0));  \
  }

// c[64, kCols] += a[64, 16] b[16, kCols], F16 in, F32 sums; asynchronous. The four warps hold 16
// rows each of c and, in registers, of a, in the fragments of mma.m16n8k16. Operands in shared
// memory are descriptors.
//   Multiply            a in registers, b K-major (SharedMatrix)
//   MultiplyShared      a and b in shared memory (SharedMatrix); without `add`, c is overwritten
//   MultiplyTransposed  a in registers, b MN-major: 16 rows (SharedMatrix, its strides exchanged)
//   MultiplySharedTransposed  the same with a in shared memory
template <int kCols>
struct Wgmma;

template <>
struct Wgmma<16> {
  ORCD_MULTIPLY_TRANSPOSED(16, 8, 8, 9, 10, 11, 12, 13)
};

template <>
struct Wgmma<32> {
  ORCD_MULTIPLY(32, 16, 16, 17, 18, 19, 20)
  ORCD_MULTIPLY_TRANSPOSED(32, 16, 16, 17, 18, 19, 20, 21)
};

template <>
struct Wgmma<64> {
  ORCD_MULTIPLY(64, 32, 32, 33, 34, 35, 36)
  ORCD_MULTIPLY_SHARED(64, 32, 32, 33, 34)
  ORCD_MULTIPLY_SHARED_TRANSPOSED(64, 32, 32, 33, 34)
  ORCD_MULTIPLY_TRANSPOSED(64, 32, 32, 33, 34, 35, 36, 37)
};

template <>
struct Wgmma<80> {
  ORCD_MULTIPLY_TRANSPOSED(80, 40, 40, 41, 42, 43, 44, 45)
};

template <>
struct Wgmma<96> {
  ORCD_MULTIPLY_TRANSPOSED(96, 48, 48, 49, 50, 51, 52, 53)
};

template <>
struct Wgmma<112> {
  ORCD_MULTIPLY_SHARED(112, 56, 56, 57, 58)
};

template <>
struct Wgmma<128> {
  ORCD_MULTIPLY(128, 64, 64, 65, 66, 67, 68)
  ORCD_MULTIPLY_SHARED(128, 64, 64, 65, 66)
  ORCD_MULTIPLY_TRANSPOSED(128, 64, 64, 65, 66, 67, 68, 69)
};

template <>
struct Wgmma<144> {
  ORCD_MULTIPLY_SHARED(144, 72, 72, 73, 74)
};

template <>
struct Wgmma<160> {
  ORCD_MULTIPLY_SHARED(160, 80, 80, 81, 82)
};

template <>
struct Wgmma<256> {
  ORCD_MULTIPLY(256, 128, 128, 129, 130, 131, 132)
  ORCD_MULTIPLY_SHARED(256, 128, 128, 129, 130)
};

#undef ORCD_MULTIPLY
#undef ORCD_MULTIPLY_SHARED
#undef ORCD_MULTIPLY_SHARED_TRANSPOSED
#undef ORCD_MULTIPLY_SHARED_WITH
#undef ORCD_MULTIPLY_TRANSPOSED
#undef ORCD_NUMBERS_8
#undef ORCD_NUMBERS_16
#undef ORCD_NUMBERS_30
#undef ORCD_NUMBERS_60
#undef ORCD_NUMBERS_32
#undef ORCD_NUMBERS_40
#undef ORCD_NUMBERS_48
#undef ORCD_NUMBERS_56
#undef ORCD_NUMBERS_64
#undef ORCD_NUMBERS_72
#undef ORCD_NUMBERS_80
#undef ORCD_NUMBERS_128
#undef ORCD_REGISTERS_8
#undef ORCD_REGISTERS_16
#undef ORCD_REGISTERS_32
#undef ORCD_REGISTERS_40
#undef ORCD_REGISTERS_48
#undef ORCD_REGISTERS_56
#undef ORCD_REGISTERS_64
#undef ORCD_REGISTERS_72
#undef ORCD_REGISTERS_80
#undef ORCD_REGISTERS_128
#undef ORCD_TEN
#undef ORCD_EIGHT

// Descriptor of a matrix of core matrices, 8 rows of 16 bytes each, without swizzle. For K-major
// operands, whose 16 elements of K lie along the 16 bytes: `leading` is the distance from one 8 of
// them to the next, `stride` that from one 8 rows to the next; for transposed operands the other
// way round. In bytes.
__device__ __forceinline__ uint64_t SharedMatrix(uint32_t address, int leading, int stride) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) |
         static_cast<uint64_t>(leading >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32;
}

// Must precede the first wgmma, and follow writes to registers that a wgmma reads.
__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Commits the wgmma instructions so far as a group.
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Returns when at most kPending groups are still running.
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Named barrier of warpgroup `group` alone.
__device__ __forceinline__ void GroupSync(int group) { NamedBarrierSync(group + 1, 128); }
// Makes this thread's stores to shared memory visible to the async proxy, and so to wgmma.
__device__ __forceinline__ void SharedStoreFence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_SM90_WGMMA_CUH_
