#include "runtime/text/chat_template.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/text/jinja/characters.h"

namespace orcd {
namespace {

constexpr size_t kMaxRoleName = 32;
constexpr size_t kMaxErrorBytes = 1000;

std::string Concatenated(const std::vector<PromptPiece>& pieces) {
  std::string text;
  for (const PromptPiece& piece : pieces) text += piece.text;
  return text;
}

// Python's str.rstrip and str.strip.
std::string_view StripEnd(std::string_view text) {
  return text.substr(0, jinja::EndWithoutSpace(text));
}
std::string_view Strip(std::string_view text) {
  text = StripEnd(text);
  return text.substr(jinja::BeginWithoutSpace(text));
}

bool IsRoleName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxRoleName && std::ranges::all_of(name, [](char c) {
    return absl::ascii_islower(static_cast<unsigned char>(c)) || c == '_';
  });
}

absl::Status CheckMessage(const ChatMessage& message, const std::string& field) {
  if (message.role == ChatRole::kNamed && !IsRoleName(message.role_name)) {
    return InvalidField(field + ".role_name",
                        absl::StrCat("must be 1 to ", kMaxRoleName, " characters of [a-z_]"));
  }
  if (!message.content.empty() && !message.content_parts.empty()) {
    return InvalidField(field + ".content_parts", "comes beside content; send one of them");
  }
  if (!message.tool_calls.empty() && message.role != ChatRole::kAssistant) {
    return InvalidField(field + ".tool_calls", "only an assistant's message has tool calls");
  }
  return absl::OkStatus();
}

absl::Status CheckRequest(const ChatRequest& request) {
  if (request.messages.empty()) {
    return InvalidField("chat.messages", "there are none; a conversation needs at least one");
  }
  if (request.continue_final_message && request.add_generation_prompt) {
    return InvalidField("chat.continue_final_message",
                        "cannot come with add_generation_prompt, which begins another message; "
                        "leave one of them out");
  }
  for (size_t i = 0; i < request.messages.size(); ++i) {
    ORCD_RETURN_IF_ERROR(CheckMessage(request.messages[i], absl::StrCat("chat.messages[", i, "]")));
  }
  return absl::OkStatus();
}

// Tools and tool calls that the template would leave out.
absl::Status CheckShown(const ChatRequest& request, const ChatFeatures& features) {
  if (request.shows_tools() && !features.tools) {
    return InvalidField("chat.tools_json", "the model's chat template has no place for tools");
  }
  if (features.tool_calls) return absl::OkStatus();
  for (size_t i = 0; i < request.messages.size(); ++i) {
    if (request.messages[i].tool_calls.empty()) continue;
    return InvalidField(absl::StrCat("chat.messages[", i, "].tool_calls"),
                        "the model's chat template has no place for tool calls");
  }
  return absl::OkStatus();
}

// A template may put all of a conversation into its error, and errors travel in headers.
std::string Shortened(std::string text) {
  if (text.size() <= kMaxErrorBytes) return text;
  size_t end = kMaxErrorBytes;
  while (end > 0 && (text[end] & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "…";
}

// A rendering's error as a client gets it.
absl::Status RenderError(const absl::Status& status) {
  if (!GetErrorDetails(status).reason.empty()) return status;
  const std::string message = Shortened(std::string(status.message()));
  if (absl::IsResourceExhausted(status)) {
    return MakeError(absl::StatusCode::kInvalidArgument,
                     absl::StrCat("the chat template takes too long or too much memory for this "
                                  "conversation: ",
                                  message, "; send less"),
                     {.reason = "CHAT_TEMPLATE_LIMIT", .field = "chat"});
  }
  if (absl::IsFailedPrecondition(status)) {
    return MakeError(absl::StatusCode::kInvalidArgument,
                     absl::StrCat("the chat template cannot render this conversation: ", message),
                     {.reason = "CHAT_TEMPLATE_FAILED", .field = "chat"});
  }
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat("the chat template refuses this conversation: ", message),
                   {.reason = "CHAT_TEMPLATE_REFUSED", .field = "chat"});
}

void Truncate(std::vector<PromptPiece>& pieces, size_t size) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    const size_t length = pieces[i].text.size();
    if (length < size) {
      size -= length;
      continue;
    }
    pieces[i].text.resize(size);
    pieces.resize(size > 0 ? i + 1 : i);
    return;
  }
}

