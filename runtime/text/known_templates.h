// The chat templates of the Qwen2 family, as their model files hold them.
#ifndef ORCD_RUNTIME_TEXT_KNOWN_TEMPLATES_H_
#define ORCD_RUNTIME_TEXT_KNOWN_TEMPLATES_H_

#include <optional>
#include <string_view>

namespace orcd {

enum class ChatFormat {
  // A turn for each message.
  kChatMl,
  // ChatML with tools, tool calls and tool results.
  kQwen25,
};

struct KnownTemplate {
  ChatFormat format = ChatFormat::kChatMl;
  // What the template says as the system where a conversation does not; empty: nothing. Lives as
  // long as the program.
  std::string_view default_system;
};

// The template whose text is `source`, leading and trailing white space aside.
std::optional<KnownTemplate> FindKnownTemplate(std::string_view source);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_KNOWN_TEMPLATES_H_
