// Tests of attention: correct, and bit-equal for decode and prefill, for whole prompts and chunks,
// and for any split of the keys over blocks; with windows, softcaps, sinks and other rules.
#include "cuda/kernels/common/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda/gpu_for_test.h"
#include "cuda/kernels/common/qkv_rule_for_test.h"
#include "cuda/kernels/common/step.h"
#include "runtime/cpu/matrix_for_test.h"
#include "runtime/gguf/dequantize.h"

namespace orcd::cuda {
namespace {

using cpu::RandomFloats;

struct AttentionCase {
  int head_dim;
  int kv_heads;
  int group_heads;
  int block_tokens;
  int window = 0;
  float softcap = 0;
  // 0: 1 / sqrt(head_dim).
  float score_scale = 0;
  // One of each head, or none.
  std::vector<float> sinks = {};

  int heads() const { return kv_heads * group_heads; }
  // `device_sinks`: the sinks in VRAM.
  AttentionRule rule(const float* device_sinks = nullptr) const {
    return {.score_scale = score_scale > 0
                               ? score_scale
                               : static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim))),
            .score_softcap = softcap,
            .window = window,
            .sinks = device_sinks};
  }
  // Parts of the queries of each kv head: one and two in turn; empty if they have no hi/lo split.
  std::vector<int32_t> QuerySplit() const {
    if (head_dim > 128) return {};
    std::vector<int32_t> parts;
    for (int h = 0; h < kv_heads; ++h) parts.push_back(1 + (h + group_heads) % 2);
    return parts;
  }
};

void PrintTo(const AttentionCase& c, std::ostream* out) {
  *out << c.heads() << "/" << c.kv_heads << " heads of " << c.head_dim << ", blocks of "
       << c.block_tokens << ", window " << c.window << ", softcap " << c.softcap << ", scale "
       << c.score_scale << ", sinks " << ::testing::PrintToString(c.sinks);
}

// Sinks of so many heads: some that weigh as much as a few keys or as thousands, some that outweigh
// all keys, and some that weigh nothing.
std::vector<float> SomeSinks(int heads) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kSinks[] = {1.5f,   8.0f,  -2.0f,      14.0f, 0.0f,
                              -60.0f, 10.0f, -kInfinity, 25.0f, 1e30f};
  std::vector<float> sinks(heads);
  for (int h = 0; h < heads; ++h) sinks[h] = kSinks[h % std::size(kSinks)];
  return sinks;
}

// The sinks of a case in VRAM.
class DeviceSinks {
 public:
  explicit DeviceSinks(const AttentionCase& shape) : sinks_(shape.sinks) {}
  const float* get() const { return sinks_.size() == 0 ? nullptr : sinks_.data(); }

 private:
  DeviceArray<float> sinks_;
};

// QkvProduct::query_split of a case.
class DeviceQuerySplit {
 public:
  explicit DeviceQuerySplit(const AttentionCase& shape) : parts_(shape.QuerySplit()) {}
  const int32_t* get() const { return parts_.size() == 0 ? nullptr : parts_.data(); }

 private:
  DeviceArray<int32_t> parts_;
};

// Part of a sequence in a step: tokens [first, first + count) of sequence `index`.
struct Part {
  int index;
  int first;
  int count;
};

constexpr int kLayers = 2;
constexpr int kLayer = 1;

// Block that has left the window. No memory is there, so that a read is noticed.
constexpr int32_t kGoneBlock = 1 << 28;

