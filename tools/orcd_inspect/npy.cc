#include "tools/orcd_inspect/npy.h"

#include <bit>

#include "absl/strings/str_cat.h"

namespace orcd {
namespace {

static_assert(std::endian::native == std::endian::little, "`<f4` is written as memory holds it");

// Magic, version, length of the dictionary, dictionary, padded so that the data is aligned.
std::string Header(int64_t rows, int64_t cols) {
  constexpr size_t kAlignment = 64;
  constexpr size_t kPrefixBytes = 10;
  std::string dictionary =
      absl::StrCat("{'descr': '<f4', 'fortran_order': False, 'shape': (", rows, ", ", cols, "), }");
  const size_t used = kPrefixBytes + dictionary.size() + 1;
  dictionary.append((kAlignment - used % kAlignment) % kAlignment, ' ');
  dictionary += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(dictionary.size() & 0xFF);
  header += static_cast<char>(dictionary.size() >> 8);
  return header + dictionary;
}

}  // namespace

absl::StatusOr<NpyWriter> NpyWriter::Create(const std::string& path, int64_t rows, int64_t cols) {
  NpyWriter writer;
  writer.path_ = path;
  writer.file_.open(path, std::ios::binary | std::ios::trunc);
  if (!writer.file_) {
    return absl::PermissionDeniedError(absl::StrCat(path, ": cannot be written"));
  }
  const std::string header = Header(rows, cols);
  writer.file_.write(header.data(), static_cast<std::streamsize>(header.size()));
  writer.missing_ = rows * cols;
  return writer;
}

void NpyWriter::Append(std::span<const float> values) {
  file_.write(reinterpret_cast<const char*>(values.data()),
              static_cast<std::streamsize>(values.size_bytes()));
  missing_ -= static_cast<int64_t>(values.size());
}

absl::Status NpyWriter::Finish() {
  file_.close();
  if (!file_) return absl::DataLossError(absl::StrCat(path_, ": could not be written whole"));
  if (missing_ != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": ", missing_, " values are missing"));
  }
  return absl::OkStatus();
}

}  // namespace orcd
