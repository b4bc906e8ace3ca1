// The kernels' launches as what their headers say that they read and write: linked in place of the
// kernels, they run a Forward on memory of expressions. What is in the wrong place, was overwritten
// too early or is read before it is there then shows without a GPU.
#ifndef ORCD_CUDA_SYMBOLIC_SYMBOLIC_GPU_H_
#define ORCD_CUDA_SYMBOLIC_SYMBOLIC_GPU_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cuda/device_weights.h"
#include "cuda/forward.h"
#include "cuda/kernels/matmul.h"
#include "cuda/kernels/step.h"
#include "cuda/symbolic/symbolic_memory.h"
#include "runtime/model/config.h"

namespace orcd::cuda {

// One at a time, and one thread: the launches are those of the latest. Not followed are the step's
// tables and what the blocks of decode attention leave each other.
class SymbolicGpu {
 public:
  // Weights and buffers lie at addresses that are nobody's. References must outlive this.
  SymbolicGpu(const ModelConfig& config, const DeviceWeights& weights,
              const ForwardBuffers& buffers);
  ~SymbolicGpu();
  SymbolicGpu(const SymbolicGpu&) = delete;
  SymbolicGpu& operator=(const SymbolicGpu&) = delete;

  // What comes next has tokens of its own, and no keys and values yet.
  void BeginStep();

  const Symbols& symbols() const { return symbols_; }
  // Of a matrix or a vector of the model.
  Symbol WeightAt(const void* data) const;
  // What stands in the cache as keys and values; -1: nothing.
  Symbol keys_and_values(int layer) const { return keys_and_values_[layer]; }
  // What all of `rows` rows of logits hold; -1, and a problem, where they do not hold one product.
  Symbol Logits(int rows);
  // The first thing that was wrong.
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
  void Gate(const GateArgs& args);
  void UnpackToF16(const MatmulArgs& product, int first_tile, int tiles, const uint8_t* out);

  // The expressions that launches make, for who says what is expected, too.
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
  Symbol QueryParts(int layer) { return symbols_.Make(absl::StrCat("query parts ", layer)); }
  Symbol Attention(Symbol qkv) { return symbols_.Make("attention", {qkv}); }

 private:
  class Launch;

  void PlaceMatrix(const std::string& name, const TiledMatrix& matrix);
  void PlaceVector(const std::string& name, const float* data, int size);
  void Complain(const std::string& what);
  // What a product of any kernel does once its input is known; `segments` are left apart, or one
  // sum.
  void Multiply(Launch& launch, const MatmulArgs& args, Symbol x, int segments);
  // What RoPE leaves, of whichever kernel.
  void WriteQkv(Launch& launch, const RopeArgs& args, Symbol qkv);

  const ModelConfig& config_;
  const ForwardBuffers& buffers_;
  Symbols symbols_;
  SymbolicMemory memory_;
  // By address: the model's matrices and vectors, and how many row tiles a matrix has.
  std::map<uintptr_t, Symbol> weights_;
  std::map<Symbol, int> row_tiles_;
  uintptr_t weights_end_ = 0;
  std::vector<Symbol> keys_and_values_;
  // Products that make queries, keys and values themselves, by their first row, until all have.
  std::map<int, Symbol> roped_;
  int step_ = 0;
  int launches_ = 0;
  std::string problem_;
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_SYMBOLIC_SYMBOLIC_GPU_H_
