#include "runtime/constraint/compiled_rules.h"

#include <utility>

namespace orcd {
namespace {

// Nodes of the list and the map, and the status with its payloads.
constexpr size_t kEntryBytes = 1024;

}  // namespace

const CompiledOutcome* CompiledRules::Find(std::string_view key) {
  const auto place = places_.find(key);
  if (place == places_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, place->second);
  return &place->second->outcome;
}

std::vector<CompiledOutcome> CompiledRules::Add(std::string key, CompiledOutcome outcome) {
  std::vector<CompiledOutcome> dropped = Erase(key);
  const size_t bytes = kEntryBytes + key.size() + outcome.status.message().size() +
                       (outcome.rule == nullptr ? 0 : outcome.rule->bytes());
  if (bytes > max_bytes_) {
    dropped.push_back(std::move(outcome));
    return dropped;
  }
  while (bytes_ + bytes > max_bytes_) {
    std::vector<CompiledOutcome> last = Erase(entries_.back().key);
    dropped.push_back(std::move(last.front()));
  }
  entries_.push_front({std::move(key), std::move(outcome), bytes});
  places_[entries_.front().key] = entries_.begin();
  bytes_ += bytes;
  return dropped;
}

std::vector<CompiledOutcome> CompiledRules::Erase(std::string_view key) {
  std::vector<CompiledOutcome> dropped;
  const auto place = places_.find(key);
  if (place == places_.end()) return dropped;
  const std::list<Entry>::iterator entry = place->second;
  bytes_ -= entry->bytes;
  dropped.push_back(std::move(entry->outcome));
  places_.erase(place);
  entries_.erase(entry);
  return dropped;
}

std::vector<CompiledOutcome> CompiledRules::Clear() {
  std::vector<CompiledOutcome> dropped;
  for (Entry& entry : entries_) dropped.push_back(std::move(entry.outcome));
  places_.clear();
  entries_.clear();
  bytes_ = 0;
  return dropped;
}

}  // namespace orcd
