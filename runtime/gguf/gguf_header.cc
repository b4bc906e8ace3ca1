#include "runtime/gguf/gguf_header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

static_assert(std::endian::native == std::endian::little);

// Limits far above any model, yet low enough that widened values fit in memory. Without them a
// small part of a huge file could demand many times its own size in memory.
constexpr uint64_t kMaxKeys = 65'536;
constexpr uint64_t kMaxTensors = 1'048'576;
constexpr uint64_t kMaxArrayElements = 16'777'216;  // of all arrays together
constexpr uint64_t kMaxNameBytes = 65'535;

// Minimum sizes of a key and of a tensor info: a name of one byte and the smallest value.
constexpr uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

template <typename... Args>
absl::Status Malformed(const absl::FormatSpec<Args...>& format, const Args&... args) {
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrFormat(format, args...) +
                       "; the file is damaged or was written by a "
                       "faulty tool: fetch or convert it again",
                   {.reason = "GGUF_MALFORMED"});
}

template <typename... Args>
absl::Status Truncated(const absl::FormatSpec<Args...>& format, const Args&... args) {
  return MakeError(
      absl::StatusCode::kInvalidArgument,
      absl::StrFormat(format, args...) + "; the file is cut short or damaged: fetch it again",
      {.reason = "GGUF_TRUNCATED"});
}

template <typename... Args>
absl::Status Unsupported(const absl::FormatSpec<Args...>& format, const Args&... args) {
  return MakeError(absl::StatusCode::kUnimplemented, absl::StrFormat(format, args...),
                   {.reason = "GGUF_UNSUPPORTED"});
}

// Bytes of one number or bool of `type`; 0 for strings, arrays and invalid ids.
uint64_t FixedBytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

bool IsInteger(GgufType type) {
  return FixedBytes(type) != 0 && type != GgufType::kF32 && type != GgufType::kF64 &&
         type != GgufType::kBool;
}

// A key whose type is fixed by the format or its users; `wanted` describes the type in error
// messages.
struct TypedKey {
  std::string_view key;
  std::string_view wanted;
  bool array;
  bool (*fits)(GgufType type);  // for the value, or the array's elements
};

constexpr TypedKey kTypedKeys[] = {
    {"general.architecture", "a string", false, [](GgufType t) { return t == GgufType::kString; }},
    {"general.alignment", "u32", false, [](GgufType t) { return t == GgufType::kU32; }},
    {"split.no", "u16", false, [](GgufType t) { return t == GgufType::kU16; }},
    {"split.count", "u16", false, [](GgufType t) { return t == GgufType::kU16; }},
    {"split.tensors.count", "i32", false, [](GgufType t) { return t == GgufType::kI32; }},
    {"tokenizer.ggml.tokens", "an array of strings", true,
     [](GgufType t) { return t == GgufType::kString; }},
    {"tokenizer.ggml.merges", "an array of strings", true,
     [](GgufType t) { return t == GgufType::kString; }},
    {"tokenizer.ggml.scores", "an array of f32", true,
     [](GgufType t) { return t == GgufType::kF32; }},
    {"tokenizer.ggml.token_type", "an array of integers", true,
     [](GgufType t) { return IsInteger(t); }},
};

std::string DescribeType(const GgufEntry& entry) {
  if (entry.type != GgufType::kArray) return std::string(GgufTypeName(entry.type));
  const auto& array = std::get<std::shared_ptr<const GgufArray>>(entry.value);
  return absl::StrFormat("an array of %s", GgufTypeName(array->type));
}

absl::Status CheckTypedKeys(const std::map<std::string_view, GgufEntry>& entries) {
  for (const TypedKey& typed : kTypedKeys) {
    const auto it = entries.find(typed.key);
    if (it == entries.end()) continue;
    const GgufEntry& entry = it->second;
    const bool is_array = entry.type == GgufType::kArray;
    const GgufType type =
        is_array ? std::get<std::shared_ptr<const GgufArray>>(entry.value)->type : entry.type;
    if (is_array != typed.array || !typed.fits(type)) {
      return Malformed("key %s is %s and has to be %s", QuoteForMessage(typed.key),
                       DescribeType(entry), typed.wanted);
    }
  }
  return absl::OkStatus();
}

