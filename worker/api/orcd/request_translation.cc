#include "worker/api/orcd/request_translation.h"

#include <algorithm>
#include <limits>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

constexpr size_t kMaxRequestIdLength = 128;

uint64_t Random64() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

// For counts without an upper bound of their own, for which every value above INT32_MAX means the
// same as INT32_MAX.
int32_t Saturate(uint32_t value) {
  return static_cast<int32_t>(std::min<uint32_t>(value, std::numeric_limits<int32_t>::max()));
}

// Ids beyond any vocabulary become negative here; the checks against the vocabulary catch them and
// print them as they were.
int32_t ToId(uint32_t id) { return static_cast<int32_t>(id); }

absl::StatusOr<ChatRole> TranslateRole(v1::ChatRole role, const std::string& field) {
  switch (role) {
    case v1::CHAT_ROLE_SYSTEM:
      return ChatRole::kSystem;
    case v1::CHAT_ROLE_USER:
      return ChatRole::kUser;
    case v1::CHAT_ROLE_ASSISTANT:
      return ChatRole::kAssistant;
    case v1::CHAT_ROLE_TOOL:
      return ChatRole::kTool;
    default:
      return InvalidField(field, absl::StrCat(role,
                                              " is no role; use CHAT_ROLE_SYSTEM, "
                                              "CHAT_ROLE_USER, CHAT_ROLE_ASSISTANT or "
                                              "CHAT_ROLE_TOOL"));
  }
}

absl::StatusOr<std::vector<int32_t>> EncodeText(const v1::TextPrompt& prompt, const Model& model) {
  std::vector<int32_t> tokens = model.tokenizer().Encode(prompt.text(), prompt.parse_special());
  if (tokens.empty()) {
    return InvalidField("text.text", "encodes to no tokens; a prompt needs at least one");
  }
  return tokens;
}

absl::StatusOr<std::vector<int32_t>> EncodeChat(const v1::ChatPrompt& prompt, const Model& model) {
  ChatRequest chat;
  for (int i = 0; i < prompt.messages_size(); ++i) {
    const v1::ChatMessage& message = prompt.messages(i);
    ChatMessage translated;
    ORCD_ASSIGN_OR_RETURN(
        translated.role,
        TranslateRole(message.role(), absl::StrCat("chat.messages[", i, "].role")));
    translated.content = message.content();
    for (const v1::ToolCall& call : message.tool_calls()) {
      translated.tool_calls.push_back({call.name(), call.arguments_json()});
    }
    chat.messages.push_back(std::move(translated));
  }
  chat.tools_json.assign(prompt.tools_json().begin(), prompt.tools_json().end());
  if (prompt.has_add_generation_prompt()) {
    chat.add_generation_prompt = prompt.add_generation_prompt();
  }
  ORCD_ASSIGN_OR_RETURN(const std::vector<PromptPiece> pieces, model.chat_template().Render(chat));
  return EncodePrompt(model.tokenizer(), pieces);
}

absl::StatusOr<SamplingParams> TranslateSampling(const v1::GenerateRequest& request) {
  const v1::SamplingParams& proto = request.sampling();
  SamplingParams params;
  if (proto.has_temperature()) params.temperature = proto.temperature();
  if (proto.has_top_k()) params.top_k = Saturate(proto.top_k());
  if (proto.has_top_p()) params.top_p = proto.top_p();
  if (proto.has_min_p()) params.min_p = proto.min_p();
  if (proto.has_typical_p()) params.typical_p = proto.typical_p();
  if (proto.has_repetition_penalty()) params.repetition_penalty = proto.repetition_penalty();
  if (proto.has_frequency_penalty()) params.frequency_penalty = proto.frequency_penalty();
  if (proto.has_presence_penalty()) params.presence_penalty = proto.presence_penalty();
  params.count_prompt = proto.count_prompt();
  params.temperature_first = proto.temperature_first();
  for (const auto& [id, bias] : proto.logit_bias()) {
    params.logit_bias.emplace_back(ToId(id), bias);
  }
  std::sort(params.logit_bias.begin(), params.logit_bias.end());
  params.seed = proto.has_seed() ? proto.seed() : Random64();
  if (request.has_logprobs()) {
    if (request.logprobs() > kMaxTopLogprobs) {
      return InvalidField("logprobs", absl::StrCat(request.logprobs(), " is more than the ",
                                                   kMaxTopLogprobs, " that are allowed"));
    }
    params.logprobs = static_cast<int32_t>(request.logprobs());
  }
  return params;
}