// Sequences with known queries, keys and values for every position, and a cache that holds them in
// shuffled blocks. Blocks that no sequence owns hold NaN. The rest of a sequence's last block,
// behind its end, holds large finite numbers, as an earlier sequence may have left there.
class Sequences {
 public:
  Sequences(const AttentionCase& shape, const std::vector<int>& lengths)
      : shape_(shape), lengths_(lengths) {
    int blocks = 3;
    for (const int length : lengths) blocks += Blocks(length);
    std::vector<int32_t> order(blocks);
    for (int i = 0; i < blocks; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), std::mt19937(5));
    view_ = {.blocks = blocks,
             .block_tokens = shape.block_tokens,
             .kv_heads = shape.kv_heads,
             .head_dim = shape.head_dim};
    std::vector<uint16_t> cache(kLayers * blocks * view_.block_size(), 0xFFFF);
    int next = 0;
    for (size_t s = 0; s < lengths.size(); ++s) {
      blocks_.emplace_back(order.begin() + next, order.begin() + next + Blocks(lengths[s]));
      next += Blocks(lengths[s]);
      const uint32_t seed = static_cast<uint32_t>(10 * s);
      // Scores with a spread of about 2, so that a few keys count.
      queries_.push_back(Halves(lengths[s] * shape.heads() * shape.head_dim, seed + 1, true));
      keys_.push_back(Halves(lengths[s] * shape.kv_heads * shape.head_dim, seed + 2, false));
      values_.push_back(Halves(lengths[s] * shape.kv_heads * shape.head_dim, seed + 3, false));
      for (int p = 0; p < Blocks(lengths[s]) * shape.block_tokens; ++p) {
        for (int h = 0; h < shape.kv_heads; ++h) {
          for (int c = 0; c < shape.head_dim; ++c) {
            const size_t key = KeyIndex(p, h) + c;
            const bool exists = p < lengths[s];
            const int64_t at = CacheIndex(static_cast<int>(s), p, h, c);
            cache[at] = exists ? keys_[s][key] : FloatToHalf(300.0f);
            cache[at + shape.kv_heads * view_.head_size()] =
                exists ? values_[s][key] : FloatToHalf(-500.0f);
          }
        }
      }
    }
    cache_values_ = cache;
    cache_ = DeviceArray<uint16_t>(cache);
    view_.data = reinterpret_cast<__half*>(cache_.data());
  }

  const AttentionCase& shape() const { return shape_; }
  int count() const { return static_cast<int>(lengths_.size()); }
  int length(int s) const { return lengths_[s]; }
  const KvCacheView& view() const { return view_; }
  const DeviceArray<uint16_t>& cache() const { return cache_; }
  const std::vector<uint16_t>& cache_values() const { return cache_values_; }
  // Overwrites the keys and values of the parts' positions with something else.
  void Forget(const std::vector<Part>& parts) {
    std::vector<uint16_t> cache = cache_values_;
    for (const Part& part : parts) {
      for (int p = part.first; p < part.first + part.count; ++p) {
        for (int h = 0; h < shape_.kv_heads; ++h) {
          for (int c = 0; c < shape_.head_dim; ++c) {
            const int64_t at = CacheIndex(part.index, p, h, c);
            cache[at] = FloatToHalf(77.0f);
            cache[at + shape_.kv_heads * view_.head_size()] = FloatToHalf(-77.0f);
          }
        }
      }
    }
    cache_.Write(cache);
  }

  std::span<const int32_t> blocks(int s) const { return blocks_[s]; }
  std::span<const uint16_t> query(int s, int position) const {
    const size_t size = size_t{1} * shape_.heads() * shape_.head_dim;
    return std::span(queries_[s]).subspan(position * size, size);
  }
  std::span<const uint16_t> key(int s, int position) const {
    return std::span(keys_[s]).subspan(KeyIndex(position, 0),
                                       size_t{1} * shape_.kv_heads * shape_.head_dim);
  }
  std::span<const uint16_t> value(int s, int position) const {
    return std::span(values_[s])
        .subspan(KeyIndex(position, 0), size_t{1} * shape_.kv_heads * shape_.head_dim);
  }

  // Attention of one head at a position in double precision, and the tolerance for rounding: F16
  // for weights (of at most 1 in a tile) and for the result, which a sink may make tiny.
  void Expected(int s, int position, int head, std::vector<double>& out,
                std::vector<double>& tolerance) const {
    const int dim = shape_.head_dim;
    const int kv_head = head / shape_.group_heads;
    const std::vector<float> q = ToFloats(query(s, position).subspan(size_t{1} * head * dim, dim));
    const AttentionRule rule = shape_.rule();
    const int first = FirstSeen(rule, position);
    std::vector<double> scores(position + 1);
    double max = -1e300;
    for (int p = first; p <= position; ++p) {
      double dot = 0;
      for (int c = 0; c < dim; ++c) {
        dot += double{q[c]} * double{HalfToFloat(keys_[s][KeyIndex(p, kv_head) + c])};
      }
      scores[p] = dot * double{rule.score_scale};
      if (shape_.softcap > 0) {
        scores[p] = double{shape_.softcap} * std::tanh(scores[p] / double{shape_.softcap});
      }
      max = std::max(max, scores[p]);
    }
    double sum = 0;
    std::vector<double> magnitude(dim);
    out.assign(dim, 0);
    double largest = 0;
    for (int p = first; p <= position; ++p) {
      const double weight = std::exp(scores[p] - max);
      sum += weight;
      for (int c = 0; c < dim; ++c) {
        const double v = HalfToFloat(values_[s][KeyIndex(p, kv_head) + c]);
        out[c] += weight * v;
        magnitude[c] += weight * std::abs(v);
        largest = std::max(largest, std::abs(v));
      }
    }
    const bool has_sink = !shape_.sinks.empty();
    if (has_sink) sum += std::exp(double{shape_.sinks[head]} - max);
    tolerance.resize(dim);
    for (int c = 0; c < dim; ++c) {
      out[c] /= sum;
      // The second term covers F32 scores, weights and sums; the third, weights below F16's
      // smallest number.
      tolerance[c] = 0x1p-11 * (magnitude[c] / sum + std::abs(out[c])) +
                     0x1p-16 * magnitude[c] / sum + (position + 1) * 0x1p-25 * largest / sum +
                     (has_sink ? 0x1p-25 : 0);
    }
  }

 private:
  // Bell-shaped numbers with a spread of 1 or, if `wide`, of 2, from a position in a long list.
  static std::vector<uint16_t> Halves(int count, uint32_t seed, bool wide) {
    static const std::vector<uint16_t> lists[2] = {List(1.0f), List(2.0f)};
    const std::vector<uint16_t>& list = lists[wide ? 1 : 0];
    std::vector<uint16_t> halves(count);
    size_t at = seed * 104'729u % list.size();
    for (uint16_t& half : halves) {
      half = list[at];
      if (++at == list.size()) at = 0;
    }
    return halves;
  }
  static std::vector<uint16_t> List(float scale) {
    std::vector<uint16_t> halves;
    // The list's length is prime, so that rows are not alike.
    for (const float value : RandomFloats(1'048'573, 3, scale)) {
      halves.push_back(FloatToHalf(value));
    }
    return halves;
  }
  int Blocks(int length) const { return (length + shape_.block_tokens - 1) / shape_.block_tokens; }
  size_t KeyIndex(int position, int kv_head) const {
    return (size_t{1} * position * shape_.kv_heads + kv_head) * shape_.head_dim;
  }
  int64_t CacheIndex(int s, int position, int kv_head, int col) const {
    return view_.Offset(kLayer, blocks_[s][position / shape_.block_tokens], kv_head) +
           view_.InBlock(position % shape_.block_tokens, col);
  }

  AttentionCase shape_;
  std::vector<int> lengths_;
  KvCacheView view_;
  std::vector<std::vector<int32_t>> blocks_;
  std::vector<std::vector<uint16_t>> queries_;
  std::vector<std::vector<uint16_t>> keys_;
  std::vector<std::vector<uint16_t>> values_;
  std::vector<uint16_t> cache_values_;
  DeviceArray<uint16_t> cache_;
};

