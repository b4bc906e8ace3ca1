#include "runtime/gguf/split_path.h"

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"

namespace orcd {

bool HasGgufSuffix(std::string_view path) {
  return absl::EndsWithIgnoreCase({path.data(), path.size()},
                                  {kGgufSuffix.data(), kGgufSuffix.size()});
}

std::string SplitPath(std::string_view prefix, int no, int count, std::string_view suffix) {
  return absl::StrFormat("%s-%05d-of-%05d%s", prefix, no + 1, count, suffix);
}

std::optional<std::string> SplitPrefix(std::string_view path, int no, int count) {
  const std::string ending = SplitPath("", no, count);
  if (path.size() <= ending.size() ||
      !absl::EndsWithIgnoreCase({path.data(), path.size()}, ending)) {
    return std::nullopt;
  }
  return std::string(path.substr(0, path.size() - ending.size()));
}

}  // namespace orcd
