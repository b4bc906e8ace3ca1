#include "runtime/gguf/gguf_reader.h"

#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/error.h"
#include "runtime/gguf/split_path.h"

namespace orcd {
namespace {

absl::Status KeyError(std::string_view reason, std::string_view key, const std::string& what) {
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrFormat("key %s %s", QuoteForMessage(key), what),
                   {.reason = std::string(reason), .subject = std::string(key)});
}

absl::Status WrongType(std::string_view key, std::string_view wanted, const GgufEntry& entry) {
  std::string found(GgufTypeName(entry.type));
  if (entry.type == GgufType::kArray) {
    const auto& array = std::get<std::shared_ptr<const GgufArray>>(entry.value);
    found = absl::StrFormat("an array of %s", GgufTypeName(array->type));
  }
  return KeyError("GGUF_KEY_TYPE", key, absl::StrFormat("is %s and has to be %s", found, wanted));
}

absl::Status BadSplit(const std::string& what) {
  return MakeError(absl::StatusCode::kInvalidArgument, what, {.reason = "GGUF_MALFORMED"});
}

absl::StatusOr<const GgufEntry*> Require(const GgufReader& gguf, std::string_view key) {
  if (const GgufEntry* entry = gguf.Find(key); entry != nullptr) return entry;
  return MakeError(absl::StatusCode::kNotFound,
                   absl::StrFormat("key %s is missing; convert the model again with a tool that "
                                   "writes it",
                                   QuoteForMessage(key)),
                   {.reason = "GGUF_KEY_MISSING", .subject = std::string(key)});
}

struct SplitKeys {
  int no = 0;
  int count = 1;
};

SplitKeys GetSplitKeys(const std::map<std::string_view, GgufEntry>& entries) {
  SplitKeys keys;
  const auto read = [&entries](std::string_view key, int& value) {
    const auto it = entries.find(key);
    // ParseGgufHeader has checked that the value is u16.
    if (it != entries.end()) value = static_cast<int>(std::get<uint64_t>(it->second.value));
  };
  read("split.no", keys.no);
  read("split.count", keys.count);
  return keys;
}

// The part of `path` after the last slash, for messages.
std::string FileName(std::string_view path) {
  return std::string(path.substr(path.rfind('/') + 1));
}

}  // namespace

absl::StatusOr<std::unique_ptr<GgufReader>> GgufReader::Open(const std::string& path,
                                                             AllowedTensorTypes allowed_types) {
  ORCD_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  auto header = ParseGgufHeader(file.bytes(), allowed_types);
  // The header may look wrong because the file was cut short while it was read.
  ORCD_RETURN_IF_ERROR(file.CheckIntact());
  if (!header.ok()) return Annotate(header.status(), path);
  std::unique_ptr<GgufReader> reader(new GgufReader);
  reader->version_ = header->version;
  reader->keys_ = std::move(header->keys);
  reader->entries_ = std::move(header->entries);
  reader->tensors_ = std::move(header->tensors);
  reader->files_.push_back(std::move(file));
  if (absl::Status status = reader->OpenParts(path, allowed_types); !status.ok()) {
    return Annotate(status, path);
  }
  if (absl::Status status = reader->IndexTensors(); !status.ok()) return Annotate(status, path);
  ORCD_RETURN_IF_ERROR(reader->CheckIntact());
  return reader;
}

