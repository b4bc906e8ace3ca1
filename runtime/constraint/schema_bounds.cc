#include "runtime/constraint/schema_bounds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/constraint/ordered_json.h"
#include "runtime/constraint/schema_keywords.h"

namespace orcd {
namespace {

// The library takes an exclusive bound that is a whole number as inclusive if the other bound is
// near. The next number that a document may have then is so far away.
constexpr double kBesideBound = 1e-6;
constexpr double kMostWithFraction = 1e9;

std::array<const char*, 2> BoundNames(bool is_minimum) {
  if (is_minimum) return {"exclusiveMinimum", "minimum"};
  return {"exclusiveMaximum", "maximum"};
}

void AddBounds(const OrderedJson& schema, bool is_minimum, std::vector<double>& bounds) {
  for (const char* const name : BoundNames(is_minimum)) {
    const OrderedJson* bound = FindMember(schema, name);
    if (bound != nullptr && bound->is_number()) bounds.push_back(bound->get<double>());
  }
}

bool IsInteger(const OrderedJson& schema) {
  return FindMember(schema, "type") != nullptr && !AllowsType(schema, "number");
}

class BoundChanger {
 public:
  BoundChanger(const SchemaPlaces& places, bool is_combined, SchemaChanges& changes)
      : places_(places), is_combined_(is_combined), changes_(changes) {}

  absl::Status Run() {
    for (const SchemaPlace& place : places_.all()) {
      AddBounds(*place.schema, true, minima_);
      AddBounds(*place.schema, false, maxima_);
    }
    std::ranges::sort(minima_);
    std::ranges::sort(maxima_);
    for (const SchemaPlace& place : places_.all()) {
      for (const bool is_minimum : {true, false}) {
        ORCD_RETURN_IF_ERROR(ChangeBound(place, is_minimum));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status ChangeBound(const SchemaPlace& place, bool is_minimum) {
    const OrderedJson& schema = *place.schema;
    const auto [exclusive_name, inclusive_name] = BoundNames(is_minimum);
    const OrderedJson* const exclusive = FindMember(schema, exclusive_name);
    const OrderedJson* inclusive = FindMember(schema, inclusive_name);
    // Keywords that have no effect beside a reference were not checked.
    if (inclusive != nullptr && !inclusive->is_number()) inclusive = nullptr;
    if (exclusive == nullptr || !(exclusive->is_boolean() || exclusive->is_number())) {
      return absl::OkStatus();
    }
    const bool is_flag = exclusive->is_boolean();
    bool is_exclusive = true;
    if (is_flag) {
      is_exclusive = exclusive->get<bool>();
    } else if (inclusive != nullptr) {
      const double other = inclusive->get<double>();
      const double own = exclusive->get<double>();
      is_exclusive = is_minimum ? own >= other : own <= other;
    }
    const OrderedJson* const bound = is_exclusive && !is_flag ? exclusive : inclusive;
    for (const OrderedJson* const member : {exclusive, inclusive}) {
      if (member != nullptr && member != bound) changes_[*member].drop = true;
    }
    if (bound == nullptr || !is_exclusive) return absl::OkStatus();
    const double value = bound->get<double>();
    const bool is_whole = value == std::floor(value);
    const bool moves = std::abs(value) <= kMostWithFraction;
    // Whole numbers have no bound that near.
    if (is_whole && !IsInteger(schema) &&
        HasBoundWithin(schema, is_minimum, value, moves ? 2 * kBesideBound : 1)) {
      return places_.Unsupported(
          place, is_flag ? inclusive_name : exclusive_name,
          "an exclusive bound and the opposite one are too near to each other; "
          "at most 1,000,000,000 they may be 0.000002 apart, above that 1");
    }
    if (!is_whole || !moves || !(is_combined_ || HasBoundWithin(schema, is_minimum, value, 1))) {
      if (is_flag) changes_[*bound].name = OrderedJson(exclusive_name).dump();
      return absl::OkStatus();
    }
    const OrderedJson moved = value + (is_minimum ? kBesideBound : -kBesideBound);
    changes_[*bound].member = OrderedJson(inclusive_name).dump() + ":" + moved.dump();
    return absl::OkStatus();
  }

  // True if an opposite bound that may apply to the same value lies inwards of `value`, less than
  // `distance` away.
  bool HasBoundWithin(const OrderedJson& schema, bool is_minimum, double value,
                      double distance) const {
    std::vector<double> own;
    AddBounds(schema, !is_minimum, own);
    std::ranges::sort(own);
    const std::vector<double>& bounds = is_combined_ ? (is_minimum ? maxima_ : minima_) : own;
    const double low = is_minimum ? value : value - distance;
    const auto next = std::ranges::upper_bound(bounds, low);
    return next != bounds.end() && *next < low + distance;
  }

  const SchemaPlaces& places_;
  const bool is_combined_;
  SchemaChanges& changes_;
  // All bounds of the document, in order.
  std::vector<double> minima_;
  std::vector<double> maxima_;
};

}  // namespace

absl::Status ChangeBounds(const SchemaPlaces& places, bool is_combined, SchemaChanges& changes) {
  return BoundChanger(places, is_combined, changes).Run();
}

}  // namespace orcd
