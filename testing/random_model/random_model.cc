#include "testing/random_model/random_model.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "runtime/base/error.h"
#include "runtime/gguf/gguf_writer.h"
#include "runtime/gguf/split_path.h"
#include "testing/random_model/qwen2_shapes.h"
#include "testing/random_model/random_weights.h"
#include "testing/random_model/vocabulary.h"

namespace orcd {
namespace {

// Bytes of a tensor that one thread generates and writes at a time.
constexpr uint64_t kChunkBytes = 4 << 20;

enum class Content { kMatrix, kNorm, kOutputNorm, kQkBias, kVBias };

struct PlannedTensor {
  std::string name;
  TensorType type;
  Content content;
  std::vector<uint64_t> ne;
};

uint64_t Bytes(const PlannedTensor& tensor) {
  const TensorTypeInfo& info = GetTensorTypeInfo(tensor.type);
  const uint64_t rows = tensor.ne.size() > 1 ? tensor.ne[1] : 1;
  return tensor.ne[0] / info.block_weights * info.block_bytes * rows;
}

// The tensors of a model, in the order in which llama.cpp writes them.
class TensorPlan {
 public:
  TensorPlan(const Qwen2Shape& shape, const FileType& file_type)
      : shape_(shape), file_type_(file_type) {
    const int q_size = shape.heads * shape.head_dim;
    const int kv_size = shape.kv_heads * shape.head_dim;
    if (!shape.tied) AddMatrix("output.weight", MatrixRole::kOutput, 0, shape.hidden, shape.vocab);
    AddVector("output_norm.weight", Content::kOutputNorm, shape.hidden);
    AddMatrix("token_embd.weight", MatrixRole::kTokenEmbd, 0, shape.hidden, shape.vocab);
    for (int i = 0; i < shape.layers; ++i) {
      const auto name = [i](std::string_view part) {
        return absl::StrFormat("blk.%d.%s", i, part);
      };
      AddVector(name("attn_k.bias"), Content::kQkBias, kv_size);
      AddMatrix(name("attn_k.weight"), MatrixRole::kAttnK, i, shape.hidden, kv_size);
      AddVector(name("attn_norm.weight"), Content::kNorm, shape.hidden);
      AddMatrix(name("attn_output.weight"), MatrixRole::kAttnOutput, i, q_size, shape.hidden);
      AddVector(name("attn_q.bias"), Content::kQkBias, q_size);
      AddMatrix(name("attn_q.weight"), MatrixRole::kAttnQ, i, shape.hidden, q_size);
      AddVector(name("attn_v.bias"), Content::kVBias, kv_size);
      AddMatrix(name("attn_v.weight"), MatrixRole::kAttnV, i, shape.hidden, kv_size);
      AddMatrix(name("ffn_down.weight"), MatrixRole::kFfnDown, i, shape.ffn, shape.hidden);
      AddMatrix(name("ffn_gate.weight"), MatrixRole::kFfnGate, i, shape.hidden, shape.ffn);
      AddVector(name("ffn_norm.weight"), Content::kNorm, shape.hidden);
      AddMatrix(name("ffn_up.weight"), MatrixRole::kFfnUp, i, shape.hidden, shape.ffn);
    }
  }

  std::vector<PlannedTensor> Take() { return std::move(tensors_); }

 private:
  void AddMatrix(std::string name, MatrixRole role, int layer, int cols, int rows) {
    tensors_.push_back({std::move(name),
                        ChooseTensorType(file_type_, shape_, role, layer, cols),
                        Content::kMatrix,
                        {static_cast<uint64_t>(cols), static_cast<uint64_t>(rows)}});
  }
  void AddVector(std::string name, Content content, int size) {
    tensors_.push_back({std::move(name), TensorType::kF32, content, {static_cast<uint64_t>(size)}});
  }