absl::Status GgufReader::OpenParts(const std::string& path, AllowedTensorTypes allowed_types) {
  const SplitKeys split = GetSplitKeys(entries_);
  if (split.count <= 1 && split.no == 0) return absl::OkStatus();
  if (split.no >= split.count) {
    return BadSplit(absl::StrFormat("says that it is part %d of %d; fetch or split it again",
                                    split.no + 1, split.count));
  }
  const std::optional<std::string> prefix = SplitPrefix(path, split.no, split.count);
  if (!prefix) {
    return BadSplit(
        absl::StrFormat("is part %d of %d, so its name has to end in %s; give it back the name it "
                        "had, and the other parts with it",
                        split.no + 1, split.count, SplitPath("", split.no, split.count)));
  }
  // The other parts spell the suffix the same way.
  const std::string_view suffix = std::string_view(path).substr(path.size() - kGgufSuffix.size());
  if (split.no != 0) {
    return BadSplit(absl::StrFormat("is part %d of %d; name the first part, %s", split.no + 1,
                                    split.count,
                                    FileName(SplitPath(*prefix, 0, split.count, suffix))));
  }
  for (int no = 1; no < split.count; ++no) {
    const std::string part_path = SplitPath(*prefix, no, split.count, suffix);
    auto part = MappedFile::Open(part_path);
    if (!part.ok()) {
      return Annotate(part.status(), absl::StrFormat("part %d of %d", no + 1, split.count));
    }
    auto header = ParseGgufHeader(part->bytes(), allowed_types);
    ORCD_RETURN_IF_ERROR(part->CheckIntact());
    if (!header.ok()) return Annotate(header.status(), part_path);
    const SplitKeys found = GetSplitKeys(header->entries);
    if (found.no != no || found.count != split.count) {
      return BadSplit(
          absl::StrFormat("%s says that it is part %d of %d and should be part %d of "
                          "%d; the files are of different models, or mixed up",
                          part_path, found.no + 1, found.count, no + 1, split.count));
    }
    tensors_.insert(tensors_.end(), header->tensors.begin(), header->tensors.end());
    files_.push_back(*std::move(part));
  }
  if (const GgufEntry* total = Find("split.tensors.count"); total != nullptr) {
    const int64_t wanted = std::get<int64_t>(total->value);
    if (wanted != static_cast<int64_t>(tensors_.size())) {
      return BadSplit(
          absl::StrFormat("the %d parts hold %d tensors, and the first says %d; the "
                          "files are of different models, or damaged",
                          split.count, tensors_.size(), wanted));
    }
  }
  return absl::OkStatus();
}

absl::Status GgufReader::IndexTensors() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!tensor_index_.emplace(tensors_[i].name, i).second) {
      return BadSplit(
          absl::StrFormat("tensor %s stands in two parts; the files are of different "
                          "models, or damaged",
                          QuoteForMessage(tensors_[i].name)));
    }
  }
  return absl::OkStatus();
}

const GgufEntry* GgufReader::Find(std::string_view key) const {
  const auto it = entries_.find(key);
  return it == entries_.end() ? nullptr : &it->second;
}

absl::StatusOr<uint32_t> GgufReader::GetU32(std::string_view key) const {
  ORCD_ASSIGN_OR_RETURN(const GgufEntry* entry, Require(*this, key));
  constexpr uint32_t kMax = std::numeric_limits<uint32_t>::max();
  if (const auto* value = std::get_if<uint64_t>(&entry->value)) {
    if (*value <= kMax) return static_cast<uint32_t>(*value);
    return KeyError("GGUF_KEY_RANGE", key,
                    absl::StrFormat("is %d and has to be at most %d", *value, kMax));
  }
  if (const auto* value = std::get_if<int64_t>(&entry->value)) {
    if (*value >= 0 && *value <= kMax) return static_cast<uint32_t>(*value);
    return KeyError("GGUF_KEY_RANGE", key,
                    absl::StrFormat("is %d and has to be from 0 to %d", *value, kMax));
  }
  return WrongType(key, "an integer", *entry);
}

absl::StatusOr<float> GgufReader::GetF32(std::string_view key) const {
  ORCD_ASSIGN_OR_RETURN(const GgufEntry* entry, Require(*this, key));
  if (const auto* value = std::get_if<double>(&entry->value)) return static_cast<float>(*value);
  return WrongType(key, "f32", *entry);
}

absl::StatusOr<bool> GgufReader::GetBool(std::string_view key) const {
  ORCD_ASSIGN_OR_RETURN(const GgufEntry* entry, Require(*this, key));
  if (const auto* value = std::get_if<bool>(&entry->value)) return *value;
  return WrongType(key, "bool", *entry);
}

