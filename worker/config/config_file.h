// Reader of the file that --config names.
#ifndef ORCD_WORKER_CONFIG_CONFIG_FILE_H_
#define ORCD_WORKER_CONFIG_CONFIG_FILE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace orcd {

struct FileSetting {
  // The flag's name without its dashes.
  std::string name;
  // More than one if the file has an array or a list.
  std::vector<std::string> values;
  // Line of the name, counted from 1.
  int line = 0;
};

// Parses the settings of `content`, which is UTF-8 with or without a byte order mark. Each line
// holds one setting, in the syntax of TOML or INI files.
//
//   max-seqs = 32                          # a comment, which may follow a setting too
//   worker-id = "gpu#7"                    # "…" has TOML's escapes, '…' has none
//   orchestrator = ["o1:1", 'o2:2']        # an array, which may span lines
//   orchestrator = o1:1, o2:2              # the same in the syntax of INI files
//   listen = 0.0.0.0:50051                 # a value with #, a comma or a blank needs quotes
//   channelz                               # a switch alone is turned on
//
// A line that begins with ';' is a comment too. [default] is the only section. A name may be
// repeated only if its setting is a list. Fails with kInvalidArgument and the message "line N: "
// plus the reason.
absl::StatusOr<std::vector<FileSetting>> ParseConfigFile(std::string_view content);

// Reads and parses the file at `path`. Fails with kInvalidArgument; the message begins with the
// path and the line, or with the path and the reason why the file cannot be read.
absl::StatusOr<std::vector<FileSetting>> ReadConfigFile(const std::string& path);

}  // namespace orcd

#endif  // ORCD_WORKER_CONFIG_CONFIG_FILE_H_
