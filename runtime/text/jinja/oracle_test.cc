// Real templates with conversations, as Jinja renders them: $ORCD_ORACLE_DIR/templates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "runtime/text/jinja/render_for_test.h"
#include "runtime/text/jinja/template.h"
#include "testing/files.h"

namespace orcd::jinja {
namespace {

using nlohmann::ordered_json;

// Errors of the oracle that begin so are the template's own words.
constexpr std::string_view kRaised = "TemplateError: ";
// Characters of private use, which no template has: before and after what a user injects.
constexpr std::string_view kBegin = "\uE123";
constexpr std::string_view kEnd = "\uE124";

struct Conversation {
  std::string name;
  ordered_json context;
  // Empty if Jinja refuses it.
  std::string expected;
  // Empty if Jinja renders it.
  std::string error;
};

struct RealTemplate {
  std::string name;
  std::string source;
  std::vector<Conversation> conversations;
};

std::vector<RealTemplate> ReadTemplates(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  std::vector<RealTemplate> templates;
  for (const std::string& path : paths) {
    const ordered_json file = ordered_json::parse(ReadFile(path));
    EXPECT_EQ(file["now"], "2025-07-26T13:05:09") << "TestNow is another time";
    RealTemplate& real = templates.emplace_back();
    real.name = file["template"];
    real.source = file["source"];
    for (const ordered_json& test : file["cases"]) {
      real.conversations.push_back(
          {test["name"], test["context"], test.value("expected", ""), test.value("error", "")});
    }
  }
  return templates;
}

class OracleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* oracle = std::getenv("ORCD_ORACLE_DIR");
    if (oracle == nullptr) GTEST_SKIP() << "ORCD_ORACLE_DIR is not set";
    static const std::vector<RealTemplate>* const templates =
        new std::vector<RealTemplate>(ReadTemplates(std::string(oracle) + "/templates"));
    ASSERT_FALSE(templates->empty());
    templates_ = templates;
  }

  // Calls `check` with each conversation that Jinja renders, and its pieces.
  void ForEachText(const std::function<void(const RealTemplate&, const Conversation&,
                                            const std::vector<PromptPiece>&)>& check) {
    for (const RealTemplate& real : *templates_) {
      const auto chat_template = Template::Parse(real.source);
      ASSERT_TRUE(chat_template.ok()) << real.name << ": " << chat_template.status();
      for (const Conversation& conversation : real.conversations) {
        if (!conversation.error.empty()) continue;
        SCOPED_TRACE(real.name + ", " + conversation.name);
        const auto pieces = RenderJson(*chat_template, conversation.context.dump());
        if (pieces.ok()) {
          check(real, conversation, *pieces);
        } else {
          ADD_FAILURE() << pieces.status();
        }
      }
    }
  }

  const std::vector<RealTemplate>* templates_ = nullptr;
};

TEST_F(OracleTest, TheSameTexts) {
  int texts = 0;
  ForEachText([&](const RealTemplate&, const Conversation& conversation,
                  const std::vector<PromptPiece>& pieces) {
    ++texts;
    EXPECT_EQ(Joined(pieces), conversation.expected);
    EXPECT_TRUE(AreWellFormed(pieces)) << Bracketed(pieces);
  });
  RecordProperty("texts", texts);
  EXPECT_GE(texts, 1309);
}

TEST_F(OracleTest, RendersNothingThatTheTemplateRefuses) {
  int errors = 0;
  std::string rendered;
  for (const RealTemplate& real : *templates_) {
    const auto chat_template = Template::Parse(real.source);
    ASSERT_TRUE(chat_template.ok()) << real.name << ": " << chat_template.status();
    for (const Conversation& conversation : real.conversations) {
      if (conversation.error.empty()) continue;
      ++errors;
      const std::string_view error = conversation.error;
      const auto pieces = RenderJson(*chat_template, conversation.context.dump());
      if (error.starts_with(kRaised)) {
        EXPECT_EQ(pieces.status().code(), absl::StatusCode::kInvalidArgument)
            << real.name << ", " << conversation.name;
        EXPECT_EQ(std::string(pieces.status().message()), error.substr(kRaised.size()))
            << real.name << ", " << conversation.name;
      } else if (pieces.ok()) {
        rendered += "\n" + real.name + ", " + conversation.name + ": " + conversation.error;
      }
    }
  }
  EXPECT_GE(errors, 371);
  // The engine has Python's errors, all but the depth of its stack.
  EXPECT_EQ(rendered, "") << "these are errors in Python";
}

