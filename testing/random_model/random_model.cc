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
#include "absl/strings/str_join.h"
#include "runtime/base/error.h"
#include "runtime/gguf/gguf_writer.h"
#include "runtime/gguf/split_path.h"
#include "testing/random_model/families.h"
#include "testing/random_model/model_shapes.h"
#include "testing/random_model/random_weights.h"
#include "testing/random_model/vocabulary.h"

namespace orcd {
namespace {

// Bytes of a tensor that one thread generates and writes at a time.
constexpr uint64_t kChunkBytes = 4 << 20;

enum class Content {
  kMatrix,
  // An embedding whose values are near 1.
  kLargeEmbedding,
  kNorm,
  kOutputNorm,
  kQkBias,
  kRouterBias,
  kSinks,
  // The rate of a delta net's decay, and the bias of its time step.
  kDecay,
  kTimeBias,
  // Other biases.
  kBias,
  kGiven
};

bool IsMatrix(Content content) {
  return content == Content::kMatrix || content == Content::kLargeEmbedding;
}

struct PlannedTensor {
  std::string name;
  TensorType type;
  Content content;
  std::vector<uint64_t> ne;
  // Only kGiven has them.
  std::vector<float> values = {};
};

// The rows of all experts together, if the tensor holds several.
uint64_t Rows(const PlannedTensor& tensor) {
  uint64_t rows = 1;
  for (size_t d = 1; d < tensor.ne.size(); ++d) rows *= tensor.ne[d];
  return rows;
}

uint64_t Bytes(const PlannedTensor& tensor) {
  const TensorTypeInfo& info = GetTensorTypeInfo(tensor.type);
  return tensor.ne[0] / info.block_weights * info.block_bytes * Rows(tensor);
}

// The tensors of a model, in the order in which llama.cpp writes them.
class TensorPlan {
 public:
  TensorPlan(const RandomModelShape& shape, const FileType& file_type)
      : shape_(shape), family_(FamilyOf(shape.architecture)), file_type_(file_type) {
    if (!shape.tied) AddMatrix("output.weight", MatrixRole::kOutput, 0, shape.hidden, shape.vocab);
    AddVector("output_norm.weight", Content::kOutputNorm, shape.hidden);
    for (RopeVector& vector : RopeVectorsOf(shape)) {
      AddVector(std::string(vector.name), Content::kGiven, static_cast<int>(vector.values.size()));
      tensors_.back().values = std::move(vector.values);
    }
    AddMatrix("token_embd.weight", MatrixRole::kTokenEmbd, 0, shape.hidden, shape.vocab);
    // Attention adds much the same to all tokens of a prompt. Beside small embeddings it would make
    // them all choose the same experts of many. A tied head needs small ones.
    constexpr int kManyExperts = 32;
    if (shape.experts.count >= kManyExperts && !shape.tied) {
      tensors_.back().content = Content::kLargeEmbedding;
    }
    for (int i = 0; i < shape.layers + shape.predict_layers; ++i) AddLayer(i);
  }

  std::vector<PlannedTensor> Take() { return std::move(tensors_); }

 private:
  // The tensors of a layer by name, as llama.cpp sorts them.
  void AddLayer(int i) {
    const bool is_post = family_.norms == LayerNorms::kPost;
    const bool is_sandwich = family_.norms == LayerNorms::kSandwich;
    if (shape_.IsRecurrent(i)) {
      AddDeltaInputs(i);
    } else {
      AddAttention(i);
    }
    AddFfn(i);
    if (i >= shape_.layers) {
      AddMatrix(Name(i, "nextn.eh_proj.weight"), MatrixRole::kFfnUp, i, 2 * shape_.hidden,
                shape_.hidden);
      AddNorm(i, "nextn.enorm", shape_.hidden);
      AddNorm(i, "nextn.hnorm", shape_.hidden);
      AddNorm(i, "nextn.shared_head_norm", shape_.hidden);
    }
    if (is_post || is_sandwich || family_.norms == LayerNorms::kPreAsPost) {
      AddNorm(i, "post_attention_norm", shape_.hidden);
    }
    if (is_post || is_sandwich) AddNorm(i, "post_ffw_norm", shape_.hidden);
    if (shape_.IsRecurrent(i)) AddDeltaNet(i);
  }

