// The matrix product: y = W x + b for every activation row.
#ifndef ORCD_RUNTIME_CPU_MATMUL_H_
#define ORCD_RUNTIME_CPU_MATMUL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/model/weights.h"

namespace orcd::cpu {

// One of the products of a run.
struct Product {
  const Matrix* weights;
  // [weights->rows], or empty.
  Vector bias;
  const float* x;  // [x_rows, weights->cols]
  int64_t x_rows;
  float* y;  // [x_rows, weights->rows], overwritten
};

// Dequantises a tile of weight rows at a time, once for all activation rows, and multiplies in F32:
// a run reads the weights of each product once. A sum runs over panels of kPanelCols columns.
// Within a panel it runs over 16 lanes (column modulo 16) in order of the column, and the lanes are
// added as a tree. Panels are added in order, then the bias. So a sum is the same for any number of
// rows, tiles, threads and products beside it. Owns its tiles; one Run at a time.
class MatMul {
 public:
  // Both must outlive this.
  MatMul(const KernelTable& kernels, ThreadPool& pool);

  void Run(std::span<const Product> products);

  uint64_t workspace_bytes() const { return tiles_.size() * sizeof(float); }

 private:
  // Cuts the products into tasks of `rows_per_task` weight rows; returns their number.
  int64_t Plan(std::span<const Product> products, int64_t rows_per_task);
  void ComputeRows(const Product& product, int64_t first_row, int64_t rows, float* tile) const;

  const KernelTable& kernels_;
  ThreadPool& pool_;
  // One tile for each thread.
  std::vector<float> tiles_;
  // Number of the first task of each product of the run.
  std::vector<int64_t> first_tasks_;
};

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_MATMUL_H_
