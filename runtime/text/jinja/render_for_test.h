// Renders templates with contexts given as JSON.
#ifndef ORCD_RUNTIME_TEXT_JINJA_RENDER_FOR_TEST_H_
#define ORCD_RUNTIME_TEXT_JINJA_RENDER_FOR_TEST_H_

#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/error.h"
#include "runtime/text/jinja/context.h"
#include "runtime/text/jinja/template.h"

namespace orcd::jinja {

// 2025-07-26 13:05:09, a Saturday.
inline std::tm TestNow() {
  std::tm now = {};
  now.tm_year = 125;
  now.tm_mon = 6;
  now.tm_mday = 26;
  now.tm_hour = 13;
  now.tm_min = 5;
  now.tm_sec = 9;
  now.tm_wday = 6;
  now.tm_yday = 206;
  return now;
}

// `json` is an object; its strings are the user's.
inline absl::StatusOr<std::vector<PromptPiece>> RenderJson(const Template& chat_template,
                                                           std::string_view json,
                                                           int microseconds = 0) {
  Context context(TestNow(), microseconds);
  ORCD_ASSIGN_OR_RETURN(const Value variables, context.Json(json));
  if (!variables.Is(Kind::kDict)) return absl::InvalidArgumentError("not an object");
  for (const DictEntry& entry : variables.dict().entries) {
    context.Set(entry.key.text().bytes, entry.value);
  }
  return chat_template.Render(context);
}

inline absl::StatusOr<std::vector<PromptPiece>> RenderJson(std::string_view source,
                                                           std::string_view json,
                                                           int microseconds = 0) {
  ORCD_ASSIGN_OR_RETURN(const Template chat_template, Template::Parse(source));
  return RenderJson(chat_template, json, microseconds);
}

inline std::string Joined(const std::vector<PromptPiece>& pieces) {
  std::string text;
  for (const PromptPiece& piece : pieces) text += piece.text;
  return text;
}

// Pieces of the template in brackets.
inline std::string Bracketed(const std::vector<PromptPiece>& pieces) {
  std::string text;
  for (const PromptPiece& piece : pieces) {
    text += piece.is_template ? "[" + piece.text + "]" : piece.text;
  }
  return text;
}

// True if none is empty and no two neighbours are of the same origin.
inline bool AreWellFormed(const std::vector<PromptPiece>& pieces) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].text.empty()) return false;
    if (i > 0 && pieces[i].is_template == pieces[i - 1].is_template) return false;
  }
  return true;
}

}  // namespace orcd::jinja

#endif  // ORCD_RUNTIME_TEXT_JINJA_RENDER_FOR_TEST_H_