// Tables of a step in VRAM.
class DeviceStep {
 public:
  DeviceStep(const Sequences& all, const std::vector<Part>& parts) {
    std::vector<SequenceEntry> sequences;
    std::vector<int32_t> blocks;
    for (const Part& part : parts) {
      sequences.push_back({.slot = static_cast<int32_t>(sequences.size()),
                           .starts = 0,
                           .first_token = tokens_,
                           .tokens = part.count,
                           .first_position = part.first,
                           .first_block = static_cast<int32_t>(blocks.size()),
                           .first_query_tile = query_tiles_,
                           .first_key_tile = key_tiles_});
      const size_t first_block = blocks.size();
      blocks.insert(blocks.end(), all.blocks(part.index).begin(), all.blocks(part.index).end());
      const int gone = FirstSeen(all.shape().rule(), part.first) / all.shape().block_tokens;
      std::fill_n(blocks.begin() + static_cast<int64_t>(first_block), gone, kGoneBlock);
      tokens_ += part.count;
      query_tiles_ += (part.count * all.shape().group_heads + kQueryRows - 1) / kQueryRows;
      key_tiles_ += KeyTiles(part.first + part.count);
    }
    // An entry that pads a bucket.
    sequences.push_back({});
    sequences_ = DeviceArray<SequenceEntry>(sequences);
    blocks_ = DeviceArray<int32_t>(blocks);
  }

  StepTables tables() const { return {.sequences = sequences_.data(), .blocks = blocks_.data()}; }
  int entries() const { return static_cast<int>(sequences_.size()); }
  int tokens() const { return tokens_; }
  int query_tiles() const { return query_tiles_; }
  int key_tiles() const { return key_tiles_; }

 private:
  int tokens_ = 0;
  int query_tiles_ = 0;
  int key_tiles_ = 0;
  DeviceArray<SequenceEntry> sequences_;
  DeviceArray<int32_t> blocks_;
};

class AttentionTest : public GpuTest {
 protected:
  // Returns [tokens, heads * head_dim] of the parts' tokens in order.
  std::vector<uint16_t> Prefill(const Sequences& all, const std::vector<Part>& parts) {
    const DeviceStep step(all, parts);
    std::vector<uint16_t> queries;
    for (const Part& part : parts) {
      for (int p = part.first; p < part.first + part.count; ++p) {
        const auto query = all.query(part.index, p);
        queries.insert(queries.end(), query.begin(), query.end());
      }
    }
    const DeviceArray<uint16_t> q(queries);
    const DeviceArray<uint16_t> q_lo(std::vector<uint16_t>(queries.size(), 0));
    const DeviceQuerySplit query_split(all.shape());
    const DeviceSinks sinks(all.shape());
    const DeviceActivations out(step.tokens(), all.shape().heads() * all.shape().head_dim);
    EXPECT_EQ(kernels().prefill_attention({.step = step.tables(),
                                           .sequences = step.entries(),
                                           .query_tiles = step.query_tiles(),
                                           .q = reinterpret_cast<const __half*>(q.data()),
                                           .q_lo = reinterpret_cast<const __half*>(q_lo.data()),
                                           .query_split = query_split.get(),
                                           .rule = all.shape().rule(sinks.get()),
                                           .kv = all.view(),
                                           .layer = kLayer,
                                           .heads = all.shape().heads(),
                                           .out = out.view()},
                                          traits(), stream()),
              cudaSuccess);
    EXPECT_EQ(out.WrittenOutside(), 0);
    return out.Read();
  }