  void AddDeltaInputs(int i) {
    const RandomDeltaNets& delta = shape_.delta;
    const int values = delta.value_heads * delta.head_dim;
    AddMatrix(Name(i, "attn_gate.weight"), MatrixRole::kDelta, i, shape_.hidden, values);
    AddNorm(i, "attn_norm", shape_.hidden);
    AddMatrix(Name(i, "attn_qkv.weight"), MatrixRole::kAttnQkv, i, shape_.hidden,
              2 * delta.key_heads * delta.head_dim + values);
  }

  void AddDeltaNet(int i) {
    constexpr int kTaps = 4;
    const RandomDeltaNets& delta = shape_.delta;
    const int values = delta.value_heads * delta.head_dim;
    AddVector(Name(i, "ssm_a"), Content::kDecay, delta.value_heads);
    const auto factor = [&](std::string_view name, MatrixRole role, int rows) {
      AddMatrix(Name(i, name), role, i, shape_.hidden, rows);
    };
    if (family_.fused_factors) {
      factor("ssm_ba.weight", MatrixRole::kDelta, 2 * delta.value_heads);
    } else {
      factor("ssm_alpha.weight", MatrixRole::kDeltaFactor, delta.value_heads);
      factor("ssm_beta.weight", MatrixRole::kDeltaFactor, delta.value_heads);
    }
    AddMatrix(Name(i, "ssm_conv1d.weight"), MatrixRole::kConvolution, i, kTaps,
              2 * delta.key_heads * delta.head_dim + values);
    AddVector(Name(i, "ssm_dt.bias"), Content::kTimeBias, delta.value_heads);
    AddNorm(i, "ssm_norm", delta.head_dim);
    AddMatrix(Name(i, "ssm_out.weight"), MatrixRole::kDelta, i, values, shape_.hidden);
  }

  void AddAttention(int i) {
    const int hidden = shape_.hidden;
    const int q_size = shape_.heads * shape_.head_dim;
    const int kv_size = shape_.kv_heads * shape_.head_dim;
    const auto matrix = [&](std::string_view part, MatrixRole role, int cols, int rows) {
      AddMatrix(absl::StrFormat("blk.%d.%s.weight", i, part), role, i, cols, rows);
    };
    const auto bias = [&](std::string_view part, bool there, Content content, int size) {
      if (there) AddVector(absl::StrFormat("blk.%d.%s.bias", i, part), content, size);
    };
    const auto qk_norm = [&](std::string_view part, int size) {
      if (family_.qk_norms == QkNorms::kNone) return;
      AddNorm(i, part, family_.qk_norms == QkNorms::kProjection ? size : shape_.head_dim);
    };
    if (!family_.fused_qkv) {
      bias("attn_k", family_.qkv_biases, Content::kQkBias, kv_size);
      matrix("attn_k", MatrixRole::kAttnK, hidden, kv_size);
    }
    qk_norm("attn_k_norm", kv_size);
    if (family_.norms != LayerNorms::kPost) AddNorm(i, "attn_norm", hidden);
    bias("attn_output", family_.gpt_oss_vectors, Content::kBias, hidden);
    matrix("attn_output", MatrixRole::kAttnOutput, q_size, hidden);
    if (!family_.fused_qkv) {
      bias("attn_q", family_.qkv_biases, Content::kQkBias, q_size);
      matrix("attn_q", MatrixRole::kAttnQ, hidden, family_.gated_attention ? 2 * q_size : q_size);
    }
    qk_norm("attn_q_norm", q_size);
    if (family_.fused_qkv) {
      matrix("attn_qkv", MatrixRole::kAttnQkv, hidden, q_size + 2 * kv_size);
    }
    if (family_.gpt_oss_vectors) {
      AddVector(Name(i, "attn_sinks.weight"), Content::kSinks, shape_.heads);
    }
    if (!family_.fused_qkv) {
      bias("attn_v", family_.qkv_biases, Content::kBias, kv_size);
      matrix("attn_v", MatrixRole::kAttnV, hidden, kv_size);
    }
  }

