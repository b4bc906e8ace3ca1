// Conversations as clients send them, to the templates of real models, against the texts that
// transformers gives: $ORCD_ORACLE_DIR/templates.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "runtime/base/error.h"
#include "runtime/text/chat_template.h"
#include "testing/files.h"

namespace orcd {
namespace {

using nlohmann::ordered_json;

// Nullopt for a role that ChatRole lacks.
std::optional<ChatRole> Role(const std::string& name) {
  const std::string names[] = {"system", "user", "assistant", "tool", "developer"};
  const auto found = std::ranges::find(names, name);
  if (found == std::end(names)) return std::nullopt;
  return static_cast<ChatRole>(found - std::begin(names));
}

// Nullopt for what a request cannot hold: absent contents, images, arguments that are no objects.
std::optional<ChatMessage> Message(const ordered_json& json) {
  ChatMessage message;
  const auto role = Role(json["role"]);
  if (!role) return std::nullopt;
  message.role = *role;
  const ordered_json& content = json["content"];
  if (content.is_null()) return std::nullopt;
  if (content.is_string()) message.content = content;
  if (content.is_array()) {
    for (const ordered_json& part : content) {
      if (part["type"] != "text") return std::nullopt;
      message.content_parts.push_back(part["text"]);
    }
  }
  message.reasoning_content = json.value("reasoning_content", "");
  message.tool_call_id = json.value("tool_call_id", "");
  message.name = json.value("name", "");
  for (const ordered_json& call : json.value("tool_calls", ordered_json::array())) {
    const ordered_json& function = call["function"];
    if (!function["arguments"].is_object()) return std::nullopt;
    message.tool_calls.push_back({.name = function["name"],
                                  .arguments_json = function["arguments"].dump(),
                                  .id = call["id"]});
  }
  return message;
}

std::optional<ChatRequest> Request(ordered_json context) {
  ChatRequest request;
  for (const ordered_json& json : context["messages"]) {
    const std::optional<ChatMessage> message = Message(json);
    if (!message) return std::nullopt;
    request.messages.push_back(*message);
  }
  if (request.messages.empty()) return std::nullopt;
  if (context["tools"].is_array()) {
    for (const ordered_json& tool : context["tools"]) request.tools_json.push_back(tool.dump());
  }
  request.add_generation_prompt = context["add_generation_prompt"];
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt", "bos_token",
                           "eos_token", "unk_token", "pad_token"}) {
    context.erase(name);
  }
  request.template_arguments_json = context.dump();
  return request;
}

bool HasParts(const ChatRequest& request) {
  return std::ranges::any_of(request.messages,
                             [](const ChatMessage& m) { return !m.content_parts.empty(); });
}

// Number of contents and reasonings that `text` has, blanks at their ends aside.
int CountHeld(std::string_view text, const ChatRequest& request) {
  int held = 0;
  const auto count = [&](std::string_view part) {
    held += absl::StrContains({text.data(), text.size()},
                              absl::StripAsciiWhitespace({part.data(), part.size()}));
  };
  for (const ChatMessage& message : request.messages) {
    count(message.content);
    count(message.reasoning_content);
    for (const std::string& part : message.content_parts) count(part);
  }
  return held;
}

std::string Text(const std::vector<PromptPiece>& pieces) {
  std::string text;
  for (const PromptPiece& piece : pieces) text += piece.text;
  return text;
}

TEST(ChatOracleTest, RequestsGiveTheTextsOfTransformers) {
  const char* oracle = std::getenv("ORCD_ORACLE_DIR");
  if (oracle == nullptr) GTEST_SKIP() << "ORCD_ORACLE_DIR is not set";
  setenv("TZ", "UTC", 1);
  const absl::Time now =
      absl::FromCivil(absl::CivilSecond(2025, 7, 26, 13, 5, 9), absl::UTCTimeZone());
  int same = 0;
  int in_other_form = 0;
  int left_out = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(oracle) + "/templates")) {
    if (entry.path().extension() != ".json") continue;
    const ordered_json file = ordered_json::parse(ReadFile(entry.path()));
    const ChatTemplate chat_template = ChatTemplate::Parse(
        std::string(file["source"]), {.bos = "<s>", .eos = "</s>", .unk = "<unk>", .pad = "<pad>"});
    ASSERT_TRUE(chat_template.supported()) << chat_template.why_not();
    for (const ordered_json& test : file["cases"]) {
      if (!test.contains("expected")) continue;
      const std::optional<ChatRequest> request = Request(test["context"]);
      if (!request) continue;
      SCOPED_TRACE(std::string(file["template"]) + ", " + std::string(test["name"]));
      const std::string expected = test["expected"];
      const auto pieces = chat_template.Render(*request, now);
      if (GetErrorDetails(pieces.status()).reason == "INVALID_FIELD") {
        // The template leaves the tools or the calls out.
        const std::string field = GetErrorDetails(pieces.status()).field;
        EXPECT_TRUE(field.find("tool") != std::string::npos) << pieces.status();
        if (field == "chat.tools_json") {
          EXPECT_EQ(expected.find("Weather in a city"), std::string::npos);
        }
        ++left_out;
        continue;
      }
      ASSERT_TRUE(pieces.ok()) << pieces.status();
      if (Text(*pieces) == expected) {
        ++same;
        continue;
      }
      // A template that takes contents in one form alone gets them in it, and reasoning under each
      // of its names; as transformers gives them, the template would lose or misprint them.
      EXPECT_GE(CountHeld(Text(*pieces), *request),
                CountHeld(expected, *request) + (HasParts(*request) ? 0 : 1))
          << Text(*pieces);
      ++in_other_form;
    }
  }
  std::cout << same << " texts are the same, " << in_other_form
            << " have contents in another form, " << left_out << " would lack tools\n";
  EXPECT_GE(same, 1000);
}

}  // namespace
}  // namespace orcd
