#include "runtime/text/json_text.h"

#include <charconv>
#include <cstdint>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace orcd {
namespace {

// Python's repr of a finite float: the shortest digits that read back. Uses an exponent, of at
// least two digits, if more than three zeros would follow the decimal point or more than 16 digits
// precede it.
std::string FloatText(double value) {
  char buffer[32];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  std::string_view text(buffer, end.ptr - buffer);
  std::string result;
  if (text[0] == '-') {
    result = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  std::string digits(text.substr(0, e));
  std::erase(digits, '.');
  const bool negative_exponent = text[e + 1] == '-';
  int exponent = 0;
  std::from_chars(text.data() + e + 2, text.data() + text.size(), exponent);
  if (negative_exponent) exponent = -exponent;

  if (exponent < -4 || exponent >= 16) return result.append(text);
  if (exponent < 0) return result.append("0.").append(-exponent - 1, '0').append(digits);
  const size_t before_point = exponent + 1;
  if (digits.size() <= before_point) {
    return result.append(digits).append(before_point - digits.size(), '0').append(".0");
  }
  return result.append(digits, 0, before_point).append(".").append(digits, before_point);
}

// Writes while the parser reads: no tree is built, so deep nesting uses no stack.
class Writer final : public nlohmann::json_sax<nlohmann::json> {
 public:
  const std::string& text() const { return text_; }
  const std::string& error() const { return error_; }

  bool null() override { return Scalar("null"); }
  bool boolean(bool value) override { return Scalar(value ? "true" : "false"); }
  bool number_integer(int64_t value) override { return Scalar(std::to_string(value)); }
  bool number_unsigned(uint64_t value) override { return Scalar(std::to_string(value)); }
  bool number_float(double value, const std::string& written) override {
    // Integers beyond 64 bits also arrive here; Python keeps them unchanged.
    const bool is_integer = written.find_first_of(".eE") == std::string::npos;
    return Scalar(is_integer ? written : FloatText(value));
  }
  bool string(std::string& value) override { return Scalar(nlohmann::json(value).dump()); }
  bool binary(nlohmann::json::binary_t&) override { return false; }

  bool start_object(size_t) override { return Open('{'); }
  bool end_object() override { return Close('}'); }
  bool start_array(size_t) override { return Open('['); }
  bool end_array() override { return Close(']'); }
  bool key(std::string& name) override {
    if (!open_.back().keys.insert(name).second) {
      return Fail("an object has the key " + nlohmann::json(name).dump() + " twice");
    }
    Separate();
    text_ += nlohmann::json(name).dump() + ": ";
    after_key_ = true;
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& e) override {
    const std::string_view message = e.what();
    // Skips the library's own "[json.exception.…] ".
    const size_t tag_end = message.find("] ");
    return Fail(message.substr(tag_end == std::string_view::npos ? 0 : tag_end + 2));
  }

 private:
  struct Level {
    std::set<std::string> keys;
    bool is_empty = true;
  };

  // Writes the separator between the previous value and the next one.
  void Separate() {
    if (after_key_ || open_.empty()) {
      after_key_ = false;
      return;
    }
    if (!open_.back().is_empty) text_ += ", ";
    open_.back().is_empty = false;
  }
  bool Scalar(std::string_view value) {
    if (open_.empty()) return Fail("a JSON object is wanted");
    Separate();
    text_ += value;
    return true;
  }
  bool Open(char bracket) {
    if (open_.empty() && bracket != '{') return Fail("a JSON object is wanted");
    if (open_.size() == kMaxJsonDepth) {
      return Fail("nests deeper than " + std::to_string(kMaxJsonDepth) + " levels");
    }
    Separate();
    text_ += bracket;
    open_.emplace_back();
    return true;
  }
  bool Close(char bracket) {
    text_ += bracket;
    open_.pop_back();
    return true;
  }
  bool Fail(std::string_view error) {
    error_ = error;
    return false;
  }

  std::string text_;
  std::string error_;
  std::vector<Level> open_;
  bool after_key_ = false;
};

}  // namespace

absl::StatusOr<std::string> NormalizeJsonObject(std::string_view json) {
  Writer writer;
  if (nlohmann::json::sax_parse(json, &writer)) return writer.text();
  return absl::InvalidArgumentError(writer.error());
}

}  // namespace orcd
