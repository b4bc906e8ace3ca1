// Conditions that depend on each other, also in circles.
#ifndef ORCD_RUNTIME_CONSTRAINT_CONDITIONS_H_
#define ORCD_RUNTIME_CONSTRAINT_CONDITIONS_H_

#include <cstddef>
#include <utility>
#include <vector>

namespace orcd {

// Finds the conditions that hold for a reason which is not they themselves: the least solution.
// Takes n log n of time for n inputs, and no recursion.
class Conditions {
 public:
  // A condition that holds if all of its inputs do; without any, it holds.
  int AddAll() { return Add(0); }
  // A condition that holds if one of its inputs does; without any, it does not.
  int AddAny() { return Add(1); }
  void RequireForAll(int all, int input) {
    ++open_[all];
    links_.emplace_back(input, all);
  }
  void OfferToAny(int any, int input) { links_.emplace_back(input, any); }

  // Call it once, after the rest.
  void Solve();
  // Requires Solve().
  bool Holds(int condition) const { return open_[condition] <= 0; }

 private:
  int Add(int open) {
    open_.push_back(open);
    return static_cast<int>(open_.size()) - 1;
  }

  // For each condition, how many inputs more have to hold.
  std::vector<int> open_;
  // An input and the condition that has it.
  std::vector<std::pair<int, int>> links_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_CONDITIONS_H_
