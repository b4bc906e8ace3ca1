// Many short strings in one buffer.
#ifndef ORCD_RUNTIME_TEXT_PACKED_STRINGS_H_
#define ORCD_RUNTIME_TEXT_PACKED_STRINGS_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace orcd {

// Owns its strings. Any thread may read once it is filled.
class PackedStrings {
 public:
  void Add(std::string_view string) {
    chars_ += string;
    ends_.push_back(chars_.size());
  }
  size_t size() const { return ends_.size(); }
  // index < size(). The view is valid until the next Add.
  std::string_view operator[](size_t index) const {
    const size_t begin = index == 0 ? 0 : ends_[index - 1];
    return std::string_view(chars_).substr(begin, ends_[index] - begin);
  }

 private:
  std::string chars_;
  std::vector<size_t> ends_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_PACKED_STRINGS_H_
