#include "worker/api/orcd/request_builder.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/base/error.h"
#include "runtime/text/thinking.h"

namespace orcd {
namespace {

constexpr size_t kMaxRequestIdLength = 128;
// Longest part of a numeric identity that an error quotes.
constexpr size_t kMaxNumericIdentity = 64;

uint64_t Random64() {
  uint64_t value = 0;
  if (getentropy(&value, sizeof(value)) == 0) return value;
  // Each one asks what the processor can do, which takes 20 µs in a virtual machine.
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

absl::Status CheckTopLogprobs(const char* field, uint32_t count) {
  if (count <= kMaxTopLogprobs) return absl::OkStatus();
  return InvalidField(
      field, absl::StrCat(count, " is more than the ", kMaxTopLogprobs, " that are allowed"));
}

// Other protocols than orcd.v1 name no token.
absl::Status CheckStart(const ConstraintSpec& spec, int vocab) {
  const auto* after = std::get_if<StartAfterToken>(&spec.start);
  if (after == nullptr || (after->token >= 0 && after->token < vocab)) return absl::OkStatus();
  return InvalidField("constraint.after_token",
                      absl::StrCat(static_cast<uint32_t>(after->token),
                                   " is outside the vocabulary of ", vocab, " tokens"));
}

bool PromptEndsInThinking(const Tokenizer& tokenizer, const Prompt& prompt) {
  if (const auto* text = std::get_if<TextPrompt>(&prompt)) {
    return text->parse_special && EndsInThinking(tokenizer, text->text);
  }
  const auto* ids = std::get_if<std::vector<int32_t>>(&prompt);
  return ids != nullptr && EndsInThinking(tokenizer, *ids);
}

}  // namespace

int32_t Saturate(uint32_t count) {
  return static_cast<int32_t>(std::min<uint32_t>(count, std::numeric_limits<int32_t>::max()));
}

RequestBuilder::RequestBuilder(const RequestFields& fields) {
  request_.fields = &fields;
  request_.sampling.seed = Random64();
}

void RequestBuilder::SetId(std::string id) {
  if (!id.empty()) error_.Update(CheckRequestId(id));
  request_.id = std::move(id);
}

void RequestBuilder::SetTopK(uint32_t count) { request_.sampling.top_k = Saturate(count); }
void RequestBuilder::SetSamples(uint32_t count) { request_.samples = Saturate(count); }
void RequestBuilder::SetMinTokens(uint32_t count) { request_.stop.min_tokens = Saturate(count); }

void RequestBuilder::SetMaxTokens(uint32_t count) {
  request_.stop.max_tokens = Saturate(count);
  if (count > 0) return;
  error_.Update(
      InvalidField(request_.fields->max_tokens,
                   "is 0; ask for 1 or more, or leave it out for what the context leaves"));
}

void RequestBuilder::SetLogprobs(uint32_t count) {
  request_.sampling.logprobs = Saturate(count);
  error_.Update(CheckTopLogprobs("logprobs", count));
}

void RequestBuilder::SetPromptLogprobs(uint32_t count) {
  request_.prompt_logprobs = Saturate(count);
  error_.Update(CheckTopLogprobs("prompt_logprobs", count));
}

void RequestBuilder::SetConstraint(absl::StatusOr<ConstraintSpec> spec, ConstraintStart start) {
  error_.Update(spec.status());
  if (!spec.ok()) return;
  constraint_ = *std::move(spec);
  constraint_start_ = start;
}

absl::Status RequestBuilder::CompileConstraint(const Model& model, ConstraintCompiler& compiler) {
  if (!constraint_) return absl::OkStatus();
  ORCD_RETURN_IF_ERROR(CheckStart(*constraint_, model.spec().vocab));
  if (constraint_start_ == ConstraintStart::kAfterThinking && prompt_.ok() &&
      PromptEndsInThinking(model.tokenizer(), *prompt_)) {
    constraint_->start = StartAfterToken{ThinkingEndId(model.tokenizer())};
  }
  ORCD_ASSIGN_OR_RETURN(request_.constraint, compiler.Compile(*constraint_, request_.samples));
  request_.sampling.masked_logprobs = true;
  return absl::OkStatus();
}

absl::Status RequestBuilder::CheckParameters(const Model& model) {
  ORCD_RETURN_IF_ERROR(error_);
  if (request_.id.empty()) request_.id = MakeRequestId();
  if (over_defaults_) {
    model.sampling_defaults().ApplyTo(request_.sampling);
    over_defaults_->ApplyTo(request_.sampling);
  }
  request_.sampling.logit_bias.assign(logit_bias_.begin(), logit_bias_.end());
  ORCD_RETURN_IF_ERROR(request_.sampling.Validate(model.spec().vocab, request_.fields->sampling));
  return request_.stop.Validate(model.spec().vocab, *request_.fields);
}

absl::Status RequestBuilder::CheckNumerics(const std::string& numeric_identity) const {
  if (request_.resume.empty() || resumed_numerics_.empty() ||
      resumed_numerics_ == numeric_identity) {
    return absl::OkStatus();
  }
  return MakeError(
      absl::StatusCode::kFailedPrecondition,
      absl::StrCat("the tokens of resume_token_ids were drawn under the numeric identity '",
                   resumed_numerics_.substr(0, kMaxNumericIdentity), "', and this worker's is '",
                   numeric_identity,
                   "', which may draw others; resume on a worker of that identity, or set "
                   "resume_with_other_numerics"),
      {.reason = "NUMERIC_IDENTITY_DIFFERS", .subject = numeric_identity});
}

bool RequestBuilder::must_encode() const {
  return !prompt_.ok() || !std::holds_alternative<std::vector<int32_t>>(*prompt_);
}

absl::Status RequestBuilder::RenderPrompt(const Model& model) {
  ORCD_RETURN_IF_ERROR(prompt_.status());
  const auto* chat = std::get_if<ChatRequest>(&*prompt_);
  if (chat == nullptr || rendered_) return absl::OkStatus();
  ORCD_ASSIGN_OR_RETURN(rendered_, model.chat_template().Render(*chat, absl::Now()));
  return absl::OkStatus();
}

int64_t RequestBuilder::LeastPromptTokens(const Model& model) const {
  if (!prompt_.ok()) return 0;
  size_t bytes = 0;
  if (const auto* text = std::get_if<TextPrompt>(&*prompt_)) {
    bytes = text->text.size();
  } else if (rendered_) {
    for (const PromptPiece& piece : *rendered_) bytes += piece.text.size();
  }
  const size_t longest = model.tokenizer().longest_token_bytes();
  return static_cast<int64_t>((bytes + longest - 1) / longest);
}

absl::Status RequestBuilder::EncodePrompt(const Model& model) {
  ORCD_RETURN_IF_ERROR(RenderPrompt(model));
  if (const auto* text = std::get_if<TextPrompt>(&*prompt_)) {
    request_.prompt = model.tokenizer().Encode(text->text, text->parse_special);
    if (!request_.prompt.empty()) return absl::OkStatus();
    return InvalidField(request_.fields->text, "encodes to no tokens; a prompt needs at least one");
  }
  if (rendered_) {
    request_.prompt = orcd::EncodePrompt(model.tokenizer(), *rendered_);
    return absl::OkStatus();
  }
  request_.prompt = std::move(std::get<std::vector<int32_t>>(*prompt_));
  if (!request_.prompt.empty()) return absl::OkStatus();
  return InvalidField(request_.fields->tokens, "is empty; a prompt needs at least one token");
}

absl::Status CheckRequestId(const std::string& id) {
  const bool plain = std::all_of(id.begin(), id.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == ':' || c == '-';
  });
  if (plain && !id.empty() && id.size() <= kMaxRequestIdLength) return absl::OkStatus();
  return InvalidField("request_id", absl::StrCat("must be 1 to ", kMaxRequestIdLength,
                                                 " characters of [A-Za-z0-9._:-]; has ", id.size(),
                                                 " bytes", plain ? "" : ", others among them"));
}

std::string MakeRequestId() { return absl::StrCat(absl::Hex(Random64(), absl::kZeroPad16)); }

}  // namespace orcd