class Parser {
 public:
  Parser(std::span<const std::byte> file, AllowedTensorTypes allowed_types)
      : file_(file), allowed_types_(allowed_types) {}

  absl::StatusOr<GgufHeader> Parse() {
    ORCD_RETURN_IF_ERROR(ParseMagicAndVersion());
    uint64_t n_tensors = 0;
    uint64_t n_keys = 0;
    ORCD_RETURN_IF_ERROR(ReadCount("tensor", kMinTensorBytes, kMaxTensors, n_tensors));
    ORCD_RETURN_IF_ERROR(ReadCount("metadata key", kMinKeyBytes, kMaxKeys, n_keys));
    for (uint64_t i = 0; i < n_keys; ++i) ORCD_RETURN_IF_ERROR(ParseEntry(i));
    ORCD_RETURN_IF_ERROR(CheckTypedKeys(header_.entries));
    ORCD_RETURN_IF_ERROR(SetAlignment());
    std::vector<uint64_t> offsets(n_tensors);
    header_.tensors.resize(n_tensors);
    for (uint64_t i = 0; i < n_tensors; ++i) {
      ORCD_RETURN_IF_ERROR(ParseTensor(i, header_.tensors[i], offsets[i]));
    }
    ORCD_RETURN_IF_ERROR(CheckTensorNames());
    ORCD_RETURN_IF_ERROR(PlaceTensors(offsets));
    return std::move(header_);
  }

 private:
  uint64_t remaining() const { return file_.size() - position_; }

