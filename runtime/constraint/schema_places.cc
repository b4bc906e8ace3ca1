#include "runtime/constraint/schema_places.h"

#include "runtime/constraint/rule_error.h"

namespace orcd {
namespace {

std::string EscapedToken(std::string_view token) {
  std::string escaped;
  for (const char c : token) {
    if (c == '~') {
      escaped += "~0";
    } else if (c == '/') {
      escaped += "~1";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

}  // namespace

void SchemaPlaces::Add(const SchemaPlace& place) {
  if (indexes_.emplace(place.schema, places_.size()).second) places_.push_back(place);
}

int SchemaPlaces::IndexOf(const OrderedJson& schema) const {
  const auto found = indexes_.find(&schema);
  return found == indexes_.end() ? -1 : found->second;
}

std::string SchemaPlaces::PointerTo(const SchemaPlace& place, std::string_view keyword) const {
  std::vector<const SchemaPlace*> path = {&place};
  while (path.back()->parent >= 0) path.push_back(&places_[path.back()->parent]);
  std::string pointer(path.back()->keyword);
  for (auto step = path.rbegin() + 1; step != path.rend(); ++step) {
    pointer.append("/").append((*step)->keyword);
    if ((*step)->name) pointer.append("/").append(EscapedToken(*(*step)->name));
    if ((*step)->index) pointer.append("/").append(std::to_string(*(*step)->index));
  }
  if (!keyword.empty()) pointer.append("/").append(keyword);
  return pointer;
}

std::string SchemaPlaces::At(const SchemaPlace& place, std::string_view keyword,
                             std::string_view what) const {
  std::string pointer = PointerTo(place, keyword);
  if (pointer.empty()) pointer = "the schema";
  return pointer.append(": ").append(what);
}

absl::Status SchemaPlaces::Invalid(const SchemaPlace& place, std::string_view keyword,
                                   std::string_view what) const {
  return InvalidRule(field_, At(place, keyword, what));
}

absl::Status SchemaPlaces::Unsupported(const SchemaPlace& place, std::string_view keyword,
                                       std::string_view what) const {
  return UnsupportedRule(field_, At(place, keyword, what));
}

absl::Status SchemaPlaces::TooLarge(const SchemaPlace& place, std::string_view keyword,
                                    std::string_view what) const {
  return RuleTooLarge(field_, At(place, keyword, what));
}

}  // namespace orcd