// ---------------------------------------------------------------------------------------------
// The template's own texts.

bool IsSpace(char c) { return std::string_view(" \t\n\r\v\f").find(c) != std::string_view::npos; }

std::string_view StripSpace(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
}

// The value of a string literal with the escapes that the templates use.
std::string Unescape(std::string_view literal) {
  std::string text;
  for (size_t i = 0; i < literal.size(); ++i) {
    if (literal[i] != '\\' || i + 1 == literal.size()) {
      text += literal[i];
      continue;
    }
    const char c = literal[++i];
    if (c == 'u') {
      const ordered_json character = ordered_json::parse(
          "\"\\u" + std::string(literal.substr(i + 1, 4)) + "\"", nullptr, false);
      text += character.get<std::string>();
      i += 4;
    } else if (c == 'n' || c == 't' || c == 'r') {
      text += c == 'n' ? '\n' : c == 't' ? '\t' : '\r';
    } else if (c == '\\' || c == '\'' || c == '"') {
      text += c;
    } else if (c != '\n') {
      text += '\\';
      text += c;
    }
  }
  return text;
}

// The texts that a template can write itself: what stands between tags, and the string literals in
// them, unescaped.
std::vector<std::string> OwnTexts(std::string_view source) {
  std::vector<std::string> texts;
  size_t data = 0;
  size_t i = 0;
  while (i < source.size()) {
    const std::string_view open = source.substr(i, 2);
    if (open != "{{" && open != "{%" && open != "{#") {
      ++i;
      continue;
    }
    texts.emplace_back(source.substr(data, i - data));
    if (open == "{#") {
      i = std::min(source.find("#}", i), source.size() - 2) + 2;
      data = i;
      continue;
    }
    const std::string_view close = open == "{{" ? "}}" : "%}";
    int braces = 0;
    i += 2;
    while (i < source.size()) {
      const char c = source[i];
      if (c == '\'' || c == '"') {
        size_t end = i + 1;
        while (end < source.size() && source[end] != c) end += source[end] == '\\' ? 2 : 1;
        texts.push_back(Unescape(source.substr(i + 1, end - i - 1)));
        i = end + 1;
      } else if (braces == 0 && source.substr(i, 2) == close) {
        break;
      } else {
        if (c == '{') ++braces;
        if (c == '}') --braces;
        ++i;
      }
    }
    i += 2;
    data = std::min(i, source.size());
  }
  texts.emplace_back(source.substr(data));
  return texts;
}

// Parts that a piece of the template may consist of: its own texts without the white space around
// them, and the parts of those that are formats, such as 'Call %s now'.
class OwnParts {
 public:
  explicit OwnParts(std::string_view source) {
    for (const std::string& text : OwnTexts(source)) {
      Add(StripSpace(text));
      if (text.find("%s") == text.npos && text.find("{}") == text.npos) continue;
      size_t begin = 0;
      for (size_t i = 0; i + 1 < text.size(); ++i) {
        if (text.compare(i, 2, "%s") != 0 && text.compare(i, 2, "{}") != 0) continue;
        Add(StripSpace(std::string_view(text).substr(begin, i - begin)));
        begin = i + 2;
      }
      Add(StripSpace(std::string_view(text).substr(begin)));
    }
    for (auto& [first, parts] : parts_) {
      std::ranges::sort(parts);
      parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
    }
  }

  // True if `text` is a sequence of whole parts and white space.
  bool Make(std::string_view text) const {
    std::vector<bool> reached(text.size() + 1, false);
    reached[0] = true;
    for (size_t i = 0; i < text.size(); ++i) {
      if (!reached[i]) continue;
      if (IsSpace(text[i])) reached[i + 1] = true;
      const auto found = parts_.find(text[i]);
      if (found == parts_.end()) continue;
      for (const std::string& part : found->second) {
        if (text.substr(i, part.size()) == part) reached[i + part.size()] = true;
      }
    }
    return reached[text.size()];
  }

 private:
  void Add(std::string_view part) {
    if (!part.empty()) parts_[part[0]].emplace_back(part);
  }

  // By their first byte.
  std::map<char, std::vector<std::string>> parts_;
};

