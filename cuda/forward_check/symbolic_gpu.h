// Symbolic kernel launches, in place of the kernels: they read and write what the kernels'
// headers say, so that a Forward runs on memory of expressions. Data in the wrong place,
// overwritten too early or read too soon then shows without a GPU.
#ifndef ORCD_CUDA_FORWARD_CHECK_SYMBOLIC_GPU_H_
#define ORCD_CUDA_FORWARD_CHECK_SYMBOLIC_GPU_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cuda/device_weights.h"
#include "cuda/forward.h"
#include "cuda/forward_check/symbolic_memory.h"
#include "cuda/kernels/common/kernel_set.h"
#include "cuda/kernels/common/step.h"
#include "runtime/model/spec.h"

namespace orcd::cuda {

// The kernel set of sm90 with symbolic launches.
KernelSet SymbolicKernels();

// One instance at a time, on one thread: launches go to the latest. The step's tables and the
// partials of split decode attention are not modelled.
class SymbolicGpu {
 public:
  // Weights and buffers lie at addresses that are never dereferenced. References must outlive this.
  SymbolicGpu(const ModelSpec& spec, const DeviceWeights& weights, const ForwardBuffers& buffers);
  ~SymbolicGpu();
  SymbolicGpu(const SymbolicGpu&) = delete;
  SymbolicGpu& operator=(const SymbolicGpu&) = delete;

  // Begins a step with new tokens, and without keys and values yet.
  void BeginStep();

  const Symbols& symbols() const { return symbols_; }
  // The expression of the model's matrix or vector at `data`.
  Symbol WeightAt(const void* data) const;
  // The expression of the layer's keys and values in the cache; -1 if there are none.
  Symbol keys_and_values(int layer) const { return keys_and_values_[layer]; }
  // The product that rows [0, rows) of the logits hold; -1, and a problem, if they do not hold one
  // product.
  Symbol Logits(int rows);
  // The first error that was found; empty if there is none.
  const std::string& problem() const { return problem_; }

  // The launches.
  void Embed(const EmbedArgs& args);
  void Norm(const NormArgs& args);
  void GatherRows(const GatherRowsArgs& args);
  void Rope(const RopeArgs& args);
  void PrefillAttention(const PrefillAttentionArgs& args);
  void DecodeAttention(const DecodeAttentionArgs& args);
  void Matvec(const MatmulArgs& args);
  void Gemm(const MatmulArgs& args);
  void Gate(const SwiGluArgs& args);
  void Dequantise(const cuda::Product& product, int first_tile, int tiles, const uint8_t* out);

  // The expressions that launches make. Tests build the expected results with them.
  Symbol Embedded() { return symbols_.Make(absl::StrCat("tokens of step ", step_)); }
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
  Symbol QuerySplit(int layer) { return symbols_.Make(absl::StrCat("query parts ", layer)); }
  Symbol Attention(Symbol qkv) { return symbols_.Make("attention", {qkv}); }

 private:
  class Launch;

  void PlaceMatrix(const std::string& name, const TiledMatrix& matrix);
  void PlaceVector(const std::string& name, const float* data, int size);
  void Complain(const std::string& what);
  // Writes the result of a product of either kernel with input `x`.
  void Multiply(Launch& launch, const MatmulArgs& args, Symbol x);
  // Writes queries, keys and values as the RoPE kernel and the RoPE epilogue do.
  void WriteQkv(Launch& launch, const RopeArgs& args, Symbol qkv);

  const ModelSpec& spec_;
  const LayerSpec& layer_;
  const ForwardBuffers& buffers_;
  Symbols symbols_;
  SymbolicMemory memory_;
  // The model's matrices and vectors by address, and the number of row tiles of each matrix.
  std::map<uintptr_t, Symbol> weights_;
  std::map<Symbol, int> row_tiles_;
  uintptr_t weights_end_ = 0;
  std::vector<Symbol> keys_and_values_;
  // Products with a RoPE epilogue by their first row, until those of q, k and v have all run.
  std::map<int, Symbol> roped_;
  int step_ = 0;
  int launches_ = 0;
  std::string problem_;
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_FORWARD_CHECK_SYMBOLIC_GPU_H_
