#include "runtime/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace orcd::cpu {
namespace {

// Rows of a task, which all use a tile of keys and values while it is in the cache.
constexpr int64_t kTaskRows = 16;

// Fills in the keys, values and positions of a tile: the groups of KV blocks from `first_group` on,
// with positions below `end`.
void SetTile(const KvCache& cache, int layer, int kv_head, std::span<const int32_t> blocks,
             int64_t first_group, int64_t end, AttendArgs& args) {
  const KvShape& shape = cache.shape();
  args.groups = 0;
  for (int64_t group = first_group; group < first_group + kAttendGroups; ++group) {
    const int64_t block_index = group / shape.groups_per_block();
    const int in_block = static_cast<int>(group % shape.groups_per_block());
    const int64_t position = block_index * shape.block_tokens + int64_t{in_block} * kKvGroup;
    if (position >= end) return;
    const int64_t block_end = (block_index + 1) * shape.block_tokens;
    args.keys[args.groups] = cache.Keys(layer, blocks[block_index], kv_head, in_block);
    args.values[args.groups] = cache.Values(layer, blocks[block_index], kv_head, in_block);
    args.positions[args.groups] =
        static_cast<int>(std::min<int64_t>(kKvGroup, std::min(end, block_end) - position));
    ++args.groups;
  }
}

}  // namespace

Attention::Attention(const KernelTable& kernels, ThreadPool& pool, int heads, const KvCache& cache,
                     int max_step_tokens, int max_seqs)
    : kernels_(kernels),
      pool_(pool),
      heads_(heads),
      cache_(cache),
      state_floats_(kTaskRows * (heads / cache.layer(0).kv_heads) *
                    (2 + cache.layer(0).padded_head_dim())),
      states_(pool.threads() * state_floats_) {
  tasks_.reserve((max_step_tokens / kTaskRows + max_seqs) * cache.layer(0).kv_heads);
}

void Attention::Plan(std::span<const AttentionRows> sequences) {
  tasks_.clear();
  for (const AttentionRows& sequence : sequences) {
    for (int64_t row = 0; row < sequence.rows; row += kTaskRows) {
      AttentionRows part = sequence;
      part.first_row += row;
      part.first_position += row;
      part.rows = std::min(kTaskRows, sequence.rows - row);
      for (int head = 0; head < cache_.layer(0).kv_heads; ++head) tasks_.push_back({part, head});
    }
  }
}

void Attention::Run(int layer, const float* q, float* out) {
  pool_.ParallelFor(static_cast<int64_t>(tasks_.size()), [&](int64_t index, int thread) {
    RunTask(tasks_[index], layer, q, out, states_.data() + thread * state_floats_);
  });
}

void Attention::RunTask(const Task& task, int layer, const float* q, float* out,
                        float* state) const {
  const KvShape& shape = cache_.shape();
  const KvLayer& kv = cache_.layer(layer);
  const int group_heads = heads_ / kv.kv_heads;
  const int64_t first_head = int64_t{task.kv_head} * group_heads;
  const int64_t row_floats = int64_t{heads_} * kv.head_dim;
  const int64_t states = task.rows.rows * group_heads;
  float* max = state;
  float* sum = max + states;
  float* weighted = sum + states;
  std::fill_n(max, states, -std::numeric_limits<float>::infinity());
  std::fill_n(sum, states + states * kv.padded_head_dim(), 0.0f);

  AttendArgs args = {};
  args.head_dim = kv.head_dim;
  args.padded_head_dim = kv.padded_head_dim();
  args.scale = 1.0f / std::sqrt(static_cast<float>(kv.head_dim));
  const auto attend = shape.type == KvType::kF16 ? kernels_.attend_f16 : kernels_.attend_f32;

  const int64_t last_position = task.rows.first_position + task.rows.rows - 1;
  const int64_t last_group = last_position / shape.block_tokens * shape.groups_per_block() +
                             last_position % shape.block_tokens / kKvGroup;
  for (int64_t group = 0; group <= last_group; group += kAttendGroups) {
    for (int64_t row = 0; row < task.rows.rows; ++row) {
      const int64_t end = task.rows.first_position + row + 1;
      SetTile(cache_, layer, task.kv_head, task.rows.blocks, group, end, args);
      if (args.groups == 0) continue;
      for (int head = 0; head < group_heads; head += kAttendHeads) {
        const int64_t index = row * group_heads + head;
        args.heads = std::min(kAttendHeads, group_heads - head);
        args.q = q + (task.rows.first_row + row) * row_floats + (first_head + head) * kv.head_dim;
        args.max = max + index;
        args.sum = sum + index;
        args.out = weighted + index * kv.padded_head_dim();
        attend(args);
      }
    }
  }

  for (int64_t row = 0; row < task.rows.rows; ++row) {
    for (int head = 0; head < group_heads; ++head) {
      const int64_t index = row * group_heads + head;
      const float* from = weighted + index * kv.padded_head_dim();
      float* to =
          out + (task.rows.first_row + row) * row_floats + (first_head + head) * kv.head_dim;
      for (int d = 0; d < kv.head_dim; ++d) to[d] = from[d] / sum[index];
    }
  }
}

}  // namespace orcd::cpu