  // The same for parts of one token. The keys and values of these tokens come from a QKV product
  // made to give those of the sequences: decode attention makes them.
  std::vector<uint16_t> Decode(Sequences& all, const std::vector<Part>& parts, int key_splits) {
    all.Forget(parts);
    const DeviceStep step(all, parts);
    const AttentionCase& shape = all.shape();
    const int rows = (shape.heads() + 2 * shape.kv_heads) * shape.head_dim;
    std::vector<float> products;
    std::vector<TokenEntry> tokens;
    int positions = 0;
    for (const Part& part : parts) {
      for (const auto& values : {all.query(part.index, part.first), all.key(part.index, part.first),
                                 all.value(part.index, part.first)}) {
        for (const uint16_t half : values) products.push_back(HalfToFloat(half));
      }
      tokens.push_back({.id = 0,
                        .sequence = static_cast<int32_t>(tokens.size()),
                        .position = static_cast<int32_t>(part.first)});
      positions = std::max(positions, part.first + 1);
    }
    // Angles of zero: no rotation.
    std::vector<float> angles(size_t{1} * positions * shape.head_dim);
    for (size_t i = 0; i < angles.size(); ++i) {
      angles[i] = static_cast<int>(i) % shape.head_dim < shape.head_dim / 2 ? 1.0f : 0.0f;
    }
    const DeviceArray<float> device_products(products);
    const DeviceArray<TokenEntry> device_tokens(tokens);
    const DeviceArray<float> bias(std::vector<float>(rows, 0.0f));
    const DeviceArray<float> device_angles(angles);
    const DeviceQuerySplit query_split(shape);
    const DeviceSinks sinks(shape);
    const DeviceArray<float> partials(size_t{1} * step.key_tiles() * shape.heads() *
                                      (shape.head_dim + 2));
    const DeviceArray<int32_t> counters(std::vector<int32_t>(step.entries() * shape.kv_heads, 0));
    const DeviceArray<int32_t> not_finite(std::vector<int32_t>(step.entries(), 0));
    const DeviceActivations out(step.tokens(), shape.heads() * shape.head_dim);
    StepTables tables = step.tables();
    tables.tokens = device_tokens.data();
    const DecodeAttentionArgs args = {.step = tables,
                                      .sequences = step.entries(),
                                      .qkv = {.partials = device_products.data(),
                                              .splits = 1,
                                              .partials_tokens = step.tokens(),
                                              .bias = bias.data(),
                                              .angles = device_angles.data(),
                                              .rope_dims = shape.head_dim,
                                              .query_split = query_split.get(),
                                              .heads = shape.heads(),
                                              .kv_heads = shape.kv_heads,
                                              .head_dim = shape.head_dim},
                                      .rule = shape.rule(sinks.get()),
                                      .kv = all.view(),
                                      .not_finite = not_finite.data(),
                                      .layer = kLayer,
                                      .key_splits = key_splits,
                                      .partials = partials.data(),
                                      .counters = counters.data(),
                                      .out = out.view()};
    EXPECT_EQ(kernels().decode_attention(args, traits(), stream()), cudaSuccess);
    EXPECT_EQ(out.WrittenOutside(), 0);
    // The tokens' keys and values were stored, and nothing else.
    EXPECT_TRUE(SameBits(all.cache().Read(), all.cache_values()));
    EXPECT_EQ(counters.Read(), std::vector<int32_t>(counters.size(), 0));
    EXPECT_EQ(not_finite.Read(), std::vector<int32_t>(not_finite.size(), 0));
    return out.Read();
  }

  // Compares the rows of `outputs` at which `parts` have these positions with double precision.
  void ExpectRight(const Sequences& all, const std::vector<Part>& parts,
                   std::span<const uint16_t> outputs, const std::vector<int>& offsets) {
    struct Sample {
      int index;
      int position;
      int row;
    };
    std::vector<Sample> samples;
    int first_row = 0;
    for (const Part& part : parts) {
      for (const int offset : offsets) {
        const int i = offset < 0 ? part.count + offset : offset;
        if (i < 0 || i >= part.count) continue;
        samples.push_back({part.index, part.first + i, first_row + i});
      }
      first_row += part.count;
    }
    const int dim = all.shape().head_dim;
    const int heads = all.shape().heads();
    std::vector<std::string> failures(samples.size() * heads);
    InParallel(static_cast<int64_t>(failures.size()), [&](int64_t i) {
      const Sample& sample = samples[i / heads];
      const int head = static_cast<int>(i % heads);
      std::vector<double> expected;
      std::vector<double> tolerance;
      all.Expected(sample.index, sample.position, head, expected, tolerance);
      for (int c = 0; c < dim; ++c) {
        const float actual =
            HalfToFloat(outputs[(size_t{1} * sample.row * heads + head) * dim + c]);
        if (std::abs(actual - expected[c]) <= tolerance[c]) continue;
        failures[i] = "position " + std::to_string(sample.position) + " head " +
                      std::to_string(head) + " column " + std::to_string(c) + ": " +
                      std::to_string(actual) + ", expected " + std::to_string(expected[c]) +
                      " to within " + std::to_string(tolerance[c]);
        return;
      }
    });
    for (const std::string& failure : failures) {
      if (failure.empty()) continue;
      ADD_FAILURE() << failure;
      return;
    }
  }
};

class AttentionShapeTest : public AttentionTest,
                           public ::testing::WithParamInterface<AttentionCase> {};

std::string CaseName(const ::testing::TestParamInfo<AttentionCase>& info) {
  const AttentionCase& c = info.param;
  std::string name = "dim" + std::to_string(c.head_dim) + "_kv" + std::to_string(c.kv_heads) +
                     "_group" + std::to_string(c.group_heads) + "_block" +
                     std::to_string(c.block_tokens);
  if (c.window > 0) name += "_window" + std::to_string(c.window);
  if (c.softcap > 0) name += "_softcap";
  if (c.score_scale > 0) name += "_scale";
  if (!c.sinks.empty()) name += "_sinks";
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionShapeTest,
    ::testing::Values(AttentionCase{64, 2, 7, 16}, AttentionCase{128, 2, 6, 16},
                      AttentionCase{128, 4, 7, 16}, AttentionCase{64, 2, 2, 8},
                      AttentionCase{64, 1, 1, 64}, AttentionCase{64, 1, 3, 32},
                      AttentionCase{128, 1, 4, 8}, AttentionCase{128, 2, 5, 32},
                      AttentionCase{128, 1, 8, 64}, AttentionCase{64, 1, 9, 16},
                      AttentionCase{64, 1, 16, 16}, AttentionCase{128, 1, 16, 16}),
    CaseName);
INSTANTIATE_TEST_SUITE_P(Sizes, AttentionShapeTest,
                         ::testing::Values(AttentionCase{16, 2, 2, 16}, AttentionCase{32, 2, 3, 8},
                                           AttentionCase{32, 1, 16, 64},
                                           AttentionCase{80, 1, 5, 16}, AttentionCase{96, 3, 1, 32},
                                           AttentionCase{96, 1, 12, 8},
                                           AttentionCase{256, 2, 2, 16},
                                           AttentionCase{256, 1, 4, 64},
                                           AttentionCase{256, 1, 12, 8}),
                         CaseName);
