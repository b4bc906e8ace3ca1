#include "runtime/base/json_shape.h"

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace orcd {
namespace {

using nlohmann::json;

class Watcher final : public json::json_sax_t {
 public:
  Watcher(size_t max_depth, JsonShape& shape) : max_depth_(max_depth), shape_(shape) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(json::binary_t&) override { return true; }
  bool start_object(size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(); }
  bool end_array() override { return Close(); }

  bool key(std::string& name) override {
    if (names_.back().insert(name).second) return true;
    shape_.twice = std::move(name);
    return false;
  }

  bool parse_error(size_t, const std::string&, const json::exception&) override {
    shape_.is_json = false;
    return false;
  }

 private:
  bool Open() {
    shape_.too_deep = names_.size() == max_depth_;
    if (!shape_.too_deep) names_.emplace_back();
    return !shape_.too_deep;
  }
  bool Close() {
    names_.pop_back();
    return true;
  }

  const size_t max_depth_;
  JsonShape& shape_;
  // The names of each open object; an empty set for a list.
  std::vector<absl::flat_hash_set<std::string>> names_;
};

}  // namespace

JsonShape ScanJson(const std::string& text, int max_depth) {
  JsonShape shape{.is_json = true};
  Watcher watcher(static_cast<size_t>(max_depth), shape);
  static_cast<void>(json::sax_parse(text, &watcher));
  return shape;
}

}  // namespace orcd