  template <typename T>
  absl::Status Read(std::string_view what, T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (remaining() < sizeof(T)) {
      return Truncated("the file ends at byte %d, within %s", file_.size(), what);
    }
    std::memcpy(&value, file_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return absl::OkStatus();
  }

  absl::Status ReadString(std::string_view what, std::string_view& value) {
    const uint64_t at = position_;
    uint64_t length = 0;
    ORCD_RETURN_IF_ERROR(Read(what, length));
    if (length > remaining()) {
      return Truncated("%s at byte %d is said to be %d bytes long, but the file ends at byte %d",
                       what, at, length, file_.size());
    }
    value = {reinterpret_cast<const char*>(file_.data() + position_), length};
    position_ += length;
    return absl::OkStatus();
  }

  absl::Status ReadName(std::string_view what, std::string_view& value) {
    const uint64_t at = position_;
    ORCD_RETURN_IF_ERROR(ReadString(what, value));
    if (value.empty()) return Malformed("%s at byte %d is empty", what, at);
    if (value.size() > kMaxNameBytes) {
      return Malformed("%s at byte %d has %d bytes; at most %d may be", what, at, value.size(),
                       kMaxNameBytes);
    }
    return absl::OkStatus();
  }

  absl::Status ReadCount(std::string_view what, uint64_t min_bytes, uint64_t max, uint64_t& count) {
    ORCD_RETURN_IF_ERROR(Read(absl::StrFormat("the %s count", what), count));
    if (count > remaining() / min_bytes) {
      return Truncated(
          "the header announces a %s count of %d, more than the file's %d bytes can "
          "hold",
          what, count, file_.size());
    }
    if (count > max) {
      return Malformed("the header announces a %s count of %d; at most %d are accepted", what,
                       count, max);
    }
    return absl::OkStatus();
  }

  absl::Status ParseMagicAndVersion() {
    const std::string_view start(reinterpret_cast<const char*>(file_.data()),
                                 std::min<size_t>(file_.size(), 64));
    if (start.substr(0, 4) != std::string_view("GGUF").substr(0, start.size())) {
      return MakeError(
          absl::StatusCode::kInvalidArgument,
          start.starts_with("version https://git-lfs")
              ? "this is a Git LFS pointer and not the model: fetch the file itself (git lfs pull)"
              : absl::StrFormat("this is not a GGUF file: it starts with %s and not with \"GGUF\"; "
                                "name a .gguf file, or convert the model to one",
                                QuoteForMessage(start.substr(0, 4))),
          {.reason = "GGUF_MALFORMED"});
    }
    position_ = std::min<size_t>(file_.size(), 4);
    ORCD_RETURN_IF_ERROR(Read("magic and version", header_.version));
    const uint32_t version = header_.version;
    if (version == 2 || version == 3) return absl::OkStatus();
    const uint32_t swapped = __builtin_bswap32(version);
    if (swapped >= 1 && swapped <= 0xffff && version > 0xffff) {
      return Unsupported(
          "the file is big-endian (version %d); convert it to little-endian "
          "(gguf-convert-endian)",
          swapped);
    }
    return Unsupported(
        "the file has GGUF version %d; versions 2 and 3 can be read: %s", version,
        version < 2 ? "convert the model again with a current tool" : "a newer worker may know it");
  }

  template <typename File, typename Wide>
  absl::Status ReadWide(std::string_view what, Wide& value) {
    File raw{};
    ORCD_RETURN_IF_ERROR(Read(what, raw));
    // Here an i8 is a number, not a character.
    value = static_cast<Wide>(raw);  // NOLINT(bugprone-signed-char-misuse)
    return absl::OkStatus();
  }

  absl::Status ReadBool(std::string_view what, uint64_t& value) {
    const uint64_t at = position_;
    ORCD_RETURN_IF_ERROR((ReadWide<uint8_t>(what, value)));
    if (value > 1) return Malformed("%s at byte %d is a bool of value %d", what, at, value);
    return absl::OkStatus();
  }

  // Reads unsigned integers and bools.
  absl::Status ReadUnsigned(GgufType type, std::string_view what, uint64_t& value) {
    switch (type) {
      case GgufType::kU8:
        return ReadWide<uint8_t>(what, value);
      case GgufType::kU16:
        return ReadWide<uint16_t>(what, value);
      case GgufType::kU32:
        return ReadWide<uint32_t>(what, value);
      case GgufType::kBool:
        return ReadBool(what, value);
      default:
        return ReadWide<uint64_t>(what, value);
    }
  }

  absl::Status ReadSigned(GgufType type, std::string_view what, int64_t& value) {
    switch (type) {
      case GgufType::kI8:
        return ReadWide<int8_t>(what, value);
      case GgufType::kI16:
        return ReadWide<int16_t>(what, value);
      case GgufType::kI32:
        return ReadWide<int32_t>(what, value);
      default:
        return ReadWide<int64_t>(what, value);
    }
  }

  absl::Status ReadFloat(GgufType type, std::string_view what, double& value) {
    return type == GgufType::kF32 ? ReadWide<float>(what, value) : ReadWide<double>(what, value);
  }

  absl::Status ParseEntry(uint64_t index) {
    const uint64_t at = position_;
    std::string_view key;
    ORCD_RETURN_IF_ERROR(ReadName(absl::StrFormat("the name of key %d", index), key));
    const std::string what = absl::StrFormat("the value of key %s", QuoteForMessage(key));
    GgufEntry entry;
    ORCD_RETURN_IF_ERROR(Read(what, entry.type));
    ORCD_RETURN_IF_ERROR(ParseValue(what, entry));
    const auto [it, inserted] = header_.entries.emplace(key, std::move(entry));
    if (!inserted) {
      return Malformed("key %s stands twice, again at byte %d", QuoteForMessage(key), at);
    }
    header_.keys.push_back(it->first);
    return absl::OkStatus();
  }

  absl::Status ParseValue(std::string_view what, GgufEntry& entry) {
    switch (entry.type) {
      case GgufType::kU8:
      case GgufType::kU16:
      case GgufType::kU32:
      case GgufType::kU64:
        return ReadUnsigned(entry.type, what, entry.value.emplace<uint64_t>());
      case GgufType::kI8:
      case GgufType::kI16:
      case GgufType::kI32:
      case GgufType::kI64:
        return ReadSigned(entry.type, what, entry.value.emplace<int64_t>());
      case GgufType::kF32:
      case GgufType::kF64:
        return ReadFloat(entry.type, what, entry.value.emplace<double>());
      case GgufType::kBool: {
        uint64_t value = 0;
        ORCD_RETURN_IF_ERROR(ReadBool(what, value));
        entry.value = value != 0;
        return absl::OkStatus();
      }
      case GgufType::kString:
        return ReadString(what, entry.value.emplace<std::string_view>());
      case GgufType::kArray:
        return ParseArray(what, entry);
    }
    return Malformed("%s has type %d, which is none", what, static_cast<uint32_t>(entry.type));
  }

  absl::Status ParseArray(std::string_view what, GgufEntry& entry) {
    auto array = std::make_shared<GgufArray>();
    uint64_t count = 0;
    ORCD_RETURN_IF_ERROR(Read(what, array->type));
    ORCD_RETURN_IF_ERROR(Read(what, count));
    const GgufType type = array->type;
    if (type == GgufType::kArray) {
      return Unsupported("%s is an array of arrays, which no supported model has; remove the key",
                         what);
    }
    if (type != GgufType::kString && FixedBytes(type) == 0) {
      return Malformed("%s is an array of type %d, which is none", what,
                       static_cast<uint32_t>(type));
    }
    // A string takes at least the 8 bytes of its length.
    const uint64_t element_bytes = type == GgufType::kString ? 8 : FixedBytes(type);
    if (count > remaining() / element_bytes) {
      return Truncated("%s is said to be an array of %d %s, but the file ends at byte %d", what,
                       count, GgufTypeName(type), file_.size());
    }
    array_elements_ += count;
    if (array_elements_ > kMaxArrayElements) {
      return Malformed("%s brings the elements of all arrays to %d; at most %d are accepted", what,
                       array_elements_, kMaxArrayElements);
    }
    switch (type) {
      case GgufType::kString:
        array->strings.resize(count);
        for (auto& value : array->strings) ORCD_RETURN_IF_ERROR(ReadString(what, value));
        break;
      case GgufType::kF32:
      case GgufType::kF64:
        array->float_values.resize(count);
        for (auto& value : array->float_values) ORCD_RETURN_IF_ERROR(ReadFloat(type, what, value));
        break;
      case GgufType::kI8:
      case GgufType::kI16:
      case GgufType::kI32:
      case GgufType::kI64:
        array->signed_values.resize(count);
        for (auto& value : array->signed_values) {
          ORCD_RETURN_IF_ERROR(ReadSigned(type, what, value));
        }
        break;
      default:
        array->unsigned_values.resize(count);
        for (auto& value : array->unsigned_values) {
          ORCD_RETURN_IF_ERROR(ReadUnsigned(type, what, value));
        }
    }
    entry.value = std::shared_ptr<const GgufArray>(std::move(array));
    return absl::OkStatus();
  }

  absl::Status SetAlignment() {
    const auto it = header_.entries.find("general.alignment");
    if (it == header_.entries.end()) return absl::OkStatus();
    const uint64_t alignment = std::get<uint64_t>(it->second.value);
    // At least 8, so that every tensor can be read in place.
    if (!std::has_single_bit(alignment) || alignment < 8) {
      return Malformed("\"general.alignment\" is %d and has to be a power of two, at least 8",
                       alignment);
    }
    header_.alignment = static_cast<uint32_t>(alignment);
    return absl::OkStatus();
  }

  absl::Status ParseTensor(uint64_t index, TensorView& tensor, uint64_t& offset) {
    ORCD_RETURN_IF_ERROR(ReadName(absl::StrFormat("the name of tensor %d", index), tensor.name));
    const std::string what = absl::StrFormat("tensor %s", QuoteForMessage(tensor.name));
    ORCD_RETURN_IF_ERROR(Read(what, tensor.n_dims));
    if (tensor.n_dims < 1 || tensor.n_dims > 4) {
      return Malformed("%s has %d dimensions; 1 to 4 may be", what, tensor.n_dims);
    }
    constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
    uint64_t elements = 1;
    for (uint32_t d = 0; d < tensor.n_dims; ++d) {
      ORCD_RETURN_IF_ERROR(Read(what, tensor.ne[d]));
      const uint64_t size = tensor.ne[d];
      if (size == 0 || size > kMax) {
        return Malformed("dimension %d of %s is %d and has to be 1 or more", d, what,
                         static_cast<int64_t>(size));
      }
      if (elements > kMax / size) {
        return Malformed("%s has more than 2^63 elements (dimension %d is %d)", what, d, size);
      }
      elements *= size;
    }
    uint32_t type_id = 0;
    ORCD_RETURN_IF_ERROR(Read(what, type_id));
    ORCD_RETURN_IF_ERROR(Read(what, offset));
    const TensorTypeInfo* type = FindSizedTensorType(type_id);
    if (type == nullptr) {
      return Unsupported("%s has tensor type %d, which is not known here; use a file in %s", what,
                         type_id, ReadableTypeNames());
    }
    if (allowed_types_ == AllowedTensorTypes::kReadable && FindTensorType(type_id) == nullptr) {
      return Unsupported("%s has tensor type %s, which cannot be run here; use a file in %s", what,
                         type->name, ReadableTypeNames());
    }
    tensor.type = type->type;
    if (tensor.ne[0] % type->block_weights != 0) {
      return Malformed(
          "%s has rows of %d weights, which is not a multiple of the %d that a block "
          "of %s holds",
          what, tensor.ne[0], type->block_weights, type->name);
    }
    const uint64_t blocks = elements / type->block_weights;
    if (blocks > kMax / type->block_bytes) {
      return Malformed("%s of %d %s weights has more than 2^63 bytes", what, elements, type->name);
    }
    if (offset % header_.alignment != 0) {
      return Malformed("%s starts at offset %d, which is not a multiple of the alignment %d", what,
                       offset, header_.alignment);
    }
    return absl::OkStatus();
  }

  static std::string ReadableTypeNames() {
    std::string names;
    for (const TensorTypeInfo& info : AllTensorTypes()) {
      absl::StrAppendFormat(&names, "%s%s", names.empty() ? "" : ", ", info.name);
    }
    return names;
  }

  absl::Status CheckTensorNames() const {
    std::vector<std::string_view> names;
    names.reserve(header_.tensors.size());
    for (const TensorView& tensor : header_.tensors) names.push_back(tensor.name);
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice == names.end()) return absl::OkStatus();
    return Malformed("tensor %s stands twice", QuoteForMessage(*twice));
  }

