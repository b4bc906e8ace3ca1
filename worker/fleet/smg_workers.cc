#include "worker/fleet/smg_workers.h"

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "runtime/base/json_shape.h"

namespace orcd {
namespace {

using nlohmann::json;

// Far deeper than smg's answers are.
constexpr int kMaxDepth = 64;
constexpr size_t kUuidLength = 36;

// Returns a discarded value if the text is no JSON.
json Parse(const std::string& text) {
  const JsonShape shape = ScanJson(text, kMaxDepth);
  if (!shape.is_json || shape.too_deep) return json(json::value_t::discarded);
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::string TextOf(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

bool IsUuid(std::string_view text) {
  if (text.size() != kUuidLength) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    if (dash ? text[i] != '-' : !absl::ascii_isxdigit(static_cast<unsigned char>(text[i]))) {
      return false;
    }
  }
  return true;
}

SmgWorker ToWorker(const json& object) {
  SmgWorker worker;
  const std::string id = TextOf(object, "id");
  if (IsUuid(id)) worker.id = id;
  worker.url = TextOf(object, "url");
  worker.status = TextOf(object, "status");
  const auto job = object.find("job_status");
  if (job != object.end() && job->is_object()) worker.job_status = TextOf(*job, "status");
  return worker;
}

}  // namespace

absl::StatusOr<SmgWorker> ParseSmgWorker(const std::string& text) {
  const json parsed = Parse(text);
  if (!parsed.is_object()) return absl::UnavailableError("the answer is no JSON of a worker");
  return ToWorker(parsed);
}

absl::StatusOr<std::vector<SmgWorker>> ParseSmgWorkers(const std::string& text) {
  const json parsed = Parse(text);
  const auto list = parsed.is_object() ? parsed.find("workers") : parsed.end();
  if (!parsed.is_object() || list == parsed.end() || !list->is_array()) {
    return absl::UnavailableError("the answer is no JSON of a list of workers");
  }
  std::vector<SmgWorker> workers;
  for (const json& worker : *list) {
    if (worker.is_object()) workers.push_back(ToWorker(worker));
  }
  return workers;
}

std::string FindSmgWorkerId(std::string_view text) {
  for (size_t i = 0; i + kUuidLength <= text.size(); ++i) {
    if (IsUuid(text.substr(i, kUuidLength))) return std::string(text.substr(i, kUuidLength));
  }
  return "";
}

}  // namespace orcd