absl::StatusOr<std::string_view> GgufReader::GetString(std::string_view key) const {
  ORCD_ASSIGN_OR_RETURN(const GgufEntry* entry, Require(*this, key));
  if (const auto* value = std::get_if<std::string_view>(&entry->value)) return *value;
  return WrongType(key, "a string", *entry);
}

absl::StatusOr<std::span<const std::string_view>> GgufReader::GetStrings(
    std::string_view key) const {
  ORCD_ASSIGN_OR_RETURN(const GgufEntry* entry, Require(*this, key));
  const auto* array = std::get_if<std::shared_ptr<const GgufArray>>(&entry->value);
  if (array == nullptr || (*array)->type != GgufType::kString) {
    return WrongType(key, "an array of strings", *entry);
  }
  return std::span<const std::string_view>((*array)->strings);
}

absl::StatusOr<std::vector<int32_t>> GgufReader::GetI32s(std::string_view key) const {
  ORCD_ASSIGN_OR_RETURN(const GgufEntry* entry, Require(*this, key));
  const auto* found = std::get_if<std::shared_ptr<const GgufArray>>(&entry->value);
  if (found == nullptr) return WrongType(key, "an array of integers", *entry);
  const GgufArray& array = **found;
  if (array.type == GgufType::kBool || array.type == GgufType::kString ||
      array.type == GgufType::kF32 || array.type == GgufType::kF64) {
    return WrongType(key, "an array of integers", *entry);
  }
  std::vector<int32_t> values;
  values.reserve(array.size());
  const auto append = [&](auto value) {
    if (!std::in_range<int32_t>(value)) {
      return KeyError("GGUF_KEY_RANGE", key,
                      absl::StrFormat("holds %d at index %d, which does not fit in 32 bits", value,
                                      values.size()));
    }
    values.push_back(static_cast<int32_t>(value));
    return absl::OkStatus();
  };
  for (uint64_t value : array.unsigned_values) ORCD_RETURN_IF_ERROR(append(value));
  for (int64_t value : array.signed_values) ORCD_RETURN_IF_ERROR(append(value));
  return values;
}

absl::StatusOr<std::vector<float>> GgufReader::GetF32s(std::string_view key) const {
  ORCD_ASSIGN_OR_RETURN(const GgufEntry* entry, Require(*this, key));
  const auto* array = std::get_if<std::shared_ptr<const GgufArray>>(&entry->value);
  if (array == nullptr || ((*array)->type != GgufType::kF32 && (*array)->type != GgufType::kF64)) {
    return WrongType(key, "an array of f32", *entry);
  }
  const std::vector<double>& values = (*array)->float_values;
  return std::vector<float>(values.begin(), values.end());
}

const TensorView* GgufReader::FindTensor(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

uint64_t GgufReader::total_bytes() const {
  uint64_t total = 0;
  for (const MappedFile& file : files_) total += file.bytes().size();
  return total;
}

absl::Status GgufReader::CheckIntact() const {
  for (const MappedFile& file : files_) ORCD_RETURN_IF_ERROR(file.CheckIntact());
  return absl::OkStatus();
}

std::optional<std::vector<int64_t>> GgufReader::TouchedAt() const {
  std::vector<int64_t> times;
  bool touched = false;
  for (const MappedFile& file : files_) {
    const std::optional<int64_t> time = file.TouchedAt();
    if (!time && !file.CheckIntact().ok()) return std::nullopt;
    touched = touched || time.has_value();
    times.push_back(time.value_or(file.identity().mtime_ns));
  }
  if (!touched) return std::nullopt;
  return times;
}

void GgufReader::AcceptTouch(const std::vector<int64_t>& mtimes_ns) const {
  for (size_t i = 0; i < files_.size(); ++i) files_[i].AcceptTouch(mtimes_ns[i]);
}

}  // namespace orcd
