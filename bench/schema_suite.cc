// Counts how constraints agree with a public suite of JSON Schemas and documents, which the tree
// does not hold.
//
//   schema_suite VOCABULARY.gguf FOLDER [--verbose]
//
// Reads every *.json below FOLDER in the form of JSON-Schema-Test-Suite (a list of groups, each
// with `schema` and `tests` of `data` and `valid`) or of one such group a file. A document passes
// if it is accepted exactly where the suite says that it is valid. Properties come in the schema's
// order, so a valid document may be accepted in any order of its properties, and an invalid one
// must be refused in all. Exits 1 if an invalid document is accepted.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "bench/constraint_use.h"
#include "nlohmann/json.hpp"

namespace orcd {
namespace {

using Json = nlohmann::ordered_json;

// Orders of properties that are tried for one document, and for one that is long.
constexpr int kOrders = 240;
constexpr int kOrdersOfLong = 6;
constexpr size_t kLongBytes = 1000;

struct Options {
  std::string vocabulary;
  std::string folder;
  bool verbose = false;
};

struct Tally {
  int passed = 0;
  // Documents whose schema is refused, by the reason of the refusal.
  std::map<std::string, int> refused;
  int wrongly_accepted = 0;
  int wrongly_rejected = 0;
  int schemas = 0;
  int schemas_refused = 0;
};

// The document with the properties of each object in a random order.
Json Shuffled(const Json& document, std::mt19937_64& random) {
  if (document.is_array()) {
    Json shuffled = Json::array();
    for (const Json& element : document) shuffled.push_back(Shuffled(element, random));
    return shuffled;
  }
  if (!document.is_object()) return document;
  std::vector<std::pair<std::string, Json>> members;
  for (const auto& [name, value] : document.items()) {
    members.emplace_back(name, Shuffled(value, random));
  }
  std::shuffle(members.begin(), members.end(), random);
  Json shuffled = Json::object();
  for (auto& [name, value] : members) shuffled[name] = std::move(value);
  return shuffled;
}

absl::StatusOr<bool> Accepts(const ConstraintUse& use, const ConstraintSpec& spec,
                             const std::string& text) {
  const auto pending = CompileNow(*use.compiler, spec);
  // A schema that failed in other documents is refused from then on.
  if (absl::IsInvalidArgument(pending.status())) return false;
  ORCD_RETURN_IF_ERROR(pending.status());
  const std::unique_ptr<Constraint> constraint = (*pending)->Make();
  for (const int32_t id : use.tokenizer->Encode(text, std::span<const TextSpan>())) {
    if (constraint->Ended()) return false;
    if (constraint->Forced().empty() && !constraint->Mask(0).Allows(id)) return false;
    constraint->Accept(id);
    if (!constraint->status().ok()) return false;
  }
  if (constraint->Ended()) return true;
  if (!constraint->Forced().empty()) return false;
  const TokenMask mask = constraint->Mask(0);
  const std::vector<int32_t>& ends = use.tokenizer->eog_ids();
  return std::any_of(ends.begin(), ends.end(), [&](int32_t id) { return mask.Allows(id); });
}

absl::Status CheckGroup(const ConstraintUse& use, const Options& options, const std::string& name,
                        const Json& group, Tally& tally) {
  const ConstraintSpec spec = {.rule = JsonSchemaRule{group["schema"].dump()}, .start = {}};
  ++tally.schemas;
  const auto compiled = CompileNow(*use.compiler, spec);
  const std::string reason =
      compiled.ok() ? std::string() : GetErrorDetails(compiled.status()).reason;
  if (!compiled.ok()) {
    ++tally.schemas_refused;
    if (options.verbose) {
      std::printf("refused: %s: %s\n", name.c_str(),
                  std::string(compiled.status().message()).c_str());
    }
  }
  for (const Json& test : group["tests"]) {
    const bool valid = test["valid"];
    bool accepted = false;
    if (compiled.ok()) {
      const Json& data = test["data"];
      const int orders = data.dump().size() < kLongBytes ? kOrders : kOrdersOfLong;
      std::mt19937_64 random(1);
      for (int i = 0; i < orders && !accepted; ++i) {
        const Json document = i == 0 ? data : Shuffled(data, random);
        ORCD_ASSIGN_OR_RETURN(accepted, Accepts(use, spec, document.dump()));
        if (!data.is_structured()) break;
      }
    } else if (reason != "CONSTRAINT_UNSATISFIABLE") {
      ++tally.refused[reason];
      continue;
    }
    if (accepted == valid) {
      ++tally.passed;
      continue;
    }
    ++(valid ? tally.wrongly_rejected : tally.wrongly_accepted);
    if (options.verbose || !valid) {
      std::printf("wrongly %s: %s: %s, schema %s\n", valid ? "rejected" : "accepted", name.c_str(),
                  test["data"].dump().substr(0, 200).c_str(),
                  group["schema"].dump().substr(0, 300).c_str());
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Tally> CheckFolder(const Options& options) {
  ORCD_ASSIGN_OR_RETURN(const ConstraintUse use, UseConstraints(options.vocabulary, {}));
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(options.folder)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  Tally tally;
  for (const std::filesystem::path& path : files) {
    std::ifstream file(path);
    Json groups = Json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (groups.is_object()) groups = Json::array({groups});
    for (const Json& group : groups) {
      if (!group.is_object() || !group.contains("schema") || !group.contains("tests")) continue;
      const std::string name =
          absl::StrCat(path.stem().string(), ": ", group.value("description", std::string()));
      ORCD_RETURN_IF_ERROR(CheckGroup(use, options, name, group, tally));
    }
  }
  return tally;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Agreement of constraints with a suite of JSON Schemas");
  app.add_option("vocabulary", options.vocabulary, "GGUF file with a tokenizer")->required();
  app.add_option("folder", options.folder, "The suite")->required();
  app.add_flag("--verbose", options.verbose, "Name refusals and wrong rejections too");
  CLI11_PARSE(app, argc, argv);
  const absl::StatusOr<Tally> tally = CheckFolder(options);
  if (!tally.ok()) {
    std::cerr << "schema_suite: " << tally.status().message() << "\n";
    return 1;
  }
  int refused = 0;
  for (const auto& [reason, count] : tally->refused) refused += count;
  std::printf(
      "%d schemas, %d refused; documents: %d pass, %d refused by name, %d wrongly accepted, "
      "%d wrongly rejected\n",
      tally->schemas, tally->schemas_refused, tally->passed, refused, tally->wrongly_accepted,
      tally->wrongly_rejected);
  for (const auto& [reason, count] : tally->refused) {
    std::printf("  %s: %d\n", reason.c_str(), count);
  }
  return tally->wrongly_accepted > 0 ? 1 : 0;
}

}  // namespace
}  // namespace orcd

int main(int argc, char** argv) { return orcd::Main(argc, argv); }
