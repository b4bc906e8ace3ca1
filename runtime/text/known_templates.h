// The chat templates of the Qwen2 family, as their model files hold them.
#ifndef ORCD_RUNTIME_TEXT_KNOWN_TEMPLATES_H_
#define ORCD_RUNTIME_TEXT_KNOWN_TEMPLATES_H_

#include <optional>
#include <string_view>

namespace orcd {

enum class ChatFormat {
  // One turn for each message.
  kChatMl,
  // ChatML with tools, tool calls and tool results.
  kQwen25,
};

struct KnownTemplate {
  ChatFormat format = ChatFormat::kChatMl;
  // Default system text, rendered if a conversation has no system message; empty: none. Static
  // storage.
  std::string_view default_system;
};

// Finds the template whose text is `source`, ignoring leading and trailing white space.
std::optional<KnownTemplate> FindKnownTemplate(std::string_view source);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_KNOWN_TEMPLATES_H_
