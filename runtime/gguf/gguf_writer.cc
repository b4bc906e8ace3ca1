#include "runtime/gguf/gguf_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

static_assert(std::endian::native == std::endian::little);

template <typename T>
void Append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void AppendString(std::string& out, std::string_view text) {
  Append<uint64_t>(out, text.size());
  out.append(text);
}

void AppendUnsigned(std::string& out, GgufType type, uint64_t value) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kBool:
      return Append(out, static_cast<uint8_t>(value));
    case GgufType::kU16:
      return Append(out, static_cast<uint16_t>(value));
    case GgufType::kU32:
      return Append(out, static_cast<uint32_t>(value));
    default:
      return Append(out, value);
  }
}

void AppendSigned(std::string& out, GgufType type, int64_t value) {
  switch (type) {
    case GgufType::kI8:
      return Append(out, static_cast<int8_t>(value));
    case GgufType::kI16:
      return Append(out, static_cast<int16_t>(value));
    case GgufType::kI32:
      return Append(out, static_cast<int32_t>(value));
    default:
      return Append(out, value);
  }
}

void AppendFloat(std::string& out, GgufType type, double value) {
  if (type == GgufType::kF32) return Append(out, static_cast<float>(value));
  Append(out, value);
}

void AppendArray(std::string& out, const GgufArray& array) {
  Append(out, array.type);
  Append<uint64_t>(out, array.size());
  for (uint64_t value : array.unsigned_values) AppendUnsigned(out, array.type, value);
  for (int64_t value : array.signed_values) AppendSigned(out, array.type, value);
  for (double value : array.float_values) AppendFloat(out, array.type, value);
  for (std::string_view value : array.strings) AppendString(out, value);
}

uint64_t PadTo(uint64_t alignment, uint64_t size) {
  return (size + alignment - 1) / alignment * alignment;
}

absl::Status WriteError(const std::string& path, int error) {
  absl::StatusCode code = absl::StatusCode::kInternal;
  std::string_view reason = "FILE_UNWRITABLE";
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    code = absl::StatusCode::kResourceExhausted;
    reason = "DISK_FULL";
  } else if (error == EACCES || error == EPERM || error == EROFS) {
    code = absl::StatusCode::kPermissionDenied;
  } else if (error == ENOENT || error == ENOTDIR) {
    code = absl::StatusCode::kNotFound;
  }
  return MakeError(code, absl::StrFormat("%s cannot be written: %s", path, std::strerror(error)),
                   {.reason = std::string(reason), .subject = path});
}

}  // namespace

GgufWriter::GgufWriter(uint32_t alignment) : alignment_(alignment) {
  if (alignment != 32) SetU32("general.alignment", alignment);
}

void GgufWriter::StartKey(std::string_view key, GgufType type) {
  ++n_keys_;
  AppendString(metadata_, key);
  Append(metadata_, type);
}

void GgufWriter::SetU16(std::string_view key, uint16_t value) {
  StartKey(key, GgufType::kU16);
  Append(metadata_, value);
}

void GgufWriter::SetU32(std::string_view key, uint32_t value) {
  StartKey(key, GgufType::kU32);
  Append(metadata_, value);
}

void GgufWriter::SetI32(std::string_view key, int32_t value) {
  StartKey(key, GgufType::kI32);
  Append(metadata_, value);
}

void GgufWriter::SetF32(std::string_view key, float value) {
  StartKey(key, GgufType::kF32);
  Append(metadata_, value);
}

void GgufWriter::SetBool(std::string_view key, bool value) {
  StartKey(key, GgufType::kBool);
  Append<uint8_t>(metadata_, value ? 1 : 0);
}

void GgufWriter::SetString(std::string_view key, std::string_view value) {
  StartKey(key, GgufType::kString);
  AppendString(metadata_, value);
}

void GgufWriter::SetStrings(std::string_view key, std::span<const std::string> values) {
  StartKey(key, GgufType::kArray);
  Append(metadata_, GgufType::kString);
  Append<uint64_t>(metadata_, values.size());
  for (const std::string& value : values) AppendString(metadata_, value);
}

void GgufWriter::SetI32s(std::string_view key, std::span<const int32_t> values) {
  StartKey(key, GgufType::kArray);
  Append(metadata_, GgufType::kI32);
  Append<uint64_t>(metadata_, values.size());
  for (int32_t value : values) Append(metadata_, value);
}

void GgufWriter::SetF32s(std::string_view key, std::span<const float> values) {
  StartKey(key, GgufType::kArray);
  Append(metadata_, GgufType::kF32);
  Append<uint64_t>(metadata_, values.size());
  for (float value : values) Append(metadata_, value);
}