  void AddFfn(int i) {
    const int hidden = shape_.hidden;
    const bool has_norm =
        family_.norms == LayerNorms::kPre || family_.norms == LayerNorms::kSandwich;
    if (shape_.experts.count > 0 && i >= shape_.experts.dense_layers) return AddExperts(i);
    AddMatrix(Name(i, "ffn_down.weight"), MatrixRole::kFfnDown, i, shape_.ffn, hidden);
    if (!family_.fused_gate) {
      AddMatrix(Name(i, "ffn_gate.weight"), MatrixRole::kFfnGate, i, hidden, shape_.ffn);
    }
    if (has_norm) AddNorm(i, "ffn_norm", hidden);
    AddMatrix(Name(i, "ffn_up.weight"), MatrixRole::kFfnUp, i, hidden,
              family_.fused_gate ? 2 * shape_.ffn : shape_.ffn);
  }

  void AddExperts(int i) {
    const RandomExperts& experts = shape_.experts;
    const int hidden = shape_.hidden;
    const auto each = [&](std::string_view part, MatrixRole role, int cols, int rows) {
      if (family_.gpt_oss_vectors) {
        AddVector(absl::StrFormat("blk.%d.%s.bias", i, part), Content::kBias, rows);
        tensors_.back().ne.push_back(experts.count);
      }
      AddMatrix(absl::StrFormat("blk.%d.%s.weight", i, part), role, i, cols, rows);
      tensors_.back().ne.push_back(experts.count);
    };
    const auto shared = [&](std::string_view part, MatrixRole role, int cols, int rows) {
      if (experts.shared_ffn == 0) return;
      AddMatrix(absl::StrFormat("blk.%d.%s.weight", i, part), role, i, cols, rows);
    };
    if (family_.selection_bias) {
      AddVector(Name(i, "exp_probs_b.bias"), Content::kBias, experts.count);
    }
    each("ffn_down_exps", MatrixRole::kExpertDown, experts.ffn, hidden);
    shared("ffn_down_shexp", MatrixRole::kFfnDown, experts.shared_ffn, hidden);
    each("ffn_gate_exps", MatrixRole::kExpertGate, hidden, experts.ffn);
    if (family_.gpt_oss_vectors) {
      AddVector(Name(i, "ffn_gate_inp.bias"), Content::kRouterBias, experts.count);
    }
    AddMatrix(Name(i, "ffn_gate_inp.weight"), MatrixRole::kRouter, i, hidden, experts.count);
    if (family_.shared_router) {
      AddVector(Name(i, "ffn_gate_inp_shexp.weight"), Content::kBias, hidden);
    }
    shared("ffn_gate_shexp", MatrixRole::kFfnGate, hidden, experts.shared_ffn);
    if (family_.norms == LayerNorms::kPre) AddNorm(i, "ffn_norm", hidden);
    each("ffn_up_exps", MatrixRole::kExpertUp, hidden, experts.ffn);
    shared("ffn_up_shexp", MatrixRole::kFfnUp, hidden, experts.shared_ffn);
  }

  static std::string Name(int layer, std::string_view name) {
    return absl::StrFormat("blk.%d.%s", layer, name);
  }
  void AddNorm(int layer, std::string_view part, int size) {
    AddVector(absl::StrFormat("blk.%d.%s.weight", layer, part), Content::kNorm, size);
  }
  void AddMatrix(std::string name, MatrixRole role, int layer, int cols, int rows) {
    tensors_.push_back({std::move(name),
                        ChooseTensorType(file_type_, shape_, role, layer, cols),
                        Content::kMatrix,
                        {static_cast<uint64_t>(cols), static_cast<uint64_t>(rows)}});
  }
  void AddVector(std::string name, Content content, int size) {
    tensors_.push_back({std::move(name), TensorType::kF32, content, {static_cast<uint64_t>(size)}});
  }

