#include "runtime/model/model.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/base/error.h"
#include "runtime/base/steady_time.h"
#include "runtime/model/architectures.h"
#include "runtime/model/load_cancelled.h"
#include "runtime/model/model_error.h"
#include "runtime/model/verify.h"

namespace orcd {
namespace {

ChatTemplate ReadChatTemplate(const GgufReader& gguf, const Tokenizer& tokenizer) {
  const auto text = [&](int32_t id) { return std::string(tokenizer.TokenText(id)); };
  const SpecialTokenTexts special = {.bos = text(tokenizer.bos_id()),
                                     .eos = text(tokenizer.eos_id()),
                                     .unk = text(tokenizer.unk_id()),
                                     .pad = text(tokenizer.pad_id())};
  // A value of another type counts as none.
  const auto source = [&](std::string_view key) { return gguf.GetString(key).value_or(""); };
  return ChatTemplate::Parse(source(kChatTemplateKey), special, source(kToolUseTemplateKey));
}

std::string DescribeQuantization(const GgufReader& gguf) {
  std::map<TensorType, int> counts;
  for (const TensorView& tensor : gguf.tensors()) {
    // The biases of experts have two dimensions.
    if (tensor.n_dims >= 2 && !tensor.name.ends_with(".bias")) ++counts[tensor.type];
  }
  std::vector<std::pair<TensorType, int>> types(counts.begin(), counts.end());
  std::ranges::stable_sort(types, std::greater<>(), &std::pair<TensorType, int>::second);
  return absl::StrJoin(types, ", ", [](std::string* out, const auto& type) {
    const std::string_view name = GetTensorTypeInfo(type.first).name;
    absl::StrAppendFormat(out, "%s %d", name, type.second);
  });
}

// Keeps the time of the last progress, in nanoseconds.
class ProgressTime : public NullLoadObserver {
 public:
  explicit ProgressTime(std::atomic<int64_t>& at) : at_(at) {}
  void OnProgress(LoadStage, uint64_t, uint64_t) override {
    at_.store(absl::ToUnixNanos(SteadyNow()), std::memory_order_relaxed);
  }

 private:
  std::atomic<int64_t>& at_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Model>> Model::Load(const std::string& path,
                                                         const ModelLoadOptions& options,
                                                         LoadObserver& observer) {
  ORCD_RETURN_IF_ERROR(CheckSha256Text(options.expected_sha256));
  observer.OnProgress(LoadStage::kOpen, 0, 0);
  std::shared_ptr<Model> model(new Model);
  ORCD_ASSIGN_OR_RETURN(model->gguf_, GgufReader::Open(path));
  if (observer.cancelled()) return LoadCancelled();
  if (absl::Status status = model->ReadMetadata(options); !status.ok()) {
    // The metadata may look wrong because the file was cut short while it was read.
    ORCD_RETURN_IF_ERROR(model->gguf_->CheckIntact());
    return Annotate(status, path);
  }
  if (observer.cancelled()) return LoadCancelled();
  const VerifyOptions verify = {.expected_sha256 = options.expected_sha256,
                                .threads = options.threads};
  auto digest = VerifyFiles(*model->gguf_, verify, observer);
  if (!digest.ok()) {
    return GetErrorDetails(digest.status()).reason == "WEIGHTS_NOT_FINITE"
               ? Annotate(digest.status(), path)
               : digest.status();
  }
  model->digest_ = *std::move(digest);
  return model;
}

absl::Status Model::CheckIntact(int threads) const {
  absl::Status status = gguf_->CheckIntact();
  if (status.ok() || !gguf_->TouchedAt()) return status;
  std::lock_guard lock(recheck_mutex_);
  // Another thread may have checked the file meanwhile.
  const std::optional<std::vector<int64_t>> times = gguf_->TouchedAt();
  if (!times) return gguf_->CheckIntact();
  ProgressTime progress(read_again_at_);
  // If the bytes differ, the file stays wrong, whatever its modification time is by now.
  if (DigestFiles(*gguf_, threads, progress) != digest_) return status;
  gguf_->AcceptTouch(*times);
  return absl::OkStatus();
}

std::vector<std::string> Model::Warnings() const {
  std::vector<std::string> warnings = sampling_defaults_.warnings;
  const auto kind = gguf_->GetString(kTokenizerModelKey);
  const auto pre = gguf_->GetString(kPreTokenizerKey);
  if (kind.ok() && *kind == "gpt2") {
    const auto row = FindPreTokenizer(pre.ok() ? *pre : "");
    if (row.ok() && (*row)->is_guess) {
      warnings.push_back(absl::StrCat(std::string(kPreTokenizerKey),
                                      " does not say how the model's texts are split into words, "
                                      "so answers may be worse than they should be; convert the "
                                      "model again"));
    }
  }
  for (const std::string& warning : chat_template_.warnings()) {
    warnings.push_back(chat_template_.supported()
                           ? warning
                           : absl::StrCat(warning, "; chat requests are refused"));
  }
  return warnings;
}

absl::Status Model::ReadMetadata(const ModelLoadOptions& options) {
  ORCD_ASSIGN_OR_RETURN(spec_, ReadModelSpec(*gguf_, options.rope_scaling));
  ORCD_ASSIGN_OR_RETURN(weights_, ModelWeights::FromGguf(*gguf_, spec_));
  for (const TensorView& tensor : gguf_->tensors()) parameters_ += tensor.element_count();
  quantization_ = DescribeQuantization(*gguf_);
  if (options.sampling_defaults) sampling_defaults_ = ReadSamplingDefaults(*gguf_);
  if (!options.with_text) return absl::OkStatus();
  ORCD_ASSIGN_OR_RETURN(tokenizer_, Tokenizer::FromGguf(*gguf_));
  if (tokenizer_->vocab_size() != spec_.vocab) {
    return InvalidModel("tokenizer.ggml.tokens",
                        absl::StrFormat("the tokenizer has %d tokens and the model %d; they have "
                                        "to be equal, convert the model again",
                                        tokenizer_->vocab_size(), spec_.vocab));
  }
  chat_template_ = ReadChatTemplate(*gguf_, *tokenizer_);
  return absl::OkStatus();
}

}  // namespace orcd
