// For tests: names of parameterised tests.
#ifndef ORCD_TESTING_TEST_NAME_H_
#define ORCD_TESTING_TEST_NAME_H_

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

namespace orcd {

// `text` with `_` for each character that a test's name cannot have: `gpt_oss` for `gpt-oss`.
inline std::string TestNameOf(std::string_view text) {
  std::string name(text);
  std::ranges::replace_if(
      name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}

}  // namespace orcd

#endif  // ORCD_TESTING_TEST_NAME_H_
