#include "runtime/cpu/matmul.h"

#include <algorithm>

#include "runtime/gguf/block_formats.h"

namespace orcd::cpu {
namespace {

// Weight rows of a tile if there are many activation rows: the tile then lies in the second-level
// cache while the activations stream past it. With few activation rows, a tile that fits the first
// level is better.
constexpr int64_t kTileRows = 32;
constexpr int64_t kSmallTileRows = 8;
constexpr int64_t kFewActivationRows = 4;
// Not a power of two, so that the rows of a tile do not compete for the same cache sets.
constexpr int64_t kTileStride = kPanelCols + 16;
// Distance in rows at which weights are prefetched ahead of the row that is dequantised.
constexpr int64_t kPrefetchRows = 8;

// Prefetches memory that will be read soon. The processor's own prefetchers stop at page ends,
// every few rows of weights.
void Prefetch(const std::byte* start, int64_t bytes) {
  constexpr int64_t kCacheLine = 64;
  for (int64_t i = 0; i < bytes; i += kCacheLine) __builtin_prefetch(start + i);
}

}  // namespace

MatMul::MatMul(const KernelTable& kernels, ThreadPool& pool)
    : kernels_(kernels), pool_(pool), tiles_(pool.threads() * kTileRows * kTileStride) {}

int64_t MatMul::Plan(std::span<const Product> products, int64_t rows_per_task) {
  first_tasks_.clear();
  int64_t tasks = 0;
  for (const Product& product : products) {
    first_tasks_.push_back(tasks);
    if (product.x_rows == 0) continue;
    tasks += (product.weights->rows + rows_per_task - 1) / rows_per_task;
  }
  return tasks;
}

void MatMul::Run(std::span<const Product> products) {
  int64_t rows_per_task = kTileRows;
  int64_t tasks = Plan(products, rows_per_task);
  while (rows_per_task > kSmallTileRows && tasks < 4 * int64_t{pool_.threads()}) {
    rows_per_task /= 2;
    tasks = Plan(products, rows_per_task);
  }
  pool_.ParallelFor(tasks, [&](int64_t task, int thread) {
    // The last product that begins at this task or before. One without tasks begins where the next
    // one does.
    const auto next = std::upper_bound(first_tasks_.begin(), first_tasks_.end(), task);
    const Product& product = products[next - first_tasks_.begin() - 1];
    const int64_t first_row = (task - *(next - 1)) * rows_per_task;
    ComputeRows(product, first_row, std::min(rows_per_task, product.weights->rows - first_row),
                tiles_.data() + thread * kTileRows * kTileStride);
  });
}

void MatMul::ComputeRows(const Product& product, int64_t first_row, int64_t rows,
                         float* tile) const {
  const int64_t x_rows = product.x_rows;
  const Matrix& weights = *product.weights;
  const TensorTypeInfo& type = GetTensorTypeInfo(weights.type);
  const int64_t tile_rows = x_rows <= kFewActivationRows ? kSmallTileRows : kTileRows;
  for (int64_t row = first_row; row < first_row + rows; row += tile_rows) {
    const int64_t count = std::min(tile_rows, first_row + rows - row);
    for (int64_t col = 0; col < weights.cols; col += kPanelCols) {
      const int64_t cols = std::min(kPanelCols, weights.cols - col);
      const int64_t offset = col / type.block_weights * type.block_bytes;
      const int64_t panel_bytes = cols / type.block_weights * type.block_bytes;
      // One activation row takes each weight once, so a tile would only be written and read again.
      const bool once = x_rows == 1 && cols % 16 == 0;
      for (int64_t r = 0; r < count; ++r) {
        const int64_t next_row = std::min(row + r + kPrefetchRows, weights.rows - 1);
        Prefetch(weights.row(next_row) + offset, panel_bytes);
        const std::byte* src = weights.row(row + r) + offset;
        if (once) {
          const float sum = kernels_.dot(weights.type, src, product.x + col, cols);
          float& y = product.y[row + r];
          y = col > 0 ? y + sum : sum;
        } else {
          kernels_.dequantize(weights.type, src, cols, tile + r * kTileStride);
        }
      }
      if (once) continue;
      kernels_.multiply({.weights = tile,
                         .weight_stride = kTileStride,
                         .weight_rows = count,
                         .x = product.x + col,
                         .x_stride = weights.cols,
                         .x_rows = x_rows,
                         .cols = cols,
                         .y = product.y + row,
                         .y_stride = weights.rows,
                         .accumulate = col > 0});
    }
    if (product.bias.empty()) continue;
    for (int64_t i = 0; i < x_rows; ++i) {
      float* y = product.y + i * weights.rows + row;
      for (int64_t r = 0; r < count; ++r) y[r] += product.bias[row + r];
    }
  }
}

}  // namespace orcd::cpu