TEST(OwnPartsTest, FindsForeignText) {
  const OwnParts parts("<|a|> {{ '<|b|>\\n' + x }}{# <|c|> #}{% if y == \"<|d|>\" %}e{% endif %}");
  for (const std::string_view own :
       {"", "<|a|>", "<|b|>\n", "<|a|> <|b|>\n<|d|>", "e\ne", "<|b|><|b|>"}) {
    EXPECT_TRUE(parts.Make(own)) << own;
  }
  for (const std::string_view foreign : {"<|c|>", "<|a", "x", "<|a|>f", "|>", "<|b|>x<|a|>"}) {
    EXPECT_FALSE(parts.Make(foreign)) << foreign;
  }
}

TEST_F(OracleTest, PiecesOfTheTemplateAreItsOwnTexts) {
  std::map<std::string, OwnParts> parts;
  for (const RealTemplate& real : *templates_) parts.emplace(real.name, OwnParts(real.source));
  int64_t own_bytes = 0;
  int64_t bytes = 0;
  ForEachText(
      [&](const RealTemplate& real, const Conversation&, const std::vector<PromptPiece>& pieces) {
        for (const PromptPiece& piece : pieces) {
          bytes += static_cast<int64_t>(piece.text.size());
          if (!piece.is_template) continue;
          own_bytes += static_cast<int64_t>(piece.text.size());
          EXPECT_TRUE(parts.at(real.name).Make(piece.text)) << piece.text;
        }
      });
  // Half of the text is from the templates.
  EXPECT_GT(own_bytes, bytes / 4);
}

// ---------------------------------------------------------------------------------------------
// Control tokens.

// The parts of `text` that look like control tokens.
std::vector<std::string> ControlTokens(std::string_view text) {
  static constexpr std::pair<std::string_view, std::string_view> kBrackets[] = {
      {"<|", "|>"}, {"<｜", "｜>"}, {"[", "]"}, {"<", ">"}};
  std::vector<std::string> tokens;
  for (size_t i = 0; i < text.size(); ++i) {
    for (const auto& [open, close] : kBrackets) {
      if (!text.substr(i).starts_with(open)) continue;
      const size_t end = text.find(close, i + open.size());
      if (end == text.npos) continue;
      const std::string_view inside = text.substr(i + open.size(), end - i - open.size());
      if (inside.empty() || inside.size() > 40 ||
          inside.find_first_of(" \n\t<>[]'\"{}=:,") != inside.npos) {
        continue;
      }
      tokens.emplace_back(text.substr(i, end + close.size() - i));
      break;
    }
  }
  return tokens;
}