// Windows that end within a block, at a block's end and at a tile's, of one key, and wider than
// prompts.
INSTANTIATE_TEST_SUITE_P(
    Rules, AttentionShapeTest,
    ::testing::Values(
        AttentionCase{
            .head_dim = 128, .kv_heads = 2, .group_heads = 4, .block_tokens = 16, .window = 1},
        AttentionCase{
            .head_dim = 128, .kv_heads = 1, .group_heads = 6, .block_tokens = 8, .window = 300},
        AttentionCase{
            .head_dim = 128, .kv_heads = 1, .group_heads = 12, .block_tokens = 64, .window = 256},
        AttentionCase{.head_dim = 64,
                      .kv_heads = 2,
                      .group_heads = 3,
                      .block_tokens = 16,
                      .window = 129,
                      .softcap = 3},
        AttentionCase{
            .head_dim = 64, .kv_heads = 1, .group_heads = 16, .block_tokens = 32, .window = 4096},
        AttentionCase{.head_dim = 64,
                      .kv_heads = 2,
                      .group_heads = 2,
                      .block_tokens = 16,
                      .score_scale = 0.0625f},
        AttentionCase{
            .head_dim = 256, .kv_heads = 2, .group_heads = 2, .block_tokens = 16, .window = 1024},
        AttentionCase{.head_dim = 256,
                      .kv_heads = 1,
                      .group_heads = 5,
                      .block_tokens = 32,
                      .window = 100,
                      .softcap = 5,
                      .score_scale = 0.08f},
        AttentionCase{
            .head_dim = 96, .kv_heads = 2, .group_heads = 1, .block_tokens = 16, .window = 200},
        AttentionCase{.head_dim = 80,
                      .kv_heads = 1,
                      .group_heads = 7,
                      .block_tokens = 16,
                      .window = 63,
                      .softcap = 4},
        AttentionCase{.head_dim = 32,
                      .kv_heads = 2,
                      .group_heads = 2,
                      .block_tokens = 16,
                      .window = 16,
                      .softcap = 2,
                      .score_scale = 0.2f},
        AttentionCase{
            .head_dim = 16, .kv_heads = 2, .group_heads = 2, .block_tokens = 8, .window = 16}),
    CaseName);
// gpt-oss' shape, with its window and without, and others.
INSTANTIATE_TEST_SUITE_P(Sinks, AttentionShapeTest,
                         ::testing::Values(AttentionCase{64, 2, 8, 16, 128, 0, 0, SomeSinks(16)},
                                           AttentionCase{64, 2, 8, 16, 0, 0, 0, SomeSinks(16)},
                                           AttentionCase{64, 1, 16, 32, 65, 0, 0, SomeSinks(16)},
                                           AttentionCase{64, 3, 1, 8, 1, 0, 0, SomeSinks(3)},
                                           AttentionCase{128, 2, 6, 64, 0, 0, 0, SomeSinks(12)},
                                           AttentionCase{128, 1, 12, 16, 300, 3, 0.1f,
                                                         SomeSinks(12)},
                                           AttentionCase{256, 2, 5, 16, 0, 5, 0, SomeSinks(10)},
                                           AttentionCase{256, 1, 10, 32, 100, 0, 0, SomeSinks(10)},
                                           AttentionCase{96, 2, 5, 16, 200, 0, 0, SomeSinks(10)},
                                           AttentionCase{80, 1, 10, 16, 0, 0, 0, SomeSinks(10)},
                                           AttentionCase{32, 2, 5, 16, 16, 0, 0, SomeSinks(10)},
                                           AttentionCase{16, 1, 10, 8, 0, 0, 0, SomeSinks(10)}),
                         CaseName);

std::vector<int> Lengths() {
  return {1,   2,   15,  16,  17,  63,  64,  65,  127,  128, 129,
          192, 255, 256, 257, 511, 512, 513, 769, 1000, 5000};
}

std::vector<Part> LastTokens(const Sequences& all) {
  std::vector<Part> parts;
  for (int s = 0; s < all.count(); ++s) parts.push_back({s, all.length(s) - 1, 1});
  return parts;
}

TEST_P(AttentionShapeTest, DecodeIsRightAndSplitsDoNotMatter) {
  Sequences all(GetParam(), Lengths());
  const std::vector<Part> parts = LastTokens(all);
  const std::vector<uint16_t> whole = Decode(all, parts, 1);
  ExpectRight(all, parts, whole, {0});
  for (const int splits : {2, 3, 8, 32}) {
    EXPECT_TRUE(SameBits(Decode(all, parts, splits), whole)) << splits << " splits";
  }
  // Each sequence alone, so at another place of the step.
  const size_t row = size_t{1} * GetParam().heads() * GetParam().head_dim;
  for (const int s : {0, 7, 14, 20}) {
    EXPECT_TRUE(SameBits(std::span<const uint16_t>(Decode(all, {parts[s]}, 4)),
                         std::span<const uint16_t>(whole).subspan(s * row, row)))
        << "sequence of " << all.length(s);
  }
}

TEST_P(AttentionShapeTest, PrefillIsDecode) {
  Sequences all(GetParam(), Lengths());
  const std::vector<Part> parts = LastTokens(all);
  const std::vector<uint16_t> decoded = Decode(all, parts, 1);
  EXPECT_TRUE(SameBits(Prefill(all, parts), decoded));
}