void GgufWriter::Set(std::string_view key, const GgufEntry& entry) {
  StartKey(key, entry.type);
  if (const auto* value = std::get_if<uint64_t>(&entry.value)) {
    AppendUnsigned(metadata_, entry.type, *value);
  } else if (const auto* value = std::get_if<int64_t>(&entry.value)) {
    AppendSigned(metadata_, entry.type, *value);
  } else if (const auto* value = std::get_if<double>(&entry.value)) {
    AppendFloat(metadata_, entry.type, *value);
  } else if (const auto* value = std::get_if<bool>(&entry.value)) {
    Append<uint8_t>(metadata_, *value ? 1 : 0);
  } else if (const auto* value = std::get_if<std::string_view>(&entry.value)) {
    AppendString(metadata_, *value);
  } else {
    AppendArray(metadata_, *std::get<std::shared_ptr<const GgufArray>>(entry.value));
  }
}

size_t GgufWriter::AddTensor(std::string_view name, TensorType type, std::span<const uint64_t> ne) {
  Tensor tensor = {.name = std::string(name),
                   .type = type,
                   .ne = {1, 1, 1, 1},
                   .n_dims = static_cast<uint32_t>(ne.size()),
                   .offset = data_bytes_,
                   .bytes = 0};
  std::copy(ne.begin(), ne.end(), tensor.ne.begin());
  const TensorTypeInfo& info = GetTensorTypeInfo(type);
  tensor.bytes = tensor.ne[0] / info.block_weights * info.block_bytes * tensor.ne[1] *
                 tensor.ne[2] * tensor.ne[3];
  data_bytes_ = PadTo(alignment_, data_bytes_ + tensor.bytes);
  tensors_.push_back(std::move(tensor));
  return tensors_.size() - 1;
}

std::string GgufWriter::Header() const {
  std::string header = "GGUF";
  Append<uint32_t>(header, 3);
  Append<uint64_t>(header, tensors_.size());
  Append<uint64_t>(header, n_keys_);
  header += metadata_;
  for (const Tensor& tensor : tensors_) {
    AppendString(header, tensor.name);
    Append(header, tensor.n_dims);
    for (uint32_t d = 0; d < tensor.n_dims; ++d) Append(header, tensor.ne[d]);
    Append(header, tensor.type);
    Append(header, tensor.offset);
  }
  header.resize(PadTo(alignment_, header.size()), '\0');
  return header;
}

absl::StatusOr<GgufFile> GgufWriter::CreateFile(const std::string& path) const {
  GgufFile file;
  file.path_ = path;
  // The name is unique to the process, so that two processes writing the same path do not mix.
  std::string temporary_path = absl::StrFormat("%s.%d.partial", path, getpid());
  file.fd_ = open(temporary_path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file.fd_ < 0) return WriteError(path, errno);
  file.temporary_path_ = std::move(temporary_path);
  const std::string header = Header();
  for (const Tensor& tensor : tensors_) {
    file.tensors_.push_back({header.size() + tensor.offset, tensor.bytes});
  }
  if (ftruncate(file.fd_, static_cast<off_t>(header.size() + data_bytes_)) != 0) {
    return WriteError(path, errno);
  }
  ORCD_RETURN_IF_ERROR(file.WriteAt(0, std::as_bytes(std::span(header))));
  return file;
}

GgufFile::GgufFile(GgufFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_path_(std::exchange(other.temporary_path_, "")),
      fd_(std::exchange(other.fd_, -1)),
      tensors_(std::move(other.tensors_)) {}

GgufFile::~GgufFile() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_path_.empty()) unlink(temporary_path_.c_str());
}

absl::Status GgufFile::Write(size_t tensor, uint64_t offset,
                             std::span<const std::byte> bytes) const {
  const Place& place = tensors_.at(tensor);
  if (offset > place.bytes || bytes.size() > place.bytes - offset) {
    return absl::OutOfRangeError(
        absl::StrFormat("%d bytes at offset %d of tensor %d, which has %d bytes", bytes.size(),
                        offset, tensor, place.bytes));
  }
  return WriteAt(place.offset + offset, bytes);
}

absl::Status GgufFile::WriteAt(uint64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) continue;
      return WriteError(path_, errno);
    }
    offset += static_cast<uint64_t>(written);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status GgufFile::Finish() {
  const int fd = std::exchange(fd_, -1);
  // Some file systems report only on close that there was no space.
  if (close(fd) != 0) return WriteError(path_, errno);
  if (std::rename(temporary_path_.c_str(), path_.c_str()) != 0) return WriteError(path_, errno);
  temporary_path_.clear();
  return absl::OkStatus();
}

}  // namespace orcd
