#include "tools/orcdctl/input.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/error.h"
#include "tools/orcdctl/generate_options.h"

namespace orcd::ctl {

absl::StatusOr<std::string> ReadText(Console& console, const std::vector<std::string>& words) {
  std::string text;
  if (words.empty() || (words.size() == 1 && words[0] == "-")) {
    if (console.in_is_terminal) console.err << "Type the text; Ctrl-D ends it.\n" << std::flush;
    text.assign(std::istreambuf_iterator<char>(console.in), {});
  } else {
    text = absl::StrJoin(words, " ");
  }
  ORCD_RETURN_IF_ERROR(CheckUtf8("text", text));
  return text;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (file.bad()) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  return text;
}

}  // namespace orcd::ctl
