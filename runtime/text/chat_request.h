// A conversation that a prompt is made of, as a client sent it.
#ifndef ORCD_RUNTIME_TEXT_CHAT_REQUEST_H_
#define ORCD_RUNTIME_TEXT_CHAT_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace orcd {

// kNamed: the message has the role's name.
enum class ChatRole : uint8_t { kSystem, kUser, kAssistant, kTool, kDeveloper, kNamed };
inline constexpr size_t kChatRoles = 6;

struct ChatToolCall {
  std::string name = {};
  // A JSON object.
  std::string arguments_json = {};
  std::string id = {};
};

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string content = {};
  // Only in messages of an assistant.
  std::vector<ChatToolCall> tool_calls = {};
  // Texts of a content in parts; `content` is empty then.
  std::vector<std::string> content_parts = {};
  std::string reasoning_content = {};
  std::string tool_call_id = {};
  std::string name = {};
  // 1 to 32 characters of [a-z_] with kNamed, else empty.
  std::string role_name = {};
};

// kFunction: ChatRequest has the function's name.
enum class ToolChoice : uint8_t { kUnset, kAuto, kNone, kRequired, kFunction };

// The meaning of the members is that of orcd.v1.ChatPrompt's fields.
struct ChatRequest {
  std::vector<ChatMessage> messages = {};
  // JSON objects, one for each tool.
  std::vector<std::string> tools_json = {};
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  // JSON objects, one for each document.
  std::vector<std::string> documents_json = {};
  // A JSON object; empty: none.
  std::string template_arguments_json = {};
  ToolChoice tool_choice = ToolChoice::kUnset;
  std::string tool_choice_function = {};
  // The request's own template, in place of the file's.
  std::optional<std::string> own_template = {};

  // True if the template gets the tools.
  bool shows_tools() const { return !tools_json.empty() && tool_choice != ToolChoice::kNone; }
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_CHAT_REQUEST_H_