std::vector<std::string> ControlTokensOf(std::string_view source) {
  std::vector<std::string> tokens;
  for (const std::string& text : OwnTexts(source)) {
    for (std::string& token : ControlTokens(text)) tokens.push_back(std::move(token));
  }
  std::ranges::sort(tokens);
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

TEST(ControlTokensTest, Finds) {
  EXPECT_THAT(ControlTokensOf("{{ '<|im_start|>' + x }}[INST] a<b </s> a[0]{{ l[1] }}<｜User｜>"),
              ::testing::ElementsAre("</s>", "<|im_start|>", "<｜User｜>", "[0]", "[INST]"));
}

// Calls `visit` with the begin and the end of each place of `part` in `text`.
void ForEachPlace(std::string_view text, std::string_view part,
                  const std::function<void(size_t, size_t)>& visit) {
  for (size_t i = text.find(part); i != text.npos; i = text.find(part, i + 1)) {
    visit(i, i + part.size());
  }
}

// For each byte of the joined pieces, true if it is the template's.
std::vector<bool> Origins(const std::vector<PromptPiece>& pieces) {
  std::vector<bool> origins;
  for (const PromptPiece& piece : pieces) {
    origins.insert(origins.end(), piece.text.size(), piece.is_template);
  }
  return origins;
}

// Replaces the strings in `value` for which `chosen` holds, given their key; keys stay.
void ReplaceStrings(ordered_json& value, const std::string& key,
                    const std::function<bool(const std::string& key)>& chosen,
                    const std::function<std::string(const std::string&)>& replace) {
  if (value.is_string()) {
    if (chosen(key)) value = replace(value.get<std::string>());
  } else if (value.is_array()) {
    for (ordered_json& item : value) ReplaceStrings(item, key, chosen, replace);
  } else if (value.is_object()) {
    for (auto& [name, item] : value.items()) ReplaceStrings(item, name, chosen, replace);
  }
}

TEST_F(OracleTest, ControlTokensOfTheTemplateAreIts) {
  int64_t found = 0;
  std::map<std::string, std::vector<std::string>> tokens;
  for (const RealTemplate& real : *templates_) {
    tokens[real.name] = ControlTokensOf(real.source);
  }
  ForEachText([&](const RealTemplate& real, const Conversation& conversation,
                  const std::vector<PromptPiece>& pieces) {
    const std::string context = conversation.context.dump();
    const std::vector<bool> origins = Origins(pieces);
    for (const std::string& token : tokens.at(real.name)) {
      // The user's text may have it too.
      if (context.find(token) != context.npos) continue;
      ForEachPlace(conversation.expected, token, [&](size_t begin, size_t end) {
        ++found;
        EXPECT_TRUE(std::all_of(origins.begin() + begin, origins.begin() + end, std::identity()))
            << token << " at " << begin << " of " << Bracketed(pieces);
      });
    }
  });
  EXPECT_GT(found, 10000);
}

// The contexts of a template's conversations, and two for those that take functions in place of
// tools, which no conversation has.
std::vector<ordered_json> Contexts(const RealTemplate& real) {
  std::vector<ordered_json> contexts;
  for (const Conversation& conversation : real.conversations) {
    contexts.push_back(conversation.context);
  }
  ordered_json context = contexts.front();
  context["functions"] = "[{\"name\": \"f\"}]";
  context["datetime"] = "Saturday";
  contexts.push_back(context);
  ordered_json functions;
  functions["role"] = "functions";
  functions["content"] = "[{\"name\": \"f\"}]";
  context["messages"].insert(context["messages"].begin(), functions);
  contexts.push_back(context);
  return contexts;
}

// Each template gets its own control tokens, between marks, in every string of the user's.
TEST_F(OracleTest, InjectedControlTokensStayTheUsers) {
  const auto any = [](const std::string&) { return true; };
  const auto content = [](const std::string& key) { return key != "role" && key != "type"; };
  for (const RealTemplate& real : *templates_) {
    SCOPED_TRACE(real.name);
    const auto chat_template = Template::Parse(real.source);
    ASSERT_TRUE(chat_template.ok()) << chat_template.status();
    std::string injected;
    // Without those at which the template divides a text, to put its own in their place.
    std::string kept;
    for (const std::string& token : ControlTokensOf(real.source)) {
      const std::string marked = std::string(kBegin) + token + std::string(kEnd);
      injected += marked;
      const bool divides = real.source.find("split('" + token) != real.source.npos ||
                           real.source.find("split(\"" + token) != real.source.npos;
      if (!divides) kept += marked;
    }
    const std::function<std::string(const std::string&)> replacements[] = {
        [&](const std::string& text) { return text + injected; },
        [&](const std::string& text) { return injected + text; },
        [&](const std::string& text) {
          return absl::StrCat(injected, " \n", text, "\n ", injected);
        },
        [&](const std::string&) { return injected; },
        [&](const std::string& text) { return std::string(kBegin) + text + std::string(kEnd); },
    };
    int rendered = 0;
    int64_t injections = 0;
    for (const ordered_json& original : Contexts(real)) {
      for (const auto& replacement : replacements) {
        for (const std::function<bool(const std::string&)>& chosen :
             {std::function<bool(const std::string&)>(content),
              std::function<bool(const std::string&)>(any)}) {
          ordered_json context = original;
          ReplaceStrings(context, "", chosen, replacement);
          const auto pieces = RenderJson(*chat_template, context.dump());
          if (!pieces.ok()) continue;
          ++rendered;
          const std::string text = Joined(*pieces);
          const std::vector<bool> origins = Origins(*pieces);
          const auto expect_users = [&](size_t begin, size_t end) {
            ++injections;
            EXPECT_TRUE(
                std::none_of(origins.begin() + begin, origins.begin() + end, std::identity()))
                << text.substr(begin, end - begin) << " of " << Bracketed(*pieces);
          };
          ForEachPlace(text, kEnd, expect_users);
          ForEachPlace(text, kBegin, [&](size_t begin, size_t end) {
            expect_users(begin, end);
            // All of a token that was injected, if nothing was done to it.
            const size_t next = text.find(kEnd, end);
            if (next != text.npos &&
                kept.find(text.substr(begin, next + kEnd.size() - begin)) != kept.npos) {
              expect_users(begin, next);
            }
          });
          for (const PromptPiece& piece : *pieces) {
            EXPECT_FALSE(piece.is_template && piece.text.find("\\ue123") != piece.text.npos);
          }
        }
      }
    }
    EXPECT_GE(rendered, 5);
    EXPECT_GE(injections, 10);
  }
}

}  // namespace
}  // namespace orcd::jinja
