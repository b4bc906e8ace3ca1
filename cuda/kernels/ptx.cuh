// The PTX instructions that CUDA C++ has no words for, one function each. Names and meaning are
// those of the PTX ISA.
#ifndef ORCD_CUDA_KERNELS_PTX_CUH_
#define ORCD_CUDA_KERNELS_PTX_CUH_

#include <cuda_fp16.h>

#include <cstdint>

namespace orcd::cuda {

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// --- Programmatic dependent launch: a kernel may begin while the one before it ends. -------------

// Lets the next kernel in the stream begin.
__device__ __forceinline__ void LaunchDependents() {
  asm volatile("griddepcontrol.launch_dependents;");
}
// Returns when the kernels before have ended and what they wrote can be read.
__device__ __forceinline__ void WaitForDependency() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Asks for the cache line of something that no kernel before may write. (A load would not do: the
// assembler moves it behind WaitForDependency.)
__device__ __forceinline__ void PrefetchL2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}
// Loads what no kernel before may write, before WaitForDependency.
__device__ __forceinline__ int LoadEarly(const int32_t* global) {
  int value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(global) : "memory");
  return value;
}

// *global += value, without waiting; subnormal numbers count as zeros.
__device__ __forceinline__ void AddInMemory(float4* global, float4 value) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(global), "f"(value.x),
               "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
}

// What a thread wrote before StoreRelease, and before a fence what others of its block did, is
// there for who has seen its value by LoadAcquire.
__device__ __forceinline__ void StoreRelease(int32_t* global, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(global), "r"(value) : "memory");
}
__device__ __forceinline__ int LoadAcquire(const int32_t* global) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(global) : "memory");
  return value;
}

// --- A block's numbered barriers; 0 is that of __syncthreads(). ----------------------------------

// Returns when `threads` threads, whole warps, have been here or at NamedBarrierArrive.
__device__ __forceinline__ void NamedBarrierSync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// The same without waiting.
__device__ __forceinline__ void NamedBarrierArrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Whether this is the thread that does what one thread of a whole warp is to do.
__device__ __forceinline__ bool ElectThread() {
  uint32_t elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xFFFFFFFF;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(elected));
  return elected != 0;
}

// --- mbarrier, in shared memory. -----------------------------------------------------------------

__device__ __forceinline__ void BarrierInit(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
// Makes initialised barriers visible to the copy engine; a __syncthreads() follows.
__device__ __forceinline__ void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void BarrierArrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void BarrierExpect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Returns when the phase of parity `parity` is over.
__device__ __forceinline__ void BarrierWait(uint32_t barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Lanes of a warp that arrive where it says that it reads something no more, and that wait where it
// waits for what it will write.
#ifdef ORCD_EVERY_LANE_ARRIVES
// racecheck takes what a lane has read for finished where that lane arrives, and no other, and has
// it known by the lane that waits alone.
inline constexpr int kArrivalsAWarp = 32;
#else
inline constexpr int kArrivalsAWarp = 1;
#endif
// BarrierWait of a whole warp.
__device__ __forceinline__ void WarpBarrierWait(uint32_t barrier, int parity) {
  if (threadIdx.x % 32 < kArrivalsAWarp) BarrierWait(barrier, parity);
  __syncwarp();
}
// A whole warp. What it has loaded of a place that is then filled again must be there: to arrive
// does not wait for loads, and overtakes them (seen: what was copied a microsecond later was read).
__device__ __forceinline__ void WarpArrive(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 < kArrivalsAWarp) BarrierArrive(barrier);
}

// --- Clusters of blocks. -------------------------------------------------------------------------

__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All threads of all its blocks; warps need not be whole. Of what they wrote it makes nothing
// visible but what a fence has.
__device__ __forceinline__ void ClusterSync() {
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory");
}
// At the barrier of the same place in block `rank`. (With .release.cluster it would be a fence for
// all memory, a microsecond long.)
__device__ __forceinline__ void BarrierArriveAt(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// --- Bulk copies: `bytes` (a multiple of 16) into shared memory, counted by a barrier. -----------

__device__ __forceinline__ void BulkCopy(uint32_t shared, const void* global, int bytes,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}

// What the L2 cache does with what is copied.
struct CachePolicy {
  uint64_t bits;

  // As without a policy; or, of what is `read_once`, gives it up first, before what others want.
  __device__ __forceinline__ static CachePolicy Of(bool read_once) {
    CachePolicy normal;
    CachePolicy first;
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(normal.bits));
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first.bits));
    return read_once ? first : normal;
  }
};

__device__ __forceinline__ void BulkCopy(uint32_t shared, const void* global, int bytes,
                                         uint32_t barrier, CachePolicy policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier), "l"(policy.bits)
      : "memory");
}

// The same to the same place in each block of a cluster of kBlocks, counted there.
template <int kBlocks>
__device__ __forceinline__ void BulkCopyToCluster(uint32_t shared, const void* global, int bytes,
                                                  uint32_t barrier, CachePolicy policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1], %2, [%3], %4, %5;" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier), "h"(static_cast<uint16_t>((1 << kBlocks) - 1)),
      "l"(policy.bits)
      : "memory");
}

// --- Tensor cores. -------------------------------------------------------------------------------

// Four matrices of 8 rows of 16 bytes, a register each; lane 8m + i has the address of row i of
// matrix m in shared memory. Lane 4g + t gets columns 2t and 2t + 1 of row g, or of the transposed
// matrix.
__device__ __forceinline__ void LoadMatrices(uint32_t address, uint32_t* r) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ __forceinline__ void LoadMatricesTransposed(uint32_t address, uint32_t* r) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// The other way: four matrices to shared memory.
__device__ __forceinline__ void StoreMatricesTransposed(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// c[16, 8] += a[16, 16] b[16, 8], F16 in, F32 sums. Fragments as the PTX ISA lays them out: lane
// 4g + t holds rows g and g + 8 of a and c, column g of b.
__device__ __forceinline__ void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// --- Approximations, to two units in the last place; subnormal numbers count as zeros. -----------

// Of e, so that Exp2(x * kLog2E) is e^x.
inline constexpr float kLog2E = 1.44269504f;
__device__ __forceinline__ float Exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ float Reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// --- Bits. ---------------------------------------------------------------------------------------

// Of a power of two.
__device__ __forceinline__ int Log2(int power) { return __ffs(power) - 1; }
// (value & mask) | bits.
__device__ __forceinline__ uint32_t AndOr(uint32_t value, uint32_t mask, uint32_t bits) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(value), "r"(mask), "r"(bits));
  return result;
}
__device__ __forceinline__ __half2 AsHalf2(uint32_t bits) {
  return *reinterpret_cast<__half2*>(&bits);
}
__device__ __forceinline__ uint32_t AsBits(__half2 value) {
  return *reinterpret_cast<uint32_t*>(&value);
}
// Both halves have the bits `half`.
__device__ __forceinline__ __half2 Half2OfBits(uint16_t half) {
  return AsHalf2(uint32_t{half} * 0x10001u);
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_PTX_CUH_
