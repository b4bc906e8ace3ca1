// Renders a conversation into a prompt with the model's own template (`tokenizer.chat_template`).
#ifndef ORCD_RUNTIME_TEXT_CHAT_TEMPLATE_H_
#define ORCD_RUNTIME_TEXT_CHAT_TEMPLATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/text/chat_context.h"
#include "runtime/text/chat_probe.h"
#include "runtime/text/chat_request.h"
#include "runtime/text/jinja/template.h"
#include "runtime/text/prompt_piece.h"
#include "runtime/text/tokenizer.h"

namespace orcd {

// The template's Jinja source in a model file.
inline constexpr std::string_view kChatTemplateKey = "tokenizer.chat_template";
// The template for conversations with tools, in files that have another for these.
inline constexpr std::string_view kToolUseTemplateKey = "tokenizer.chat_template.tool_use";

// The templates of a model's file. A value type; any thread may render.
class ChatTemplate {
 public:
  // The file has no template.
  ChatTemplate() = default;
  // An empty source: the file has none. Renders some small conversations to find out what the
  // template does with them, which takes milliseconds, and some seconds for a hostile template.
  static ChatTemplate Parse(std::string_view source, const SpecialTokenTexts& special = {},
                            std::string_view tool_use_source = {});

  bool supported() const { return main_.has_value(); }
  // True if the template shows tools to the model.
  bool shows_tools() const { return supported() && features_.tools; }
  // The reason why there is no template, if it is not supported.
  const std::string& why_not() const { return why_not_; }
  // The parse errors of the file's templates, one sentence each.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // Renders the prompt with the request's own template or the file's. `now` is shown in local time
  // to templates that ask for it. No two neighbouring pieces are of the same origin.
  //
  // kFailedPrecondition (CHAT_TEMPLATE_UNKNOWN) if a template is needed and the file's is
  // unsupported. kInvalidArgument: CHAT_TEMPLATE_REFUSED with the template's own words if it raises
  // an exception; CHAT_TEMPLATE_FAILED if it does what templates cannot; CHAT_TEMPLATE_LIMIT if it
  // takes too long or too much memory; INVALID_FIELD naming the field for a conversation without
  // messages or with contradictory fields, tools or tool calls that the template would leave out,
  // a last message that cannot be continued, a template that cannot be parsed, or what
  // SetChatVariables refuses.
  absl::StatusOr<std::vector<PromptPiece>> Render(const ChatRequest& request, absl::Time now) const;

 private:
  absl::StatusOr<std::vector<PromptPiece>> RenderWith(const jinja::Template& program,
                                                      const ContentForms& forms,
                                                      const ChatRequest& request,
                                                      absl::Time now) const;
  // The file's template for the request.
  const jinja::Template& For(const ChatRequest& request) const {
    return tool_use_ && request.shows_tools() ? *tool_use_ : *main_;
  }
  std::optional<jinja::Template> ParseOrWarn(std::string_view key, std::string_view source);

  std::optional<jinja::Template> main_;
  std::optional<jinja::Template> tool_use_;
  SpecialTokenTexts special_;
  ChatFeatures features_;
  std::string why_not_ = "the model's file has no chat template";
  std::vector<std::string> warnings_;
};

// Encodes the concatenation of the pieces, with control tokens recognised only in the template's
// own text, and BOS and EOS only where the template writes them. If nothing a user wrote spells a
// special token, the ids equal those of the whole text with `parse_special`: words may span the
// border between template and user text.
std::vector<int32_t> EncodePrompt(const Tokenizer& tokenizer,
                                  const std::vector<PromptPiece>& pieces);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_CHAT_TEMPLATE_H_