  absl::Status PlaceTensors(const std::vector<uint64_t>& offsets) {
    if (header_.tensors.empty()) return absl::OkStatus();
    const uint64_t alignment = header_.alignment;
    const uint64_t start = (position_ + alignment - 1) / alignment * alignment;
    for (size_t i = 0; i < offsets.size(); ++i) {
      TensorView& tensor = header_.tensors[i];
      const uint64_t bytes = tensor.row_bytes() * tensor.row_count();
      if (start > file_.size() || offsets[i] > file_.size() - start ||
          bytes > file_.size() - start - offsets[i]) {
        return Truncated(
            "tensor %s of %d bytes at offset %d of the data, which starts at byte %d, "
            "passes the end of the file at byte %d",
            QuoteForMessage(tensor.name), bytes, offsets[i], start, file_.size());
      }
      tensor.data = file_.subspan(start + offsets[i], bytes);
    }
    return CheckOverlaps();
  }

  absl::Status CheckOverlaps() const {
    std::vector<const TensorView*> by_place;
    by_place.reserve(header_.tensors.size());
    for (const TensorView& tensor : header_.tensors) by_place.push_back(&tensor);
    std::sort(by_place.begin(), by_place.end(), [](const TensorView* a, const TensorView* b) {
      return a->data.data() < b->data.data();
    });
    for (size_t i = 1; i < by_place.size(); ++i) {
      const TensorView& before = *by_place[i - 1];
      const TensorView& tensor = *by_place[i];
      if (before.data.data() + before.data.size() > tensor.data.data()) {
        return Malformed("tensors %s and %s overlap: they share byte %d of the file",
                         QuoteForMessage(before.name), QuoteForMessage(tensor.name),
                         tensor.data.data() - file_.data());
      }
    }
    return absl::OkStatus();
  }

  std::span<const std::byte> file_;
  AllowedTensorTypes allowed_types_;
  uint64_t position_ = 0;
  uint64_t array_elements_ = 0;
  GgufHeader header_;
};

}  // namespace

uint64_t TensorView::row_bytes() const {
  const TensorTypeInfo& info = GetTensorTypeInfo(type);
  return ne[0] / info.block_weights * info.block_bytes;
}

std::string QuoteForMessage(std::string_view text) {
  constexpr size_t kMaxShown = 80;
  const std::string_view shown = text.substr(0, kMaxShown);
  return absl::StrFormat("\"%s\"%s", absl::CEscape({shown.data(), shown.size()}),
                         shown.size() < text.size() ? "…" : "");
}

absl::StatusOr<GgufHeader> ParseGgufHeader(std::span<const std::byte> file,
                                           AllowedTensorTypes allowed_types) {
  return Parser(file, allowed_types).Parse();
}

}  // namespace orcd
