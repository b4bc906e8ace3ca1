#include "runtime/text/jinja/context.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "runtime/text/jinja/runtime.h"

namespace orcd::jinja {
namespace {

// Makes values while the parser reads, so deep nesting uses no stack.
class Reader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Reader(Context& context) : context_(context) {}

  const Value& value() const { return value_; }
  const std::string& error() const { return error_; }

  bool null() override { return Add(Value::None()); }
  bool boolean(bool value) override { return Add(Value::Bool(value)); }
  bool number_integer(int64_t value) override { return Add(Value::Int(value)); }
  bool number_unsigned(uint64_t value) override {
    return value <= INT64_MAX ? Add(Value::Int(static_cast<int64_t>(value)))
                              : AddDigits(std::to_string(value));
  }
  bool number_float(double value, const std::string& written) override {
    const bool is_integer = written.find_first_of(".eE") == std::string::npos;
    return is_integer ? AddDigits(written) : Add(Value::Float(value));
  }
  bool string(std::string& value) override { return Add(Copy(value)); }
  bool binary(nlohmann::json::binary_t&) override { return false; }

  bool start_object(size_t) override { return Open(); }
  bool start_array(size_t) override { return Open(); }
  bool key(std::string& name) override {
    if (!open_.back().keys.insert(name).second) {
      return Fail("an object has the key " + nlohmann::json(name).dump() + " twice");
    }
    open_.back().items.push_back(Copy(name));
    return true;
  }
  bool end_object() override {
    const std::vector<Value> items = Close();
    ArenaVector<DictEntry> entries(context_.arena());
    entries.Reserve(items.size() / 2);
    for (size_t i = 0; i + 1 < items.size(); i += 2) entries.Add({items[i], items[i + 1]});
    return Add(Value(context_.arena().New<Dict>(Dict{entries.items()})));
  }
  bool end_array() override { return Add(context_.List(Close())); }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& e) override {
    const std::string_view message = e.what();
    // Skips the library's own "[json.exception.…] ".
    const size_t tag_end = message.find("] ");
    return Fail(message.substr(tag_end == std::string_view::npos ? 0 : tag_end + 2));
  }

 private:
  struct Level {
    // An object has keys and values by turns.
    std::vector<Value> items;
    std::set<std::string> keys;
  };

  Value Copy(std::string_view text) {
    TextBuilder copy(context_.arena());
    copy.Append(text);
    return Value(context_.arena().New<Text>(copy.text()));
  }
  bool AddDigits(std::string_view digits) { return Add(Value::BigInt(&Copy(digits).text())); }
  bool Add(const Value& value) {
    if (context_.arena().exhausted()) return Fail("the values take more memory than a prompt may");
    (open_.empty() ? value_ : open_.back().items.emplace_back()) = value;
    return true;
  }
  bool Open() {
    if (open_.size() == kMaxJsonDepth) {
      return Fail("nests deeper than " + std::to_string(kMaxJsonDepth) + " levels");
    }
    open_.emplace_back();
    return true;
  }
  std::vector<Value> Close() {
    std::vector<Value> items = std::move(open_.back().items);
    open_.pop_back();
    return items;
  }
  bool Fail(std::string_view error) {
    error_ = error;
    return false;
  }

  Context& context_;
  Value value_;
  std::string error_;
  std::vector<Level> open_;
};

}  // namespace

Context::Context(const std::tm& now, int microseconds) : now_(now), microseconds_(microseconds) {}

Value Context::String(std::string_view text, Origin origin) {
  return Value(arena_.New<Text>(Text{text, nullptr, origin}));
}

Value Context::List(std::span<const Value> items) {
  ArenaVector<Value> copy(arena_);
  copy.Reserve(items.size());
  for (const Value& item : items) copy.Add(item);
  return Value(arena_.New<Sequence>(Sequence{copy.items()}), false);
}

Value Context::Dict(std::span<const Variable> entries) {
  ArenaVector<DictEntry> copy(arena_);
  copy.Reserve(entries.size());
  for (const Variable& entry : entries) {
    copy.Add({String(entry.name, Origin::kUser), entry.value});
  }
  return Value(arena_.New<jinja::Dict>(jinja::Dict{copy.items()}));
}

absl::StatusOr<Value> Context::Json(std::string_view json) {
  Reader reader(*this);
  if (nlohmann::json::sax_parse(json, &reader)) return reader.value();
  return absl::InvalidArgumentError(reader.error());
}

}  // namespace orcd::jinja
