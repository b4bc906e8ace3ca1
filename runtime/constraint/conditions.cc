#include "runtime/constraint/conditions.h"

#include <algorithm>

namespace orcd {

void Conditions::Solve() {
  std::ranges::sort(links_);
  std::vector<int> holding;
  for (size_t i = 0; i < open_.size(); ++i) {
    if (open_[i] == 0) holding.push_back(static_cast<int>(i));
  }
  for (size_t i = 0; i < holding.size(); ++i) {
    const int input = holding[i];
    auto link = std::ranges::lower_bound(links_, std::pair(input, 0));
    for (; link != links_.end() && link->first == input; ++link) {
      if (--open_[link->second] == 0) holding.push_back(link->second);
    }
  }
}

}  // namespace orcd