absl::StatusOr<StopConditions> TranslateStop(const v1::StopConditions& proto) {
  StopConditions stop;
  stop.strings.assign(proto.strings().begin(), proto.strings().end());
  for (uint32_t id : proto.token_ids()) stop.ids.push_back(ToId(id));
  stop.ignore_eog = proto.ignore_eog();
  stop.min_tokens = Saturate(proto.min_tokens());
  if (proto.has_max_tokens()) {
    if (proto.max_tokens() == 0) {
      return InvalidField("stop.max_tokens",
                          "is 0; ask for 1 or more, or leave it out for what the context leaves");
    }
    stop.max_tokens = Saturate(proto.max_tokens());
  }
  return stop;
}

}  // namespace

absl::StatusOr<GenerationRequest> TranslateRequest(const v1::GenerateRequest& request,
                                                   const Model& model, absl::Time arrival,
                                                   absl::Time deadline) {
  ORCD_ASSIGN_OR_RETURN(GenerationRequest translated,
                        TranslateParameters(request, model, arrival, deadline));
  ORCD_ASSIGN_OR_RETURN(translated.prompt, TranslatePrompt(request, model));
  return translated;
}

absl::StatusOr<std::vector<int32_t>> TranslatePrompt(const v1::GenerateRequest& request,
                                                     const Model& model) {
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText:
      return EncodeText(request.text(), model);
    case v1::GenerateRequest::kChat:
      return EncodeChat(request.chat(), model);
    case v1::GenerateRequest::kTokens: {
      if (request.tokens().ids().empty()) {
        return InvalidField("tokens.ids", "is empty; a prompt needs at least one token");
      }
      std::vector<int32_t> tokens;
      tokens.reserve(request.tokens().ids_size());
      for (uint32_t id : request.tokens().ids()) tokens.push_back(ToId(id));
      return tokens;
    }
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return InvalidField("prompt", "is missing; set text, tokens or chat");
}

int64_t LeastPromptTokens(const v1::GenerateRequest& request, const Model& model) {
  size_t bytes = 0;
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText:
      bytes = request.text().text().size();
      break;
    case v1::GenerateRequest::kChat:
      // The template copies the contents unchanged, whatever it adds.
      for (const v1::ChatMessage& message : request.chat().messages()) {
        bytes += message.content().size();
      }
      break;
    case v1::GenerateRequest::kTokens:
      return request.tokens().ids_size();
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  const size_t longest = model.tokenizer().longest_token_bytes();
  return static_cast<int64_t>((bytes + longest - 1) / longest);
}

absl::StatusOr<GenerationRequest> TranslateParameters(const v1::GenerateRequest& request,
                                                      const Model& model, absl::Time arrival,
                                                      absl::Time deadline) {
  GenerationRequest translated;
  translated.arrival = arrival;
  translated.deadline = deadline;
  translated.prefix_cache = !request.cache().disabled();
  translated.cache_salt = request.cache().salt();
  translated.priority = request.priority();
  if (request.has_samples()) translated.samples = Saturate(request.samples());
  if (request.has_prompt_logprobs()) {
    if (request.prompt_logprobs() > kMaxTopLogprobs) {
      return InvalidField("prompt_logprobs",
                          absl::StrCat(request.prompt_logprobs(), " is more than the ",
                                       kMaxTopLogprobs, " that are allowed"));
    }
    translated.prompt_logprobs = static_cast<int32_t>(request.prompt_logprobs());
  }
  for (uint32_t id : request.resume_token_ids()) translated.resume.push_back(ToId(id));
  translated.id = request.request_id();
  if (translated.id.empty()) {
    translated.id = MakeRequestId();
  } else {
    ORCD_RETURN_IF_ERROR(CheckRequestId(translated.id));
  }
  ORCD_ASSIGN_OR_RETURN(translated.sampling, TranslateSampling(request));
  ORCD_ASSIGN_OR_RETURN(translated.stop, TranslateStop(request.stop()));
  ORCD_RETURN_IF_ERROR(translated.sampling.Validate(model.spec().vocab));
  ORCD_RETURN_IF_ERROR(translated.stop.Validate(model.spec().vocab));
  return translated;
}

absl::StatusOr<std::vector<int32_t>> TranslateInput(const v1::TokenizeRequest& request,
                                                    const Model& model) {
  switch (request.input_case()) {
    case v1::TokenizeRequest::kText:
      return model.tokenizer().Encode(request.text().text(), request.text().parse_special());
    case v1::TokenizeRequest::kChat:
      return EncodeChat(request.chat(), model);
    case v1::TokenizeRequest::INPUT_NOT_SET:
      break;
  }
  return InvalidField("input", "is missing; set text or chat");
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
