#include "runtime/gguf/split_path.h"

#include "absl/strings/str_format.h"

namespace orcd {

std::string SplitPath(std::string_view prefix, int no, int count) {
  return absl::StrFormat("%s-%05d-of-%05d.gguf", prefix, no + 1, count);
}

std::optional<std::string> SplitPrefix(std::string_view path, int no, int count) {
  const std::string ending = SplitPath("", no, count);
  if (path.size() <= ending.size() || !path.ends_with(ending)) return std::nullopt;
  return std::string(path.substr(0, path.size() - ending.size()));
}

}  // namespace orcd
