// The names of the files of a split model: `NAME-00001-of-00003.gguf` and so on.
#ifndef ORCD_RUNTIME_GGUF_SPLIT_PATH_H_
#define ORCD_RUNTIME_GGUF_SPLIT_PATH_H_

#include <optional>
#include <string>
#include <string_view>

namespace orcd {

// The path of part `no`, counted from 0, of `count`. `prefix` is the path up to the number's dash.
std::string SplitPath(std::string_view prefix, int no, int count);

// The prefix where `path` is the path of that part; nothing where it is not.
std::optional<std::string> SplitPrefix(std::string_view path, int no, int count);

}  // namespace orcd

#endif  // ORCD_RUNTIME_GGUF_SPLIT_PATH_H_