  const Qwen2Shape& shape_;
  const FileType& file_type_;
  std::vector<PlannedTensor> tensors_;
};

// Fills norms and biases with values like those of real models: norms near a mean far from 0,
// biases of queries and keys with a few large outliers.
void FillVector(Content content, Random& random, std::span<float> values) {
  for (float& value : values) {
    const float normal = random.Normal();
    const bool outlier = random.Uniform(0, 1) < 0.02f;
    switch (content) {
      case Content::kNorm:
        value = 1.0f + 0.1f * normal;
        break;
      case Content::kOutputNorm:
        value = 3.0f + 0.3f * normal;
        break;
      case Content::kQkBias:
        value = outlier ? std::copysign(10.0f + 8.0f * std::abs(normal), normal) : 0.3f * normal;
        break;
      case Content::kVBias:
      case Content::kMatrix:
        value = 0.05f * normal;
        break;
    }
  }
}

void SetTokenizer(const TokenizerMetadata& vocabulary, GgufWriter& writer) {
  constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
  constexpr std::string_view kTypesKey = "tokenizer.ggml.token_type";
  constexpr std::string_view kScoresKey = "tokenizer.ggml.scores";
  const bool is_made_up = vocabulary.source == nullptr;
  if (is_made_up) {
    writer.SetString("tokenizer.ggml.model", "gpt2");
    writer.SetString("tokenizer.ggml.pre", "qwen2");
  }
  writer.SetStrings(kTokensKey, vocabulary.tokens);
  writer.SetI32s(kTypesKey, vocabulary.types);
  if (!vocabulary.scores.empty()) writer.SetF32s(kScoresKey, vocabulary.scores);
  if (is_made_up) {
    writer.SetStrings("tokenizer.ggml.merges", vocabulary.merges);
    writer.SetU32("tokenizer.ggml.eos_token_id", vocabulary.eos);
    writer.SetU32("tokenizer.ggml.padding_token_id", vocabulary.pad);
    writer.SetU32("tokenizer.ggml.bos_token_id", vocabulary.bos);
    writer.SetBool("tokenizer.ggml.add_bos_token", false);
    return;
  }
  for (const std::string_view key : vocabulary.source->keys()) {
    const bool is_other = key.starts_with("tokenizer.") && key != kTokensKey && key != kTypesKey &&
                          key != kScoresKey && key != "tokenizer.chat_template";
    if (is_other) writer.Set(key, *vocabulary.source->Find(key));
  }
}

void SetMetadata(const RandomModelOptions& options, const Qwen2Shape& shape,
                 const FileType& file_type, const TokenizerMetadata& vocabulary,
                 GgufWriter& writer) {
  writer.SetString("general.architecture", "qwen2");
  writer.SetString("general.type", "model");
  writer.SetString("general.name", absl::StrFormat("random-qwen2.5-%s", shape.size));
  writer.SetU32("qwen2.block_count", shape.layers);
  writer.SetU32("qwen2.context_length", options.context_length.value_or(32'768));
  writer.SetU32("qwen2.embedding_length", shape.hidden);
  writer.SetU32("qwen2.feed_forward_length", shape.ffn);
  writer.SetU32("qwen2.attention.head_count", shape.heads);
  writer.SetU32("qwen2.attention.head_count_kv", shape.kv_heads);
  writer.SetF32("qwen2.rope.freq_base", 1e6f);
  writer.SetF32("qwen2.attention.layer_norm_rms_epsilon", 1e-6f);
  writer.SetU32("general.file_type", file_type.id);
  SetTokenizer(vocabulary, writer);
  if (!vocabulary.chat_template.empty()) {
    writer.SetString("tokenizer.chat_template", vocabulary.chat_template);
  }
  writer.SetU32("general.quantization_version", 2);
}

// Number of `tensors`, in order, in each of `parts` files of about the same size.
std::vector<size_t> SplitEvenly(std::span<const PlannedTensor> tensors, int parts) {
  uint64_t total = 0;
  for (const PlannedTensor& tensor : tensors) total += Bytes(tensor);
  std::vector<size_t> counts(parts, 0);
  uint64_t before = 0;
  size_t part = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    // Moves on to the next part if this one has its share, or if each later part needs one of the
    // remaining tensors.
    const bool full = before >= total / parts * (part + 1);
    const bool spare = counts[part] > 0 && part + 1 < counts.size();
    if (spare && (full || tensors.size() - i < counts.size() - part)) ++part;
    ++counts[part];
    before += Bytes(tensors[i]);
  }
  return counts;
}

// A run of rows of one tensor.
struct Chunk {
  const PlannedTensor* tensor;
  size_t index;  // of the tensor in the file
  uint64_t first_row;
  uint64_t rows;
};

std::vector<Chunk> CutIntoChunks(std::span<const PlannedTensor> tensors) {
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t rows = tensors[i].ne.size() > 1 ? tensors[i].ne[1] : 1;
    const uint64_t row_bytes = Bytes(tensors[i]) / rows;
    const uint64_t step = std::max<uint64_t>(1, kChunkBytes / row_bytes);
    for (uint64_t row = 0; row < rows; row += step) {
      chunks.push_back({&tensors[i], i, row, std::min(step, rows - row)});
    }
  }
  return chunks;
}

absl::Status WriteChunk(const GgufFile& file, const Chunk& chunk, uint64_t seed,
                        std::vector<std::byte>& buffer) {
  const PlannedTensor& tensor = *chunk.tensor;
  if (tensor.content != Content::kMatrix) {
    std::vector<float> values(tensor.ne[0]);
    Random random(seed, tensor.name, 0);
    FillVector(tensor.content, random, values);
    return file.Write(chunk.index, 0, std::as_bytes(std::span<const float>(values)));
  }
  const uint64_t row_bytes = Bytes(tensor) / tensor.ne[1];
  // Keeps the magnitude of activations at 1 through any number of layers.
  const float sigma = 1.0f / std::sqrt(static_cast<float>(tensor.ne[0]));
  buffer.resize(chunk.rows * row_bytes);
  for (uint64_t i = 0; i < chunk.rows; ++i) {
    Random random(seed, tensor.name, chunk.first_row + i);
    FillRandomWeights(tensor.type, sigma, random,
                      std::span(buffer).subspan(i * row_bytes, row_bytes));
  }
  return file.Write(chunk.index, chunk.first_row * row_bytes, buffer);
}

absl::Status WriteTensors(const GgufFile& file, std::span<const PlannedTensor> tensors,
                          uint64_t seed, int threads) {
  const std::vector<Chunk> chunks = CutIntoChunks(tensors);
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  absl::Status failure;  // guarded by mutex
  const auto work = [&] {
    std::vector<std::byte> buffer;
    for (size_t i = next++; i < chunks.size(); i = next++) {
      const absl::Status status = WriteChunk(file, chunks[i], seed, buffer);
      if (status.ok()) continue;
      next = chunks.size();
      const std::lock_guard lock(mutex);
      failure.Update(status);
      return;
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < std::min<int>(threads, chunks.size()); ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  return failure;
}

absl::StatusOr<TokenizerMetadata> GetVocabulary(const RandomModelOptions& options, int size) {
  if (options.vocab_from.empty()) return MakeVocabulary(size);
  return ReadVocabulary(options.vocab_from, size);
}

template <typename Range>
std::string Names(const Range& range,
                  std::string_view (*name)(const typename Range::element_type&)) {
  std::string names;
  for (const auto& element : range) {
    absl::StrAppendFormat(&names, "%s%s", names.empty() ? "" : ", ", name(element));
  }
  return names;
}

}  // namespace

absl::StatusOr<std::string> WriteRandomModel(const RandomModelOptions& options,
                                             const std::string& path) {
  const Qwen2Shape* known_shape = FindQwen2Shape(options.size);
  if (known_shape == nullptr) {
    return InvalidField("size", absl::StrFormat("there is no %s; sizes are %s", options.size,
                                                Names(AllQwen2Shapes(),
                                                      [](const Qwen2Shape& s) { return s.size; })));
  }
  const FileType* file_type = FindFileType(options.type);
  if (file_type == nullptr) {
    return InvalidField(
        "type", absl::StrFormat("there is no %s; types are %s", options.type,
                                Names(AllFileTypes(), [](const FileType& t) { return t.name; })));
  }
  Qwen2Shape shape = *known_shape;
  shape.layers = options.layers.value_or(shape.layers);
  shape.tied = options.tied.value_or(shape.tied);
  ORCD_ASSIGN_OR_RETURN(TokenizerMetadata vocabulary, GetVocabulary(options, shape.vocab));
  shape.vocab = static_cast<int>(vocabulary.tokens.size());
  if (options.chat_template) vocabulary.chat_template = *options.chat_template;

  const std::vector<PlannedTensor> tensors = TensorPlan(shape, *file_type).Take();
  if (options.split < 1 || static_cast<size_t>(options.split) > tensors.size()) {
    return InvalidField("split", absl::StrFormat("is %d; the model has %d tensors, so 1 to %d",
                                                 options.split, tensors.size(), tensors.size()));
  }
  const int threads = options.threads > 0
                          ? options.threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::string prefix = path;
  if (prefix.ends_with(".gguf")) prefix.resize(prefix.size() - 5);
  const auto part_path = [&](int no) {
    return options.split == 1 ? path : SplitPath(prefix, no, options.split);
  };
  const std::vector<size_t> counts = SplitEvenly(tensors, options.split);
  size_t first = 0;
  for (int no = 0; no < options.split; ++no) {
    const std::span<const PlannedTensor> part = std::span(tensors).subspan(first, counts[no]);
    first += counts[no];
    GgufWriter writer;
    if (no == 0) SetMetadata(options, shape, *file_type, vocabulary, writer);
    if (options.split > 1) {
      writer.SetU16("split.no", static_cast<uint16_t>(no));
      writer.SetU16("split.count", static_cast<uint16_t>(options.split));
      writer.SetI32("split.tensors.count", static_cast<int32_t>(tensors.size()));
    }
    for (const PlannedTensor& tensor : part) writer.AddTensor(tensor.name, tensor.type, tensor.ne);
    ORCD_ASSIGN_OR_RETURN(GgufFile file, writer.CreateFile(part_path(no)));
    ORCD_RETURN_IF_ERROR(WriteTensors(file, part, options.seed, threads));
    ORCD_RETURN_IF_ERROR(file.Finish());
  }
  return part_path(0);
}

}  // namespace orcd
