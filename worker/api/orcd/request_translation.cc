#include "worker/api/orcd/request_translation.h"

#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "worker/api/orcd/constraint_translation.h"

namespace orcd {
namespace {

std::vector<std::string> Moved(google::protobuf::RepeatedPtrField<std::string>& texts) {
  return {std::make_move_iterator(texts.begin()), std::make_move_iterator(texts.end())};
}

// `message` has no role of its own name.
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
    case v1::CHAT_ROLE_DEVELOPER:
      return ChatRole::kDeveloper;
    default:
      return InvalidField(field, absl::StrCat(role,
                                              " is no role; use CHAT_ROLE_SYSTEM, "
                                              "CHAT_ROLE_USER, CHAT_ROLE_ASSISTANT, "
                                              "CHAT_ROLE_TOOL or CHAT_ROLE_DEVELOPER, or "
                                              "role_name"));
  }
}

absl::StatusOr<ChatMessage> TranslateMessage(v1::ChatMessage& message, const std::string& path) {
  ChatMessage translated;
  if (message.role_name().empty()) {
    ORCD_ASSIGN_OR_RETURN(translated.role, TranslateRole(message.role(), path + ".role"));
  } else if (message.role() != v1::CHAT_ROLE_UNSPECIFIED) {
    return InvalidField(path + ".role_name", "comes beside role; send one of them");
  } else {
    translated.role = ChatRole::kNamed;
    translated.role_name = std::move(*message.mutable_role_name());
  }
  translated.content = std::move(*message.mutable_content());
  for (int i = 0; i < message.content_parts_size(); ++i) {
    v1::ContentPart& part = *message.mutable_content_parts(i);
    if (!part.type().empty() && part.type() != "text") {
      return InvalidField(absl::StrCat(path, ".content_parts[", i, "].type"),
                          absl::StrCat("is ", Quoted(part.type().substr(0, 32)),
                                       ", and the model takes 'text' alone; leave other parts "
                                       "out"));
    }
    translated.content_parts.push_back(std::move(*part.mutable_text()));
  }
  translated.reasoning_content = std::move(*message.mutable_reasoning_content());
  translated.tool_call_id = std::move(*message.mutable_tool_call_id());
  translated.name = std::move(*message.mutable_name());
  for (v1::ToolCall& call : *message.mutable_tool_calls()) {
    translated.tool_calls.push_back({.name = std::move(*call.mutable_name()),
                                     .arguments_json = std::move(*call.mutable_arguments_json()),
                                     .id = std::move(*call.mutable_id())});
  }
  return translated;
}

absl::Status TranslateToolChoice(v1::ToolChoice& choice, ChatRequest& chat) {
  if (choice.has_function()) {
    chat.tool_choice = ToolChoice::kFunction;
    chat.tool_choice_function = std::move(*choice.mutable_function());
    return absl::OkStatus();
  }
  switch (choice.mode()) {
    case v1::TOOL_CHOICE_MODE_AUTO:
      chat.tool_choice = ToolChoice::kAuto;
      return absl::OkStatus();
    case v1::TOOL_CHOICE_MODE_NONE:
      chat.tool_choice = ToolChoice::kNone;
      return absl::OkStatus();
    case v1::TOOL_CHOICE_MODE_REQUIRED:
      chat.tool_choice = ToolChoice::kRequired;
      return absl::OkStatus();
    default:
      return InvalidField("chat.tool_choice.mode",
                          absl::StrCat(choice.mode(),
                                       " is no mode; use TOOL_CHOICE_MODE_AUTO, "
                                       "TOOL_CHOICE_MODE_NONE or TOOL_CHOICE_MODE_REQUIRED, or "
                                       "function"));
  }
}

absl::StatusOr<Prompt> TranslateChat(v1::ChatPrompt& prompt, const TranslationOptions& options) {
  ChatRequest chat;
  if (!prompt.chat_template().empty()) {
    if (!options.allow_request_templates) {
      return MakeError(absl::StatusCode::kInvalidArgument,
                       "chat.chat_template: this worker takes no templates from requests; leave it "
                       "out, or start the worker with --allow-request-templates",
                       {.reason = "CHAT_TEMPLATE_NOT_ALLOWED", .field = "chat.chat_template"});
    }
    chat.own_template = std::move(*prompt.mutable_chat_template());
  }
  for (int i = 0; i < prompt.messages_size(); ++i) {
    ORCD_ASSIGN_OR_RETURN(
        chat.messages.emplace_back(),
        TranslateMessage(*prompt.mutable_messages(i), absl::StrCat("chat.messages[", i, "]")));
  }
  chat.tools_json = Moved(*prompt.mutable_tools_json());
  chat.documents_json = Moved(*prompt.mutable_documents_json());
  chat.template_arguments_json = std::move(*prompt.mutable_template_arguments_json());
  if (prompt.has_tool_choice()) {
    ORCD_RETURN_IF_ERROR(TranslateToolChoice(*prompt.mutable_tool_choice(), chat));
  }
  chat.continue_final_message = prompt.continue_final_message();
  chat.add_generation_prompt = prompt.has_add_generation_prompt() ? prompt.add_generation_prompt()
                                                                  : !chat.continue_final_message;
  return chat;
}

