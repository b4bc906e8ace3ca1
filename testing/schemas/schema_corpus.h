// For tests and benches: JSON Schemas with documents that they accept and documents that they
// refuse.
#ifndef ORCD_TESTING_SCHEMAS_SCHEMA_CORPUS_H_
#define ORCD_TESTING_SCHEMAS_SCHEMA_CORPUS_H_

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace orcd {

// The texts are compact JSON. Properties of valid documents come in the schema's order.
struct SchemaCase {
  std::string name;
  std::string schema;
  std::vector<std::string> valid;
  std::vector<std::string> invalid;
};

// The corpus in the source tree, which is a test's working folder.
inline constexpr char kSchemaCorpus[] = "testing/schemas/corpus.jsonl";

// Reads a file of JSON objects, one a line, with `schema` and optionally `name`, `valid` and
// `invalid`. kNotFound if there is no such file, kInvalidArgument naming the line that is no such
// object.
inline absl::StatusOr<std::vector<SchemaCase>> ReadSchemaCorpus(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat(path.string(), " cannot be read"));
  std::vector<SchemaCase> cases;
  std::string line;
  while (std::getline(file, line)) {
    const std::string place = absl::StrCat(path.string(), ":", cases.size() + 1);
    const auto object = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object() || !object.contains("schema")) {
      return absl::InvalidArgumentError(absl::StrCat(place, " is no JSON object with `schema`"));
    }
    SchemaCase read = {.name = object.value("name", place),
                       .schema = object["schema"].dump(),
                       .valid = {},
                       .invalid = {}};
    for (const auto& [key, texts] :
         {std::pair("valid", &read.valid), std::pair("invalid", &read.invalid)}) {
      if (!object.contains(key)) continue;
      for (const auto& document : object[key]) texts->push_back(document.dump());
    }
    cases.push_back(std::move(read));
  }
  return cases;
}

}  // namespace orcd

#endif  // ORCD_TESTING_SCHEMAS_SCHEMA_CORPUS_H_