// The cache already holds later positions, which must not be seen.
TEST_P(AttentionShapeTest, PrefillIsRightAndChunksDoNotMatter) {
  const Sequences all(GetParam(), {1, 40, 300, 777});
  const std::vector<Part> whole = {{0, 0, 1}, {1, 0, 40}, {2, 0, 300}, {3, 0, 777}};
  const std::vector<uint16_t> expected = Prefill(all, whole);
  ExpectRight(all, whole, expected, {0, 1, 15, 16, 63, 64, 65, 255, 256, 257, 511, 700, -1});
  const size_t row = size_t{1} * GetParam().heads() * GetParam().head_dim;
  const auto rows = [&](int s, int first, int count) {
    size_t begin = 0;
    for (int i = 0; i < s; ++i) begin += whole[i].count;
    return std::span<const uint16_t>(expected).subspan((begin + first) * row, count * row);
  };
  for (const int chunk : {1, 17, 64, 200}) {
    for (int first = 0; first < 777; first += chunk) {
      // Only a few of the smallest chunks.
      if (chunk == 1 && first % 51 > 1) continue;
      std::vector<Part> parts;
      for (int s = 3; s >= 0; --s) {
        const int count = std::min(chunk, all.length(s) - first);
        if (count > 0) parts.push_back({s, first, count});
      }
      const std::vector<uint16_t> actual = Prefill(all, parts);
      size_t at = 0;
      for (const Part& part : parts) {
        ASSERT_TRUE(SameBits(std::span<const uint16_t>(actual).subspan(at, part.count * row),
                             rows(part.index, part.first, part.count)))
            << "sequence " << part.index << " from " << first << ", chunks of " << chunk;
        at += part.count * row;
      }
    }
  }
}

// So many sequences that a block takes all keys of a sequence.
TEST_F(AttentionTest, ManySequences) {
  for (const AttentionCase& shape : {AttentionCase{64, 2, 7, 16},
                                     AttentionCase{64, 2, 9, 8},
                                     AttentionCase{64, 2, 16, 64},
                                     AttentionCase{128, 4, 7, 16},
                                     AttentionCase{128, 2, 8, 32},
                                     AttentionCase{128, 3, 12, 16},
                                     AttentionCase{64, 4, 4, 16, 1},
                                     AttentionCase{64, 3, 12, 8, 65},
                                     AttentionCase{128, 4, 3, 16, 200},
                                     AttentionCase{128, 3, 16, 64, 128, 2.0f},
                                     AttentionCase{96, 3, 2, 16, 130},
                                     AttentionCase{80, 3, 1, 16},
                                     AttentionCase{256, 3, 2, 16, 300},
                                     AttentionCase{32, 3, 2, 8, 16},
                                     AttentionCase{64, 8, 8, 16, 128, 0, 0, SomeSinks(64)},
                                     AttentionCase{64, 8, 8, 16, 0, 0, 0, SomeSinks(64)},
                                     AttentionCase{64, 3, 12, 8, 65, 0, 0, SomeSinks(36)},
                                     AttentionCase{128, 4, 7, 16, 0, 0, 0, SomeSinks(28)},
                                     AttentionCase{128, 3, 16, 64, 128, 2.0f, 0, SomeSinks(48)},
                                     AttentionCase{256, 3, 4, 16, 0, 0, 0, SomeSinks(12)}}) {
    SCOPED_TRACE(::testing::PrintToString(shape));
    constexpr int kCount = 100;
    std::vector<int> lengths;
    for (int i = 0; i < kCount; ++i) lengths.push_back(1 + i * 13 % 600);
    Sequences all(shape, lengths);
    const std::vector<Part> parts = LastTokens(all);
    const std::vector<uint16_t> together = Decode(all, parts, 1);
    ExpectRight(all, parts, together, {0});
    EXPECT_TRUE(SameBits(Decode(all, parts, 3), together));
    EXPECT_TRUE(SameBits(Prefill(all, parts), together));
    const size_t row = size_t{1} * shape.heads() * shape.head_dim;
    for (int s = 0; s < kCount; s += 17) {
      EXPECT_TRUE(SameBits(std::span<const uint16_t>(Decode(all, {parts[s]}, 2)),
                           std::span<const uint16_t>(together).subspan(s * row, row)))
          << "sequence of " << lengths[s];
    }
  }
}

// The end of one long prompt.
TEST_F(AttentionTest, LongPrompt) {
  for (const AttentionCase& shape :
       {AttentionCase{64, 1, 7, 16}, AttentionCase{128, 1, 4, 16},
        AttentionCase{128, 1, 4, 16, 700}, AttentionCase{256, 1, 2, 16, 1024},
        AttentionCase{256, 1, 2, 16}, AttentionCase{64, 1, 8, 16, 128, 0, 0, SomeSinks(8)},
        AttentionCase{64, 1, 8, 16, 0, 0, 0, SomeSinks(8)}}) {
    SCOPED_TRACE(::testing::PrintToString(shape));
    const Sequences all(shape, {5000});
    const std::vector<Part> parts = {{0, 4000, 1000}};
    const std::vector<uint16_t> outputs = Prefill(all, parts);
    ExpectRight(all, parts, outputs, {0, 95, 96, 500, 999});
    const std::vector<Part> last = {{0, 4990, 10}};
    const size_t row = size_t{1} * shape.heads() * shape.head_dim;
    EXPECT_TRUE(SameBits(std::span<const uint16_t>(Prefill(all, last)),
                         std::span<const uint16_t>(outputs).last(10 * row)));
  }
}

