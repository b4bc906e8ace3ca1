// Files in one piece of memory, as a zip archive.
#ifndef ORCD_WORKER_VLLM_ZIP_ARCHIVE_H_
#define ORCD_WORKER_VLLM_ZIP_ARCHIVE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace orcd {

struct ZipEntry {
  std::string name;
  std::string_view content;
};

// The archive of `entries`, deflated, in their order. All are of 1 January 1980, so that the same
// entries give the same bytes. kInternal where libzip says so; there is no reason but memory.
absl::StatusOr<std::string> MakeZip(const std::vector<ZipEntry>& entries);

}  // namespace orcd

#endif  // ORCD_WORKER_VLLM_ZIP_ARCHIVE_H_
