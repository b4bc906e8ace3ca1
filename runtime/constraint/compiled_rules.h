// The cache of compiled rules.
#ifndef ORCD_RUNTIME_CONSTRAINT_COMPILED_RULES_H_
#define ORCD_RUNTIME_CONSTRAINT_COMPILED_RULES_H_

#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "runtime/constraint/compiled_rule.h"

namespace orcd {

// The result of a compilation.
struct CompiledOutcome {
  // The refusal, without which `rule` is set.
  absl::Status status;
  std::shared_ptr<const CompiledRule> rule;
};

// Keeps the outcomes that were used last, within a budget of bytes. Refusals are kept too, so that
// a rule that is expensive to refuse costs its time once. One thread at a time.
class CompiledRules {
 public:
  explicit CompiledRules(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Null if it is not there. The pointer is valid until the next call.
  const CompiledOutcome* Find(std::string_view key);
  // Takes the place of an outcome with the same key. Returns the outcomes that are no longer kept,
  // perhaps this one: freeing them takes time, which the caller may spend outside of a lock.
  std::vector<CompiledOutcome> Add(std::string key, CompiledOutcome outcome);
  // Returns the outcome that is no longer kept, if there was one.
  std::vector<CompiledOutcome> Erase(std::string_view key);
  std::vector<CompiledOutcome> Clear();

  // Estimated memory of all, at most the budget.
  size_t bytes() const { return bytes_; }

 private:
  struct Entry {
    std::string key;
    CompiledOutcome outcome;
    size_t bytes = 0;
  };

  const size_t max_bytes_;
  size_t bytes_ = 0;
  // The entry that was used last comes first.
  std::list<Entry> entries_;
  // Keys view the entries.
  absl::flat_hash_map<std::string_view, std::list<Entry>::iterator> places_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_COMPILED_RULES_H_
