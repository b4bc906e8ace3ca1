// Wrappers of PTX instructions that CUDA C++ has no functions for, one function each. Names and
// semantics are those of the PTX ISA.
#ifndef ORCD_CUDA_KERNELS_COMMON_PTX_CUH_
#define ORCD_CUDA_KERNELS_COMMON_PTX_CUH_

#include <cuda_fp16.h>

#include <cstdint>

namespace orcd::cuda {

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// --- Programmatic dependent launch: a kernel may begin while the one before it ends. -------------

// Both do nothing in code for GPUs before compute capability 9.0, whose kernels never overlap
// (LaunchesOverlap).
//
// Lets the next kernel in the stream begin.
__device__ __forceinline__ void LaunchDependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// Returns when the kernels before have ended and their writes can be read.
__device__ __forceinline__ void WaitForDependency() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Prefetches a cache line, before WaitForDependency too, where it helps if no kernel before still
// writes it. (A load would not do: the assembler moves it behind.)
__device__ __forceinline__ void PrefetchL2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}
// Loads a value that no kernel before may write, before WaitForDependency.
__device__ __forceinline__ int LoadEarly(const int32_t* global) {
  int value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(global) : "memory");
  return value;
}
__device__ __forceinline__ float LoadEarly(const float* global) {
  return __int_as_float(LoadEarly(reinterpret_cast<const int32_t*>(global)));
}

// *global += value by `red`, without waiting; subnormal numbers count as zeros.
__device__ __forceinline__ void AddInMemory(float4* global, float4 value) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(global), "f"(value.x),
               "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
}

// A thread that has seen the stored value by LoadAcquire also sees everything that the storing
// thread wrote before StoreRelease, and, if a fence precedes it, what other threads of its block
// wrote.
__device__ __forceinline__ void StoreRelease(int32_t* global, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(global), "r"(value) : "memory");
}
__device__ __forceinline__ int LoadAcquire(const int32_t* global) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(global) : "memory");
  return value;
}

// --- Named barriers of a block; barrier 0 is that of __syncthreads(). ----------------------------

// Returns when `threads` threads, whole warps, have arrived here or at NamedBarrierArrive.
__device__ __forceinline__ void NamedBarrierSync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// Arrives at the barrier without waiting.
__device__ __forceinline__ void NamedBarrierArrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// True in the one thread of a whole warp that acts for the warp.
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
// Makes initialised barriers visible to the copy engine; a __syncthreads() must follow.
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
// Returns when the phase of parity `parity` has completed.
__device__ __forceinline__ void BarrierWait(uint32_t barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Lanes of a warp that arrive at a barrier when the warp has stopped reading a buffer, and that
// wait at a barrier before the warp writes a buffer.
#ifdef ORCD_EVERY_LANE_ARRIVES
// racecheck considers only the arriving lane's own reads finished at an arrival, and considers only
// the waiting lane to know of it; so every lane arrives and waits in the build for racecheck.
inline constexpr int kArrivalsAWarp = 32;
// Nor does it follow a barrier at which a producer waits for its own copy, to limit its pace.
inline constexpr bool kPaces = false;
#else
inline constexpr int kArrivalsAWarp = 1;
inline constexpr bool kPaces = true;
#endif
// BarrierWait for a whole warp.
__device__ __forceinline__ void WarpBarrierWait(uint32_t barrier, int parity) {
  if (threadIdx.x % 32 < kArrivalsAWarp) BarrierWait(barrier, parity);
  __syncwarp();
}
// Arrives for a whole warp. The warp's loads from a stage that is then refilled must have
// completed: an arrival does not wait for loads, and overtakes them (seen: data that was copied a
// microsecond later was read).
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
// Barrier of all threads of all blocks of the cluster; warps need not be converged. Makes no writes
// visible except those that a fence covers.
__device__ __forceinline__ void ClusterSync() {
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory");
}
// Arrives at the barrier of the same address in block `rank`. (With .release.cluster the arrival
// would fence all memory, which takes a microsecond.)
__device__ __forceinline__ void BarrierArriveAt(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// --- Asynchronous copies of a thread's own (cp.async), past the L1 cache. ------------------------

// Copies 16 bytes, aligned to 16, into shared memory. Without `valid` it reads nothing and writes
// zeros.
__device__ __forceinline__ void CopyAsync(uint32_t shared, const void* global, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
// Makes a group of the copies that the thread has started since its last group.
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Returns when at most the thread's kGroups latest groups have not arrived. Other threads' copies
// are seen behind a barrier.
template <int kGroups>
__device__ __forceinline__ void AwaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
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

// L2 eviction policy of a copy.
struct CachePolicy {
  uint64_t bits;

  // The normal policy; or, if `read_once`, evict-first, so that the data leaves the L2 cache before
  // other data.
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

// Multicast bulk copy to the same address in each block of a cluster of kBlocks; the barrier of
// each block counts its bytes.
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

// Loads a word of shared memory that no longer changes, so that the compiler may move the load.
__device__ __forceinline__ uint32_t LoadFixedWord(uint32_t address) {
  uint32_t word;
  asm("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address));
  return word;
}

// The same for 16 bits.
__device__ __forceinline__ uint32_t LoadFixedHalf(uint32_t address) {
  uint32_t half;
  asm("ld.shared.u16 %0, [%1];" : "=r"(half) : "r"(address));
  return half;
}
// Loads two words of shared memory.
__device__ __forceinline__ void LoadTwoWords(uint32_t address, uint32_t* words) {
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(address));
}

// --- Tensor cores. -------------------------------------------------------------------------------

// ldmatrix: four matrices of 8 rows of 16 bytes, one register each. Lane 8m + i passes the address
// of row i of matrix m in shared memory. Lane 4g + t gets columns 2t and 2t + 1 of row g, or of the
// transposed matrix.
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

// stmatrix: stores four transposed matrices to shared memory.
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

// log2(e), so that Exp2(x * kLog2E) is e^x.
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

// Base-2 logarithm of a power of two.
__device__ __forceinline__ int Log2(int power) { return __ffs(power) - 1; }
// (value & mask) | bits.
__device__ __forceinline__ uint32_t AndOr(uint32_t value, uint32_t mask, uint32_t bits) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(value), "r"(mask), "r"(bits));
  return result;
}
// __byte_perm without its mask: no nibble of `order` is above 7.
__device__ __forceinline__ uint32_t Permute(uint32_t low, uint32_t high, uint32_t order) {
  uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(order));
  return result;
}
// The same value, which the assembler then keeps in a register: it moves a constant to one again
// for every use. All lanes of the warp call this.
__device__ __forceinline__ uint32_t InRegister(uint32_t constant) {
  return __shfl_sync(~0u, constant, 0);
}
__device__ __forceinline__ __half2 AsHalf2(uint32_t bits) {
  return *reinterpret_cast<__half2*>(&bits);
}
__device__ __forceinline__ uint32_t AsBits(__half2 value) {
  return *reinterpret_cast<uint32_t*>(&value);
}
// A half2 whose halves both have the bits `half`.
__device__ __forceinline__ __half2 Half2OfBits(uint16_t half) {
  return AsHalf2(uint32_t{half} * 0x10001u);
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_KERNELS_COMMON_PTX_CUH_
