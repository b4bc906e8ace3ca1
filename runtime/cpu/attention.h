// Causal attention of a step's rows over the keys and values of their sequences in the KV caches.
#ifndef ORCD_RUNTIME_CPU_ATTENTION_H_
#define ORCD_RUNTIME_CPU_ATTENTION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/kv_caches.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/model/spec.h"

namespace orcd::cpu {

// Rows [first_row, first_row + rows) of a step: one sequence's positions from first_position on.
struct AttentionRows {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_position = 0;
  // They hold every position that one of the rows attends to.
  KvBlocks blocks;
  // The first position that rows attend to, in every layer.
  int64_t first_key = 0;
};

// out = softmax(s) v with scores s = q k^T * LayerSpec::score_scale, capped if the layer has a
// score_softcap; query head h uses key-value head h * kv_heads / heads. A row at position p attends
// to the positions from first_key up to p; in a layer with a window of n, to those of (p - n, p]. A
// head's sink, if the
// layer has sinks, is one more score of the softmax, without a value. The sink comes first; then
// positions are taken in order, in tiles at fixed places, with scores and sums in F32. So the
// result of a row depends on its query, its position and the keys and values that it attends to
// alone. Owns its scratch memory; one Run at a time.
class Attention {
 public:
  // References must outlive this.
  Attention(const KernelTable& kernels, ThreadPool& pool, const ModelSpec& spec,
            const KvCaches& caches, int max_step_tokens, int max_seqs);

  // Sets the sequences of the following Runs; the spans must live as long.
  void Plan(std::span<const AttentionRows> sequences);

  // `sinks` are [heads], or empty if the layer has none; `q` and `out` are [rows of the step,
  // heads, head_dim].
  void Run(int layer, std::span<const float> sinks, const float* q, float* out);

  uint64_t workspace_bytes() const { return states_.size() * sizeof(float); }

 private:
  struct Task {
    AttentionRows rows;
    int kv_head = 0;
  };

  void RunTask(const Task& task, int layer, std::span<const float> sinks, const float* q,
               float* out, float* state) const;

  const KernelTable& kernels_;
  ThreadPool& pool_;
  const ModelSpec& spec_;
  const KvCaches& caches_;
  const int64_t state_floats_;
  std::vector<Task> tasks_;
  // For each thread: max, sum and out of each row of a task and query head.
  std::vector<float> states_;
};

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_ATTENTION_H_
