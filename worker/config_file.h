// The file of --config.
#ifndef ORCD_WORKER_CONFIG_FILE_H_
#define ORCD_WORKER_CONFIG_FILE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace orcd {

struct FileSetting {
  // The flag's name without its dashes.
  std::string name;
  // More than one where the file has an array or a list.
  std::vector<std::string> values;
  // The line of the name, from 1 on.
  int line = 0;
};

// Parses the settings of `content`, which is UTF-8 with or without a byte order mark: a setting a
// line, as TOML and INI files have them.
//
//   max-seqs = 32                          # a comment, which may stand behind a setting too
//   worker-id = "gpu#7"                    # "…" has TOML's escapes, '…' has none
//   orchestrator = ["o1:1", 'o2:2']        # an array, which may span lines
//   orchestrator = o1:1, o2:2              # the same as INI files have it
//   listen = 0.0.0.0:50051                 # quotes are needed where a value has #, a comma or a
//   blank channelz                               # a switch alone is turned on
//
// A line that begins with ';' is a comment too. [default] is the only section. A name may come
// again where it names a list. kInvalidArgument with "line N: " and the reason.
absl::StatusOr<std::vector<FileSetting>> ParseConfigFile(std::string_view content);

// Reads and parses the file at `path`. kInvalidArgument, where the message begins with the path and
// the line, or the path and why it cannot be read.
absl::StatusOr<std::vector<FileSetting>> ReadConfigFile(const std::string& path);

}  // namespace orcd

#endif  // ORCD_WORKER_CONFIG_FILE_H_
