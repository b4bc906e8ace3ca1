// The names of the files of a split model: `NAME-00001-of-00003.gguf` and so on.
#ifndef ORCD_RUNTIME_GGUF_SPLIT_PATH_H_
#define ORCD_RUNTIME_GGUF_SPLIT_PATH_H_

#include <optional>
#include <string>
#include <string_view>

namespace orcd {

// The ending of a model file's name. Any case is accepted, such as `.GGUF`.
inline constexpr std::string_view kGgufSuffix = ".gguf";

// True if `path` ends in kGgufSuffix, in any case.
bool HasGgufSuffix(std::string_view path);

// The path of part `no`, counted from 0, of `count`. `prefix` is the path up to the dash before the
// number; `suffix` is kGgufSuffix as the first part spells it.
std::string SplitPath(std::string_view prefix, int no, int count,
                      std::string_view suffix = kGgufSuffix);

// The prefix if `path` is the path of that part, with its suffix in any case; else nullopt.
std::optional<std::string> SplitPrefix(std::string_view path, int no, int count);

}  // namespace orcd

#endif  // ORCD_RUNTIME_GGUF_SPLIT_PATH_H_
