// The matrix product: y = W x + b for every activation row of a step.
#ifndef ORCD_RUNTIME_CPU_MATMUL_H_
#define ORCD_RUNTIME_CPU_MATMUL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/model/weights.h"

namespace orcd::cpu {

// One of several products with the same activations.
struct Product {
  const Matrix* weights;
  // [weights->rows], or empty.
  Vector bias;
  // [x_rows, weights->rows], overwritten.
  float* y;
};

// Dequantises a tile of weight rows at a time, once for all activation rows, and multiplies in F32.
// A sum runs over panels of kPanelCols columns. Within a panel it runs over 16 lanes (column modulo
// 16) in order of the column, and the lanes are added as a tree. Panels are added in order, then
// the bias. So a sum is the same for any number of rows, tiles and threads. Owns its tiles; one Run
// at a time.
class MatMul {
 public:
  // Both must outlive this.
  MatMul(const KernelTable& kernels, ThreadPool& pool);

  // `x` is [x_rows, cols], where every product's matrix has `cols` columns.
  void Run(std::span<const Product> products, const float* x, int64_t x_rows);

  uint64_t workspace_bytes() const { return tiles_.size() * sizeof(float); }

 private:
  void ComputeRows(const Product& product, int64_t first_row, int64_t rows, const float* x,
                   int64_t x_rows, float* tile) const;

  const KernelTable& kernels_;
  ThreadPool& pool_;
  // One tile for each thread.
  std::vector<float> tiles_;
};

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_MATMUL_H_
