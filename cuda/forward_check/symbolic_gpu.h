// Symbolic kernel launches, in place of the kernels: they read and write what the kernels'
// headers say, so that a Forward runs on memory of expressions. Data in the wrong place,
// overwritten too early or read too soon then shows without a GPU.
//
// Launches are recorded first and performed later, so that a test can put faults between the two.
#ifndef ORCD_CUDA_FORWARD_CHECK_SYMBOLIC_GPU_H_
#define ORCD_CUDA_FORWARD_CHECK_SYMBOLIC_GPU_H_

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cuda/device_weights.h"
#include "cuda/forward.h"
#include "cuda/forward_check/symbolic_memory.h"
#include "cuda/kernels/common/attention.h"
#include "cuda/kernels/common/kernel_set.h"
#include "cuda/kernels/common/matmul.h"
#include "cuda/kernels/common/step.h"
#include "runtime/model/spec.h"

namespace orcd::cuda {

// The kernel set of sm90 with symbolic launches.
KernelSet SymbolicKernels();

// The arguments of the launches that are not one struct, or that share one.
struct MatvecArgs : MatmulArgs {};
struct GemmArgs : MatmulArgs {};
struct DequantiseArgs {
  Product product;
  int first_tile;
  int tiles;
  const uint8_t* out;
};

struct KernelLaunch {
  std::variant<EmbedArgs, NormArgs, GatherRowsArgs, RopeArgs, PrefillAttentionArgs,
               DecodeAttentionArgs, MatvecArgs, GemmArgs, SwiGluArgs, DequantiseArgs>
      args;
  cudaStream_t stream;
};

// One instance at a time, on one thread: launches go to the latest. Addresses of the step's tables
// and of the cache are checked, and not what lies there.
class SymbolicGpu {
 public:
  // Weights and buffers lie at addresses that are never dereferenced. References must outlive this.
  SymbolicGpu(const ModelSpec& spec, const DeviceWeights& weights, const ForwardBuffers& buffers,
              const KvCacheView& kv);
  ~SymbolicGpu();
  SymbolicGpu(const SymbolicGpu&) = delete;
  SymbolicGpu& operator=(const SymbolicGpu&) = delete;

  // Begins a step with new tokens, and without keys and values yet.
  void BeginStep(const StepTables& tables, const StepShape& shape, cudaStream_t stream);
  void Record(const KernelLaunch& launch) { recorded_.push_back(launch); }
  // The launches since the last Run.
  std::vector<KernelLaunch>& recorded() { return recorded_; }
  // Performs the recorded launches in order, up to the first error.
  void Run();

  const Symbols& symbols() const { return symbols_; }
  // The expression of the model's matrix or vector at `data`.
  Symbol WeightAt(const void* data) const;
  // The expression of the layer's keys and values in the cache; -1 if there are none.
  Symbol keys_and_values(int layer) const { return keys_and_values_[layer]; }
  // The product that rows [0, rows) of the logits hold; -1, and a problem, if they do not hold one
  // product.
  Symbol Logits(int rows);
  // The first error of the step; empty if there is none.
  const std::string& problem() const { return problem_; }

  // The expressions that launches make. Tests build the expected results with them.
  Symbol Embedded(Symbol embedding) {
    return symbols_.Make(absl::StrCat("tokens of step ", step_), {embedding});
  }
  Symbol Product(Symbol weights, Symbol x) { return symbols_.Make("product", {weights, x}); }
  Symbol Add(Symbol residual, Symbol product, float scale);
  Symbol Normed(Symbol residual, Symbol weight) {
    return symbols_.Make("norm", {residual, weight});
  }
  Symbol Rows(Symbol of) { return symbols_.Make("rows", {of}); }
  Symbol Gate(Symbol product) { return symbols_.Make("gate", {product}); }
  Symbol Gate(Symbol gate, Symbol up) { return symbols_.Make("gate apart", {gate, up}); }
  Symbol Qkv(Symbol q, Symbol k, Symbol v, Symbol bias) {
    return symbols_.Make("qkv", {q, k, v, bias});
  }
  Symbol QuerySplit(int layer) { return symbols_.Make(absl::StrCat("parts of queries ", layer)); }
  Symbol Attention(Symbol qkv) { return symbols_.Make("attention", {qkv}); }

 private:
  class Launch;
  // A matrix of the model. Every product of it has the same split-K factor.
  struct Placed {
    int row_tiles;
    int splits;
    int exponent;
  };

  void Perform(const EmbedArgs& args);
  void Perform(const NormArgs& args);
  void Perform(const GatherRowsArgs& args);
  void Perform(const RopeArgs& args);
  void Perform(const PrefillAttentionArgs& args);
  void Perform(const DecodeAttentionArgs& args);
  void Perform(const MatvecArgs& args);
  void Perform(const GemmArgs& args);
  void Perform(const SwiGluArgs& args);
  void Perform(const DequantiseArgs& args);

  void PlaceMatrix(const std::string& name, const TiledMatrix& matrix, int splits = 1);
  void PlaceVector(const std::string& name, const float* data, int size);
  void Complain(const std::string& what);
  // Writes the result of a product of either kernel with input `x`.
  void Multiply(Launch& launch, const MatmulArgs& args, Symbol x);
  // Writes queries, keys and values as the RoPE kernel and the RoPE epilogue do.
  void WriteQkv(Launch& launch, const RopeArgs& args, Symbol qkv);

  const ModelSpec& spec_;
  const LayerSpec& layer_;
  const ForwardBuffers& buffers_;
  const KvCacheView kv_;
  StepTables tables_;
  StepShape shape_;
  cudaStream_t stream_ = nullptr;
  // Rows that the current layer computes: the step's tokens, and logit rows once they are gathered.
  int rows_ = 0;
  std::vector<KernelLaunch> recorded_;
  Symbols symbols_;
  SymbolicMemory memory_;
  // The model's matrices and vectors by address, and what is known of each matrix.
  std::map<uintptr_t, Symbol> weights_;
  std::map<Symbol, Placed> matrices_;
  uintptr_t weights_end_ = 0;
  std::vector<Symbol> keys_and_values_;
  // Products with a RoPE epilogue by their first row, until those of q, k and v have all run.
  std::map<int, Symbol> qkv_products_;
  int step_ = 0;
  int scratches_ = 0;
  std::string problem_;
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_FORWARD_CHECK_SYMBOLIC_GPU_H_
