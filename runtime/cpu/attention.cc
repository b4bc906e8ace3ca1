#include "runtime/cpu/attention.h"

#include <algorithm>
#include <limits>

namespace orcd::cpu {
namespace {

// Rows of a task, which all use a tile of keys and values while it is in the cache.
constexpr int64_t kTaskRows = 16;

// Positions [first, end).
struct Positions {
  int64_t first = 0;
  int64_t end = 0;
};

// Those that row `row` of `rows` attends to.
Positions AttendedBy(const LayerSpec& layer, const AttentionRows& rows, int64_t row) {
  const int64_t position = rows.first_position + row;
  const int64_t before = layer.window == 0 ? position : layer.window - 1;
  return {std::max(position - before, rows.first_key), position + 1};
}

// Groups of KV blocks, counted from the sequence's first.
int64_t GroupOf(const KvShape& shape, int64_t position) {
  return position / shape.block_tokens * shape.groups_per_block() +
         position % shape.block_tokens / kKvGroup;
}

// Fills in the keys, values and positions of a tile: those groups from `first_group` on that hold
// one of the positions attended to.
void SetTile(const KvCache& cache, int layer, int kv_head, std::span<const int32_t> blocks,
             int64_t first_group, const Positions& attended, AttendArgs& args) {
  const KvShape& shape = cache.shape();
  args.groups = 0;
  for (int64_t group = first_group; group < first_group + kAttendGroups; ++group) {
    const int64_t block_index = group / shape.groups_per_block();
    const int in_block = static_cast<int>(group % shape.groups_per_block());
    const int64_t start = block_index * shape.block_tokens + int64_t{in_block} * kKvGroup;
    if (start >= attended.end) return;
    const int64_t block_end = (block_index + 1) * shape.block_tokens;
    const int64_t end = std::min({start + kKvGroup, block_end, attended.end});
    if (end <= attended.first) continue;
    args.keys[args.groups] = cache.Keys(layer, blocks[block_index], kv_head, in_block);
    args.values[args.groups] = cache.Values(layer, blocks[block_index], kv_head, in_block);
    args.first[args.groups] = static_cast<int>(std::max<int64_t>(attended.first - start, 0));
    args.end[args.groups] = static_cast<int>(end - start);
    ++args.groups;
  }
}

// All layers have the same shape.
int64_t StateFloats(const ModelSpec& spec) {
  const LayerSpec& layer = spec.layers[0];
  const int64_t padded_head_dim = KvLayout(spec.layers).layers[0].padded_head_dim();
  return kTaskRows * (layer.heads / layer.kv_heads) * (2 + padded_head_dim);
}

}  // namespace

Attention::Attention(const KernelTable& kernels, ThreadPool& pool, const ModelSpec& spec,
                     const KvCaches& caches, int max_step_tokens, int max_seqs)
    : kernels_(kernels),
      pool_(pool),
      spec_(spec),
      caches_(caches),
      state_floats_(StateFloats(spec)),
      states_(pool.threads() * state_floats_) {
  tasks_.reserve((max_step_tokens / kTaskRows + max_seqs) * spec.layers[0].kv_heads);
}

void Attention::Plan(std::span<const AttentionRows> sequences) {
  tasks_.clear();
  for (const AttentionRows& sequence : sequences) {
    for (int64_t row = 0; row < sequence.rows; row += kTaskRows) {
      AttentionRows part = sequence;
      part.first_row += row;
      part.first_position += row;
      part.rows = std::min(kTaskRows, sequence.rows - row);
      for (int head = 0; head < spec_.layers[0].kv_heads; ++head) tasks_.push_back({part, head});
    }
  }
}

void Attention::Run(int layer, std::span<const float> sinks, const float* q, float* out) {
  pool_.ParallelFor(static_cast<int64_t>(tasks_.size()), [&](int64_t index, int thread) {
    RunTask(tasks_[index], layer, sinks, q, out, states_.data() + thread * state_floats_);
  });
}

void Attention::RunTask(const Task& task, int layer, std::span<const float> sinks, const float* q,
                        float* out, float* state) const {
  const LayerSpec& spec = spec_.layers[layer];
  const KvCache& cache = caches_.of(spec);
  const std::span<const int32_t> blocks = task.rows.blocks.of(spec);
  const KvShape& shape = cache.shape();
  const KvLayer& kv = cache.layer(layer);
  const int group_heads = spec.heads / spec.kv_heads;
  const int64_t first_head = int64_t{task.kv_head} * group_heads;
  const int64_t row_floats = spec.q_size();
  const int64_t states = task.rows.rows * group_heads;
  float* max = state;
  float* sum = max + states;
  float* weighted = sum + states;
  std::fill_n(max, states, -std::numeric_limits<float>::infinity());
  std::fill_n(sum, states + states * kv.padded_head_dim(), 0.0f);
  if (!sinks.empty()) {
    // Each head has seen its sink, whose weight relative to itself is 1.
    std::fill_n(sum, states, 1.0f);
    for (int64_t i = 0; i < states; ++i) max[i] = sinks[first_head + i % group_heads];
  }

  AttendArgs args = {};
  args.head_dim = kv.head_dim;
  args.padded_head_dim = kv.padded_head_dim();
  args.scale = spec.score_scale;
  args.softcap = spec.score_softcap;
  const auto attend = shape.type == KvType::kF16 ? kernels_.attend_f16 : kernels_.attend_f32;

  const int64_t first = AttendedBy(spec, task.rows, 0).first;
  const int64_t last = task.rows.first_position + task.rows.rows - 1;
  const int64_t first_group = GroupOf(shape, first) / kAttendGroups * kAttendGroups;
  for (int64_t group = first_group; group <= GroupOf(shape, last); group += kAttendGroups) {
    for (int64_t row = 0; row < task.rows.rows; ++row) {
      const Positions attended = AttendedBy(spec, task.rows, row);
      SetTile(cache, layer, task.kv_head, blocks, group, attended, args);
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