// Sinks that weigh nothing change no bit, and those that outweigh all keys leave zeros. A NaN
// shows, and in its own head alone.
TEST_F(AttentionTest, SinksAtTheEdges) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> nothing = {-kInfinity, -1e30f, -300.0f, -1000.0f};
  const std::vector<float> everything = {300.0f, 1e30f, kInfinity};
  std::vector<float> sinks = nothing;
  sinks.insert(sinks.end(), everything.begin(), everything.end());
  sinks.push_back(std::numeric_limits<float>::quiet_NaN());
  const int heads = static_cast<int>(sinks.size());
  for (const auto& [head_dim, window] : {std::pair(64, 0), std::pair(64, 128), std::pair(128, 0),
                                         std::pair(128, 1), std::pair(256, 100)}) {
    SCOPED_TRACE(::testing::Message() << head_dim << " columns, window " << window);
    Sequences without(AttentionCase{head_dim, 1, heads, 16, window}, Lengths());
    Sequences with(AttentionCase{head_dim, 1, heads, 16, window, 0, 0, sinks}, Lengths());
    const std::vector<Part> parts = LastTokens(with);
    const std::vector<uint16_t> expected = Decode(without, parts, 1);
    const std::vector<uint16_t> one = Decode(with, parts, 1);
    const std::vector<uint16_t> split = Decode(with, parts, 3);
    const std::vector<uint16_t> prefilled = Prefill(with, parts);
    for (const auto* const results : {&one, &split, &prefilled}) {
      for (size_t row = 0; row < parts.size() * sinks.size(); ++row) {
        const auto head = static_cast<int>(row % sinks.size());
        const std::span<const uint16_t> actual =
            std::span<const uint16_t>(*results).subspan(row * head_dim, head_dim);
        const std::span<const uint16_t> same =
            std::span<const uint16_t>(expected).subspan(row * head_dim, head_dim);
        if (head < static_cast<int>(nothing.size())) {
          ASSERT_TRUE(SameBits(actual, same)) << "sink " << sinks[head];
          continue;
        }
        for (const uint16_t half : actual) {
          const float value = HalfToFloat(half);
          ASSERT_TRUE(std::isnan(sinks[head]) ? std::isnan(value) : value == 0)
              << value << ", sink " << sinks[head];
        }
      }
    }
  }
}

// Rows that neither LaunchRope nor decode attention makes, and heads of a size without kernels.
TEST_F(AttentionTest, RefusesWhatItHasNoKernelsFor) {
  const DecodeAttentionArgs decode = {
      .sequences = 1,
      .qkv = {.heads = 1, .kv_heads = 1, .head_dim = 64},
      // Decode makes no rows if queries see other tokens of the step.
      .sees_step = true};
  EXPECT_EQ(kernels().decode_attention(decode, traits(), stream()), cudaErrorInvalidValue);
  const PrefillAttentionArgs prefill = {.sequences = 1,
                                        .query_tiles = 1,
                                        .kv = {.block_tokens = 16, .kv_heads = 1, .head_dim = 48},
                                        .heads = 1};
  EXPECT_EQ(kernels().prefill_attention(prefill, traits(), stream()), cudaErrorInvalidValue);
}

// Decode makes its own rows, with the arithmetic of LaunchRope: partials, bias, norm, rotation, and
// values that are not finite; or it takes those that LaunchRope has made. The parameter is a number
// of sequences for each of the decode kernels.
class DecodeRowsTest : public AttentionTest, public ::testing::WithParamInterface<int> {
 protected:
  static constexpr int kSplits = 3;
  static constexpr int kLongest = 300;

  void ExpectRowsOfRope(const AttentionCase& shape, const QkvRule& rule);
};