// Cuts the prompt after the last message's content, as transformers does.
absl::Status CutAfterContent(const ChatMessage& last, std::vector<PromptPiece>& pieces) {
  const std::string text = Concatenated(pieces);
  const std::string_view content =
      last.content_parts.empty() ? last.content : last.content_parts.back();
  const size_t tag = text.rfind(StripEnd(kContinuationTag));
  if (tag == std::string::npos || jinja::FindFirst(text, Strip(content)) == std::string::npos) {
    return InvalidField("chat.continue_final_message",
                        "the chat template does not put the last message's content into the prompt "
                        "as it is, so it cannot be continued");
  }
  // A template that strips contents has left no blank after the tag, and none before it either.
  const std::string_view before = std::string_view(text).substr(0, tag);
  const bool is_whole = std::string_view(text).substr(tag).starts_with(kContinuationTag);
  Truncate(pieces, is_whole ? before.size() : StripEnd(before).size());
  return absl::OkStatus();
}

}  // namespace

std::optional<jinja::Template> ChatTemplate::ParseOrWarn(std::string_view key,
                                                         std::string_view source) {
  if (source.empty()) return std::nullopt;
  const absl::StatusOr<jinja::Template> parsed =
      FindInvalidUtf8(source) == source.size()
          ? jinja::Template::Parse(source)
          : absl::InvalidArgumentError("the template is not UTF-8");
  if (parsed.ok()) return *parsed;
  warnings_.push_back(
      absl::StrCat(std::string(key), " cannot be used: ", parsed.status().message()));
  return std::nullopt;
}

ChatTemplate ChatTemplate::Parse(std::string_view source, const SpecialTokenTexts& special,
                                 std::string_view tool_use_source) {
  ChatTemplate result;
  result.special_ = special;
  result.main_ = result.ParseOrWarn(kChatTemplateKey, source);
  if (!result.main_) {
    if (!result.warnings_.empty()) result.why_not_ = result.warnings_[0];
    return result;
  }
  result.tool_use_ = result.ParseOrWarn(kToolUseTemplateKey, tool_use_source);
  result.features_ =
      ProbeChatTemplate([&result](const ChatRequest& request,
                                  const ContentForms& forms) -> absl::StatusOr<std::string> {
        ORCD_ASSIGN_OR_RETURN(
            const std::vector<PromptPiece> pieces,
            result.RenderWith(result.For(request), forms, request, absl::UnixEpoch()));
        return Concatenated(pieces);
      });
  return result;
}

absl::StatusOr<std::vector<PromptPiece>> ChatTemplate::Render(const ChatRequest& request,
                                                              absl::Time now) const {
  ORCD_RETURN_IF_ERROR(CheckRequest(request));
  absl::StatusOr<std::vector<PromptPiece>> pieces;
  if (request.own_template) {
    const absl::StatusOr<jinja::Template> own = jinja::Template::Parse(*request.own_template);
    if (!own.ok()) {
      return InvalidField("chat.chat_template", Shortened(std::string(own.status().message())));
    }
    pieces = RenderWith(*own, AllContents(ContentForm::kAsSent), request, now);
  } else if (supported()) {
    ORCD_RETURN_IF_ERROR(CheckShown(request, features_));
    pieces = RenderWith(For(request), features_.contents, request, now);
  } else {
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("the model cannot chat: ", why_not_,
                                  "; send the prompt as text or as token ids"),
                     {.reason = "CHAT_TEMPLATE_UNKNOWN"});
  }
  if (!pieces.ok()) return RenderError(pieces.status());
  if (request.continue_final_message) {
    ORCD_RETURN_IF_ERROR(CutAfterContent(request.messages.back(), *pieces));
  }
  return pieces;
}

absl::StatusOr<std::vector<PromptPiece>> ChatTemplate::RenderWith(const jinja::Template& program,
                                                                  const ContentForms& forms,
                                                                  const ChatRequest& request,
                                                                  absl::Time now) const {
  const absl::TimeZone local = absl::LocalTimeZone();
  const int64_t microseconds = absl::ToInt64Microseconds(local.At(now).subsecond);
  jinja::Context context(absl::ToTM(now, local), static_cast<int>(microseconds));
  ORCD_RETURN_IF_ERROR(SetChatVariables(request, special_, forms, context));
  return program.Render(context);
}

std::vector<int32_t> EncodePrompt(const Tokenizer& tokenizer,
                                  const std::vector<PromptPiece>& pieces) {
  std::string text;
  std::vector<TextSpan> spans;
  for (const PromptPiece& piece : pieces) {
    const size_t begin = text.size();
    text += piece.text;
    spans.push_back({begin, text.size(), piece.is_template});
  }
  return tokenizer.Encode(text, spans);
}

}  // namespace orcd