absl::StatusOr<Prompt> TranslatePrompt(v1::GenerateRequest& request,
                                       const TranslationOptions& options) {
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText:
      return TextPrompt{std::move(*request.mutable_text()->mutable_text()),
                        request.text().parse_special()};
    case v1::GenerateRequest::kChat:
      return TranslateChat(*request.mutable_chat(), options);
    case v1::GenerateRequest::kTokens:
      return ToIds(request.tokens().ids());
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return InvalidField("prompt", "is missing; set text, tokens or chat");
}

void TranslateSampling(const v1::SamplingParams& proto, RequestBuilder& builder) {
  PartialSampling asked;
  if (proto.has_temperature()) asked.temperature = proto.temperature();
  if (proto.has_top_k()) asked.top_k = Saturate(proto.top_k());
  if (proto.has_top_p()) asked.top_p = proto.top_p();
  if (proto.has_min_p()) asked.min_p = proto.min_p();
  if (proto.has_repetition_penalty()) asked.repetition_penalty = proto.repetition_penalty();
  builder.SetSamplingOverDefaults(asked);
  SamplingParams& params = builder.sampling();
  if (proto.has_typical_p()) params.typical_p = proto.typical_p();
  if (proto.has_frequency_penalty()) params.frequency_penalty = proto.frequency_penalty();
  if (proto.has_presence_penalty()) params.presence_penalty = proto.presence_penalty();
  params.count_prompt = proto.count_prompt();
  params.temperature_first = proto.temperature_first();
  for (const auto& [id, bias] : proto.logit_bias()) builder.SetLogitBias(id, bias);
  if (proto.has_seed()) params.seed = proto.seed();
}

void TranslateStop(const v1::StopConditions& proto, RequestBuilder& builder) {
  StopConditions& stop = builder.stop();
  stop.strings.assign(proto.strings().begin(), proto.strings().end());
  stop.ids = ToIds(proto.token_ids());
  stop.ignore_eog = proto.ignore_eog();
  builder.SetMinTokens(proto.min_tokens());
  if (proto.has_max_tokens()) builder.SetMaxTokens(proto.max_tokens());
}

}  // namespace

RequestBuilder TranslateRequest(v1::GenerateRequest request, const TranslationOptions& options) {
  RequestBuilder builder;
  GenerationRequest& translated = builder.request();
  builder.set_model_id(request.model_id());
  translated.prefix_cache = !request.cache().disabled();
  translated.cache_salt = request.cache().salt();
  translated.priority = request.priority();
  translated.resume = ToIds(request.resume_token_ids());
  builder.SetResumedNumerics(std::move(*request.mutable_resume_numeric_identity()),
                             request.resume_with_other_numerics());
  translated.show_special_tokens = request.show_special_tokens();
  if (request.has_speculation()) translated.speculate = request.speculation();
  // The first error is the one that the client gets.
  if (request.has_samples()) builder.SetSamples(request.samples());
  if (request.has_prompt_logprobs()) builder.SetPromptLogprobs(request.prompt_logprobs());
  builder.SetId(request.request_id());
  if (request.has_logprobs()) builder.SetLogprobs(request.logprobs());
  TranslateSampling(request.sampling(), builder);
  TranslateStop(request.stop(), builder);
  if (request.has_constraint()) {
    builder.SetConstraint(TranslateConstraint(*request.mutable_constraint()));
  }
  builder.SetPrompt(TranslatePrompt(request, options));
  return builder;
}

absl::StatusOr<std::vector<int32_t>> TranslateInput(v1::TokenizeRequest request, const Model& model,
                                                    const TranslationOptions& options) {
  switch (request.input_case()) {
    case v1::TokenizeRequest::kText:
      return model.tokenizer().Encode(request.text().text(), request.text().parse_special());
    case v1::TokenizeRequest::kChat: {
      RequestBuilder builder;
      builder.SetPrompt(TranslateChat(*request.mutable_chat(), options));
      ORCD_RETURN_IF_ERROR(builder.EncodePrompt(model));
      return std::move(builder.request().prompt);
    }
    case v1::TokenizeRequest::INPUT_NOT_SET:
      break;
  }
  return InvalidField("input", "is missing; set text or chat");
}

}  // namespace orcd