  const RandomModelShape& shape_;
  const Family& family_;
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
      case Content::kRouterBias:
        value = 0.3f * normal;
        break;
      case Content::kSinks:
        value = normal;
        break;
      case Content::kDecay:
        value = -random.Uniform(0.5f, 8);
        break;
      case Content::kTimeBias:
        value = normal - 3;
        break;
      case Content::kBias:
      case Content::kMatrix:
      case Content::kLargeEmbedding:
      case Content::kGiven:
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

void SetMetadata(const RandomModelShape& shape, const FileType& file_type,
                 const TokenizerMetadata& vocabulary, GgufWriter& writer) {
  writer.SetString("general.architecture", shape.architecture);
  writer.SetString("general.type", "model");
  const std::string_view name = FamilyOf(shape.architecture).model_name;
  writer.SetString(
      "general.name",
      absl::StrFormat("random-%s-%s", name.empty() ? shape.architecture : name, shape.size));
  SetShapeKeys(shape, writer);
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
    // Vectors are written whole.
    const uint64_t rows = IsMatrix(tensors[i].content) ? Rows(tensors[i]) : 1;
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
  if (!IsMatrix(tensor.content)) {
    std::vector<float> values = tensor.values;
    if (tensor.content != Content::kGiven) {
      values.resize(tensor.ne[0] * Rows(tensor));
      Random random(seed, tensor.name, 0);
      FillVector(tensor.content, random, values);
    }
    return file.Write(chunk.index, 0, std::as_bytes(std::span<const float>(values)));
  }
  const uint64_t row_bytes = Bytes(tensor) / Rows(tensor);
  // Keeps the magnitude of activations at 1 through any number of layers.
  const float sigma = tensor.content == Content::kLargeEmbedding
                          ? 1.0f
                          : 1.0f / std::sqrt(static_cast<float>(tensor.ne[0]));
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

absl::StatusOr<RandomModelShape> GetShape(const RandomModelOptions& options) {
  if (const auto* shape = FindModelShape(options.architecture, options.size)) return *shape;
  std::vector<std::string> sizes;
  for (const RandomModelShape& shape : AllModelShapes()) {
    if (shape.architecture == options.architecture) sizes.emplace_back(shape.size);
  }
  if (sizes.empty()) {
    return InvalidField(
        "architecture",
        absl::StrFormat("there is no %s; architectures are %s", options.architecture,
                        absl::StrJoin(ModelShapeArchitectures(), ", ")));
  }
  return InvalidField("size", absl::StrFormat("there is no %s of %s; sizes are %s", options.size,
                                              options.architecture, absl::StrJoin(sizes, ", ")));
}

absl::StatusOr<const FileType*> GetFileType(const RandomModelOptions& options) {
  if (const FileType* type = FindFileType(options.type)) return type;
  std::vector<std::string> names;
  for (const FileType& type : AllFileTypes()) names.emplace_back(type.name);
  return InvalidField("type", absl::StrFormat("there is no %s; types are %s", options.type,
                                              absl::StrJoin(names, ", ")));
}

}  // namespace

absl::StatusOr<std::string> WriteRandomModel(const RandomModelOptions& options,
                                             const std::string& path) {
  ORCD_ASSIGN_OR_RETURN(RandomModelShape shape, GetShape(options));
  ORCD_ASSIGN_OR_RETURN(const FileType* const file_type, GetFileType(options));
  shape.layers = options.layers.value_or(shape.layers);
  shape.predict_layers = options.predict_layers.value_or(shape.predict_layers);
  if (shape.predict_layers > 0 && !FamilyOf(shape.architecture).predicts) {
    return InvalidField("predict_layers",
                        absl::StrFormat("is %d; files of %s hold no layers that predict",
                                        shape.predict_layers, options.architecture));
  }
  shape.tied = options.tied.value_or(shape.tied);
  shape.context = static_cast<int>(options.context_length.value_or(shape.context));
  shape.window = options.window.value_or(shape.window);
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
    if (no == 0) SetMetadata(shape, *file_type, vocabulary, writer);
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
