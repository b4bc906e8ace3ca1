// Makes a zip archive in memory.
#ifndef ORCD_WORKER_API_VLLM_ZIP_ARCHIVE_H_
#define ORCD_WORKER_API_VLLM_ZIP_ARCHIVE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace orcd {

struct ZipEntry {
  std::string name;
  std::string_view content;
};

// Returns the archive of `entries`, deflated, in their order. All entries are dated 1 January 1980,
// so that the same entries give the same bytes. Fails with kInternal if libzip fails, which happens
// only if memory runs out.
absl::StatusOr<std::string> MakeZip(const std::vector<ZipEntry>& entries);

}  // namespace orcd

#endif  // ORCD_WORKER_API_VLLM_ZIP_ARCHIVE_H_
