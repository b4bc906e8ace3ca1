#include "worker/api/vllm/zip_archive.h"

#include <zip.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

// 1 January 1980, 00:00, in MS-DOS format: the first date that an archive can hold.
constexpr uint16_t kDosTime = 0;
constexpr uint16_t kDosDate = 1 << 5 | 1;
// Takes two thirds of the time of zlib's default level here, for a tenth more bytes.
constexpr uint32_t kLevel = 3;

struct FreeSource {
  void operator()(zip_source_t* source) const { zip_source_free(source); }
};
struct DiscardArchive {
  void operator()(zip_t* archive) const { zip_discard(archive); }
};

absl::Status ZipFailed(zip_error_t* error) {
  return MakeError(absl::StatusCode::kInternal,
                   absl::StrCat("the archive could not be made: ", zip_error_strerror(error)), {});
}

}  // namespace

absl::StatusOr<std::string> MakeZip(const std::vector<ZipEntry>& entries) {
  zip_error_t error;
  zip_error_init(&error);
  // Receives the archive's bytes; libzip shares its ownership.
  std::unique_ptr<zip_source_t, FreeSource> target(
      zip_source_buffer_create(nullptr, 0, /*freep=*/0, &error));
  if (target == nullptr) return ZipFailed(&error);
  std::unique_ptr<zip_t, DiscardArchive> archive(
      zip_open_from_source(target.get(), ZIP_TRUNCATE, &error));
  if (archive == nullptr) return ZipFailed(&error);
  zip_source_keep(target.get());

  for (const ZipEntry& entry : entries) {
    zip_source_t* content =
        zip_source_buffer(archive.get(), entry.content.data(), entry.content.size(), /*freep=*/0);
    if (content == nullptr) return ZipFailed(zip_get_error(archive.get()));
    const zip_int64_t index =
        zip_file_add(archive.get(), entry.name.c_str(), content, ZIP_FL_ENC_UTF_8);
    if (index < 0) {
      zip_source_free(content);
      return ZipFailed(zip_get_error(archive.get()));
    }
    if (zip_set_file_compression(archive.get(), index, ZIP_CM_DEFLATE, kLevel) != 0 ||
        zip_file_set_dostime(archive.get(), index, kDosTime, kDosDate, 0) != 0) {
      return ZipFailed(zip_get_error(archive.get()));
    }
  }
  if (zip_close(archive.get()) != 0) return ZipFailed(zip_get_error(archive.get()));
  (void)archive.release();

  zip_stat_t stat;
  if (zip_source_stat(target.get(), &stat) != 0 || zip_source_open(target.get()) != 0) {
    return ZipFailed(zip_source_error(target.get()));
  }
  std::string bytes(stat.size, '\0');
  const zip_int64_t read = zip_source_read(target.get(), bytes.data(), bytes.size());
  zip_source_close(target.get());
  if (read != static_cast<zip_int64_t>(bytes.size())) {
    return ZipFailed(zip_source_error(target.get()));
  }
  return bytes;
}

}  // namespace orcd