void DecodeRowsTest::ExpectRowsOfRope(const AttentionCase& shape, const QkvRule& rule) {
  const int count = GetParam();
  std::vector<int> lengths = {1, 17, 64};
  for (int i = 3; i + 1 < count; ++i) lengths.push_back(1 + i * 37 % kLongest);
  lengths.push_back(kLongest);
  Sequences all(shape, lengths);
  const std::vector<Part> parts = LastTokens(all);
  const DeviceStep step(all, parts);
  const int rows = (shape.heads() + 2 * shape.kv_heads) * shape.head_dim;
  std::vector<float> products = RandomFloats(size_t{1} * kSplits * count * rows, 8);
  // A value of the last sequence overflows F16.
  products[(count - 1) * rows + (shape.heads() + shape.kv_heads) * shape.head_dim + 4] = 1e20f;
  const DeviceArray<float> device_products(products);
  const DeviceQuerySplit query_split(shape);
  const DeviceSinks sinks(shape);
  QkvProduct qkv = {.partials = device_products.data(),
                    .splits = kSplits,
                    .partials_tokens = count,
                    .query_split = rule.bias ? query_split.get() : nullptr,
                    .heads = shape.heads(),
                    .kv_heads = shape.kv_heads,
                    .head_dim = shape.head_dim};
  const QkvTables qkv_tables(qkv, rule, kLongest);
  qkv_tables.Apply(qkv);
  std::vector<TokenEntry> tokens;
  for (int s = 0; s < count; ++s) {
    tokens.push_back({.id = 0, .sequence = s, .position = lengths[s] - 1});
  }
  const DeviceArray<TokenEntry> device_tokens(tokens);
  StepTables tables = step.tables();
  tables.tokens = device_tokens.data();

  const DeviceArray<int32_t> rope_flags(std::vector<int32_t>(count + 1, 0));
  const DeviceArray<uint16_t> q(size_t{1} * count * shape.heads() * shape.head_dim);
  const DeviceArray<uint16_t> q_lo(q.size());
  const auto rope = [&](int32_t* flags) {
    ASSERT_EQ(LaunchRope({.step = tables,
                          .qkv = qkv,
                          .q = reinterpret_cast<__half*>(q.data()),
                          .q_lo = reinterpret_cast<__half*>(q_lo.data()),
                          .kv = all.view(),
                          .not_finite = flags,
                          .layer = kLayer,
                          .tokens = count},
                         stream()),
              cudaSuccess);
  };
  rope(rope_flags.data());
  const DeviceActivations prefilled(count, shape.heads() * shape.head_dim);
  ASSERT_EQ(kernels().prefill_attention({.step = tables,
                                         .sequences = step.entries(),
                                         .query_tiles = step.query_tiles(),
                                         .q = reinterpret_cast<const __half*>(q.data()),
                                         .q_lo = reinterpret_cast<const __half*>(q_lo.data()),
                                         .query_split = qkv.query_split,
                                         .rule = shape.rule(sinks.get()),
                                         .kv = all.view(),
                                         .layer = kLayer,
                                         .heads = shape.heads(),
                                         .out = prefilled.view()},
                                        traits(), stream()),
            cudaSuccess);
  const std::vector<uint16_t> expected = prefilled.Read();
  const std::vector<uint16_t> expected_cache = all.cache().Read();
  std::vector<int32_t> expected_flags(count + 1, 0);
  expected_flags[count - 1] = 1;
  EXPECT_EQ(rope_flags.Read(), expected_flags);

  for (const bool ready : {false, true}) {
    if (!ready && !DecodeMakesRows(qkv)) continue;
    for (const int splits : {1, 4}) {
      SCOPED_TRACE(::testing::Message() << (ready ? "ready rows, " : "") << splits << " splits");
      all.Forget(parts);
      const DeviceArray<int32_t> flags(std::vector<int32_t>(count + 1, 0));
      const DeviceArray<float> partials(size_t{1} * step.key_tiles() * shape.heads() *
                                        (shape.head_dim + 2));
      const DeviceArray<int32_t> counters(std::vector<int32_t>(step.entries() * shape.kv_heads, 0));
      const DeviceActivations decoded(count, shape.heads() * shape.head_dim);
      if (ready) rope(flags.data());
      ASSERT_EQ(kernels().decode_attention(
                    {.step = tables,
                     .sequences = step.entries(),
                     .qkv = qkv,
                     .q = ready ? reinterpret_cast<const __half*>(q.data()) : nullptr,
                     .q_lo = ready ? reinterpret_cast<const __half*>(q_lo.data()) : nullptr,
                     .rule = shape.rule(sinks.get()),
                     .kv = all.view(),
                     .not_finite = flags.data(),
                     .layer = kLayer,
                     .key_splits = splits,
                     .partials = partials.data(),
                     .counters = counters.data(),
                     .out = decoded.view()},
                    traits(), stream()),
                cudaSuccess);
      EXPECT_TRUE(SameBits(decoded.Read(), expected));
      EXPECT_TRUE(SameBits(all.cache().Read(), expected_cache));
      EXPECT_EQ(flags.Read(), expected_flags);
    }
  }
}

TEST_P(DecodeRowsTest, AreThoseThatRopeMakes) {
  constexpr RopePairs kNeighbours = RopePairs::kNeighbours;
  constexpr auto kHead = QkvRule::kHeadNorm;
  struct Case {
    AttentionCase shape;
    QkvRule rule = {};
  };
  for (const auto& [shape, rule] : {
           Case{{64, 2, 7, 16}},
           Case{{64, 2, 12, 16}},
           Case{{128, 2, 6, 16}},
           Case{{128, 2, 9, 16}},
           // As Llama 3, Qwen3, GLM-4, Ministral 3, Gemma 2 and 3, Phi-3, OLMo 2.
           Case{{128, 2, 4, 16}, {.bias = false, .pairs = kNeighbours}},
           Case{{128, 2, 5, 16}, {.bias = false, .norm = kHead}},
           Case{{128, 2, 16, 16}, {.pairs = kNeighbours, .rope_dims = 64}},
           Case{{128, 2, 12, 16}, {.bias = false, .pairs = kNeighbours, .temperature = 0.3f}},
           Case{{256, 2, 2, 16, 100, 5.0f}, {.bias = false}},
           Case{{256, 2, 4, 16, 128}, {.bias = false, .norm = kHead}},
           Case{{96, 2, 1, 16, 250}, {.bias = false}},
           Case{{64, 2, 2, 16}, {.bias = false, .rope_dims = 48}},
           Case{{128, 2, 2, 16}, {.bias = false, .norm = QkvRule::kProjectionNorm}},
           // As gpt-oss.
           Case{{64, 2, 8, 16, 128, 0, 0, SomeSinks(16)}},
           Case{{64, 2, 8, 16, 0, 0, 0, SomeSinks(16)}},
           // No RoPE, and heads whose last threads make nothing.
           Case{{80, 2, 3, 16}, {.rope_dims = 0, .norm = kHead}},
           Case{{16, 2, 2, 8, 16}, {.bias = false, .pairs = kNeighbours}},
           Case{{32, 2, 2, 16, 20}, {.norm = kHead, .temperature = 0.1f}},
       }) {
    SCOPED_TRACE(::testing::PrintToString(shape) + "; " + ::testing::PrintToString(rule));
    ExpectRowsOfRope(shape, rule);
  }
}

INSTANTIATE_TEST_SUITE_P(Sequences, DecodeRowsTest, ::testing::Values(4, 40, 140));

}  // namespace
}  // namespace orcd::cuda
