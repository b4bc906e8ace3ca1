#include "runtime/gguf/gguf_header.h"

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/gguf/gguf_writer.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// GGUF bytes written by hand, valid or not.
class Bytes {
 public:
  Bytes& Text(std::string_view text) {
    bytes_ += text;
    return *this;
  }
  Bytes& U8(uint8_t value) { return Raw(value); }
  Bytes& U16(uint16_t value) { return Raw(value); }
  Bytes& U32(uint32_t value) { return Raw(value); }
  Bytes& U64(uint64_t value) { return Raw(value); }
  Bytes& String(std::string_view text) { return U64(text.size()).Text(text); }
  Bytes& Key(std::string_view key, GgufType type) {
    return String(key).U32(static_cast<uint32_t>(type));
  }
  Bytes& Pad(size_t alignment) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
    return *this;
  }
  Bytes& Zeros(size_t count) {
    bytes_.append(count, '\0');
    return *this;
  }
  const std::string& str() const { return bytes_; }

 private:
  template <typename T>
  Bytes& Raw(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }

  std::string bytes_;
};

Bytes Start(uint64_t n_tensors, uint64_t n_keys, uint32_t version = 3) {
  return Bytes().Text("GGUF").U32(version).U64(n_tensors).U64(n_keys);
}

// Appends a tensor info.
Bytes& Tensor(Bytes& bytes, std::string_view name, std::vector<uint64_t> ne, uint32_t type,
              uint64_t offset) {
  bytes.String(name).U32(static_cast<uint32_t>(ne.size()));
  for (uint64_t size : ne) bytes.U64(size);
  return bytes.U32(type).U64(offset);
}

// A file of one tensor, with enough data for a valid tensor.
std::string OneTensor(std::vector<uint64_t> ne, uint32_t type, uint64_t offset) {
  Bytes bytes = Start(1, 0);
  return Tensor(bytes, "w", std::move(ne), type, offset).Pad(32).Zeros(4096).str();
}

// A file of one key of scalar or array type; `rest` is its value.
std::string OneKey(std::string_view key, GgufType type, const Bytes& rest) {
  return Start(0, 1).Key(key, type).Text(rest.str()).str();
}

absl::StatusOr<GgufHeader> Parse(std::string_view file,
                                 AllowedTensorTypes allowed = AllowedTensorTypes::kReadable) {
  return ParseGgufHeader(std::as_bytes(std::span(file)), allowed);
}

TEST(GgufHeaderTest, ReadsEveryTypeOfValue) {
  const std::string file = Start(0, 13)
                               .Key("u8", GgufType::kU8)
                               .U8(200)
                               .Key("i8", GgufType::kI8)
                               .U8(0xff)
                               .Key("u16", GgufType::kU16)
                               .U16(65'535)
                               .Key("i16", GgufType::kI16)
                               .U16(0x8000)
                               .Key("u32", GgufType::kU32)
                               .U32(4'000'000'000)
                               .Key("i32", GgufType::kI32)
                               .U32(0xfffffffe)
                               .Key("f32", GgufType::kF32)
                               .U32(0x3fc00000)
                               .Key("bool", GgufType::kBool)
                               .U8(1)
                               .Key("string", GgufType::kString)
                               .String("text")
                               .Key("array", GgufType::kArray)
                               .U32(static_cast<uint32_t>(GgufType::kI16))
                               .U64(2)
                               .U16(7)
                               .U16(0xffff)
                               .Key("u64", GgufType::kU64)
                               .U64(1ull << 63)
                               .Key("i64", GgufType::kI64)
                               .U64(~0ull)
                               .Key("f64", GgufType::kF64)
                               .U64(0xbff8000000000000)
                               .str();
  const auto header = Parse(file);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_THAT(header->keys, ElementsAre("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool",
                                        "string", "array", "u64", "i64", "f64"));
  const auto value = [&](std::string_view key) { return header->entries.at(key).value; };
  EXPECT_EQ(value("u8"), GgufValue(uint64_t{200}));
  EXPECT_EQ(value("i8"), GgufValue(int64_t{-1}));
  EXPECT_EQ(value("u16"), GgufValue(uint64_t{65'535}));
  EXPECT_EQ(value("i16"), GgufValue(int64_t{-32'768}));
  EXPECT_EQ(value("u32"), GgufValue(uint64_t{4'000'000'000}));
  EXPECT_EQ(value("i32"), GgufValue(int64_t{-2}));
  EXPECT_EQ(value("f32"), GgufValue(1.5));
  EXPECT_EQ(value("bool"), GgufValue(true));
  EXPECT_EQ(value("string"), GgufValue(std::string_view("text")));
  EXPECT_EQ(value("u64"), GgufValue(uint64_t{1} << 63));
  EXPECT_EQ(value("i64"), GgufValue(int64_t{-1}));
  EXPECT_EQ(value("f64"), GgufValue(-1.5));
  const auto array = std::get<std::shared_ptr<const GgufArray>>(value("array"));
  EXPECT_EQ(array->type, GgufType::kI16);
  EXPECT_THAT(array->signed_values, ElementsAre(7, -1));
  EXPECT_EQ(header->entries.at("f64").type, GgufType::kF64);
}

TEST(GgufHeaderTest, ReadsVersion2AndEmptyFiles) {
  const auto header = Parse(Start(0, 0, 2).str());
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->version, 2u);
  EXPECT_EQ(header->alignment, 32u);
}

TEST(GgufHeaderTest, PlacesTensors) {
  GgufWriter writer(64);
  writer.AddTensor("a", TensorType::kF32, std::vector<uint64_t>{3});
  writer.AddTensor("b", TensorType::kQ4_K, std::vector<uint64_t>{512, 2, 3});
  std::string file = writer.Header() + std::string(writer.data_bytes(), '\0');
  const size_t data = writer.Header().size();
  file[data] = 'A';
  file[data + 64] = 'B';
  const auto header = Parse(file);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->alignment, 64u);
  ASSERT_EQ(header->tensors.size(), 2u);
  const TensorView& a = header->tensors[0];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.data.size(), 12u);
  EXPECT_EQ(static_cast<char>(a.data[0]), 'A');
  const TensorView& b = header->tensors[1];
  EXPECT_EQ(b.type, TensorType::kQ4_K);
  EXPECT_EQ(b.n_dims, 3u);
  EXPECT_THAT(b.ne, ElementsAre(512, 2, 3, 1));
  EXPECT_EQ(b.element_count(), 3072u);
  EXPECT_EQ(b.row_length(), 512u);
  EXPECT_EQ(b.row_count(), 6u);
  EXPECT_EQ(b.row_bytes(), 288u);
  EXPECT_EQ(b.data.size(), 1728u);
  EXPECT_EQ(static_cast<char>(b.data[0]), 'B');
}

TEST(GgufHeaderTest, TypesThatCannotBeRunCanBeLookedAt) {
  const std::string file = OneTensor({256}, 41, 0);  // Q1_0
  const auto refused = Parse(file);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("Q1_0"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("Q4_K"));
  const auto seen = Parse(file, AllowedTensorTypes::kSized);
  ASSERT_TRUE(seen.ok()) << seen.status();
  EXPECT_EQ(seen->tensors[0].data.size(), 36u);
}

struct BadFile {
  std::string_view name;
  std::string file;
  std::string_view reason;
  std::string_view message;  // a part of the message
};

void PrintTo(const BadFile& bad, std::ostream* out) { *out << bad.name; }

class BadFileTest : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadFileTest, IsRefused) {
  const BadFile& bad = GetParam();
  // The file is also refused if it is only inspected.
  for (auto allowed : {AllowedTensorTypes::kReadable, AllowedTensorTypes::kSized}) {
    const auto header = Parse(bad.file, allowed);
    ASSERT_FALSE(header.ok());
    EXPECT_EQ(GetErrorDetails(header.status()).reason, bad.reason) << header.status();
    EXPECT_THAT(std::string(header.status().message()), HasSubstr(std::string(bad.message)));
    EXPECT_EQ(header.status().code(), bad.reason == "GGUF_UNSUPPORTED"
                                          ? absl::StatusCode::kUnimplemented
                                          : absl::StatusCode::kInvalidArgument);
  }
}

constexpr uint32_t kF32 = 0;
constexpr uint32_t kQ4_K = 12;
constexpr uint64_t kHuge = 1ull << 62;
constexpr uint32_t kStringId = 8;
constexpr uint32_t kArrayId = 9;

std::string TwoTensors(std::string_view second_name, uint64_t second_offset) {
  Bytes bytes = Start(2, 0);
  Tensor(bytes, "w", {16}, kF32, 0);  // 64 bytes
  return Tensor(bytes, second_name, {16}, kF32, second_offset).Pad(32).Zeros(4096).str();
}

std::string NameOf(size_t length) {
  Bytes bytes = Start(1, 0);
  return Tensor(bytes, std::string(length, 'n'), {16}, kF32, 0).Pad(32).Zeros(4096).str();
}

std::vector<BadFile> BadFiles() {
  const std::string_view malformed = "GGUF_MALFORMED";
  const std::string_view truncated = "GGUF_TRUNCATED";
  const std::string_view unsupported = "GGUF_UNSUPPORTED";
  Bytes array_of_bools;
  array_of_bools.U32(static_cast<uint32_t>(GgufType::kBool)).U64(2).U8(1).U8(3);
  Bytes nested;
  nested.U32(kArrayId).U64(1).U32(0).U64(0);
  return {
      {"Empty", "", truncated, "ends at byte 0"},
      {"Magic", Bytes().Text("GGML").Zeros(64).str(), malformed, "starts with \"GGML\""},
      {"MagicShort", "GX", malformed, "not a GGUF file"},
      {"GitLfs", "version https://git-lfs.github.com/spec/v1\noid sha256:00", malformed,
       "Git LFS pointer"},
      {"MagicOnly", "GGUF", truncated, "magic and version"},
      {"Version0", Start(0, 0, 0).str(), unsupported, "version 0"},
      {"Version1", Start(0, 0, 1).str(), unsupported, "version 1"},
      {"Version4", Start(0, 0, 4).str(), unsupported, "version 4"},
      {"BigEndian", Start(0, 0, 0x03000000).str(), unsupported, "big-endian (version 3)"},
      {"TensorCountPastEnd", Start(kHuge, 0).Zeros(64).str(), truncated,
       "tensor count of 4611686018427387904"},
      {"KeyCountPastEnd", Start(0, kHuge).Zeros(64).str(), truncated,
       "metadata key count of 4611686018427387904"},
      {"KeyCountAboveLimit", Start(0, 70'000).Zeros(70'000 * 16).str(), malformed,
       "key count of 70000"},
      {"KeyLengthPastEnd", Start(0, 1).U64(kHuge).Zeros(64).str(), truncated,
       "the name of key 0 at byte 24 is said to be 4611686018427387904 bytes long"},
      {"KeyLengthWraps", Start(0, 1).U64(~0ull).Zeros(64).str(), truncated,
       "18446744073709551615 bytes long"},
      {"KeyEmpty", Start(0, 1).Key("", GgufType::kU8).Zeros(64).str(), malformed, "is empty"},
      {"KeyTooLong", Start(0, 1).Key(std::string(70'000, 'k'), GgufType::kU8).U8(0).str(),
       malformed, "has 70000 bytes"},
      {"KeyTwice", Start(0, 2).Key("k", GgufType::kU8).U8(1).Key("k", GgufType::kU8).U8(2).str(),
       malformed, "key \"k\" stands twice"},
      {"ValueType", Start(0, 1).String("k").U32(13).Zeros(64).str(), malformed,
       "key \"k\" has type 13"},
      {"ValuePastEnd", OneKey("a.key", GgufType::kU64, Bytes().U32(1)), truncated,
       "within the value of key \"a.key\""},
      {"BoolValue", OneKey("k", GgufType::kBool, Bytes().U8(2)), malformed, "bool of value 2"},
      {"StringPastEnd", OneKey("k", GgufType::kString, Bytes().U64(9).Text("12345678")), truncated,
       "is said to be 9 bytes long"},
      {"ArrayType", OneKey("k", GgufType::kArray, Bytes().U32(77).U64(0)), malformed,
       "array of type 77"},
      {"ArrayOfArrays", OneKey("k", GgufType::kArray, nested), unsupported, "array of arrays"},
      {"ArrayCountPastEnd", OneKey("k", GgufType::kArray, Bytes().U32(6).U64(kHuge).Zeros(64)),
       truncated, "array of 4611686018427387904 f32"},
      {"ArrayByteCountWraps",
       OneKey("k", GgufType::kArray, Bytes().U32(6).U64((1ull << 62) + 1).Zeros(64)), truncated,
       "array of 4611686018427387905 f32"},
      {"ArrayAboveLimit",
       OneKey("k", GgufType::kArray, Bytes().U32(0).U64(16'777'217).Zeros(16'777'217)), malformed,
       "elements of all arrays to 16777217"},
      {"ArrayOfBadBools", OneKey("k", GgufType::kArray, array_of_bools), malformed,
       "bool of value 3"},
      {"StringsCountPastEnd",
       OneKey("k", GgufType::kArray, Bytes().U32(kStringId).U64(9).Zeros(64)), truncated,
       "array of 9 string"},
      {"StringsElementPastEnd",
       OneKey("k", GgufType::kArray, Bytes().U32(kStringId).U64(2).String("a").U64(50).Text("b")),
       truncated, "is said to be 50 bytes long"},
      {"AlignmentType", OneKey("general.alignment", GgufType::kU64, Bytes().U64(32)), malformed,
       "is u64 and has to be u32"},
      {"AlignmentString", OneKey("general.alignment", GgufType::kString, Bytes().String("32")),
       malformed, "is string and has to be u32"},
      {"AlignmentZero", OneKey("general.alignment", GgufType::kU32, Bytes().U32(0)), malformed,
       "is 0 and has to be a power of two"},
      {"AlignmentOdd", OneKey("general.alignment", GgufType::kU32, Bytes().U32(48)), malformed,
       "is 48 and has to be a power of two"},
      {"AlignmentSmall", OneKey("general.alignment", GgufType::kU32, Bytes().U32(4)), malformed,
       "at least 8"},
      {"ScoresType",
       OneKey("tokenizer.ggml.scores", GgufType::kArray, Bytes().U32(kStringId).U64(1).String("x")),
       malformed, "is an array of string and has to be an array of f32"},
      {"ScoresScalar", OneKey("tokenizer.ggml.scores", GgufType::kF32, Bytes().U32(0)), malformed,
       "is f32 and has to be an array of f32"},
      {"TokenTypeType",
       OneKey("tokenizer.ggml.token_type", GgufType::kArray, Bytes().U32(6).U64(1).U32(0)),
       malformed, "is an array of f32 and has to be an array of integers"},
      {"TokensType",
       OneKey("tokenizer.ggml.tokens", GgufType::kArray, Bytes().U32(4).U64(1).U32(0)), malformed,
       "is an array of u32 and has to be an array of strings"},
      {"SplitCountType", OneKey("split.count", GgufType::kU32, Bytes().U32(2)), malformed,
       "is u32 and has to be u16"},
      {"SplitTensorsType", OneKey("split.tensors.count", GgufType::kString, Bytes().String("2")),
       malformed, "is string and has to be i32"},
      {"TensorNameEmpty", NameOf(0), malformed, "the name of tensor 0 at byte 24 is empty"},
      {"TensorNameTooLong", NameOf(70'000), malformed, "has 70000 bytes"},
      {"TensorTwice", TwoTensors("w", 64), malformed, "tensor \"w\" stands twice"},
      {"NoDimensions", OneTensor({}, kF32, 0), malformed, "has 0 dimensions"},
      {"FiveDimensions", OneTensor({1, 1, 1, 1, 1}, kF32, 0), malformed, "has 5 dimensions"},
      {"DimensionZero", OneTensor({32, 0}, kF32, 0), malformed, "dimension 1 of tensor \"w\" is 0"},
      {"DimensionNegative", OneTensor({static_cast<uint64_t>(-32)}, kF32, 0), malformed,
       "dimension 0 of tensor \"w\" is -32"},
      {"ElementsOverflow", OneTensor({1ull << 32, 1ull << 32}, kF32, 0), malformed,
       "more than 2^63 elements"},
      {"ElementsOverflowToSmall", OneTensor({1ull << 33, (1ull << 31) + 1, 4}, kF32, 0), malformed,
       "more than 2^63 elements"},
      {"BytesOverflow", OneTensor({1ull << 62}, kF32, 0), malformed, "more than 2^63 bytes"},
      {"TensorType", OneTensor({32}, 4, 0), unsupported, "has tensor type 4"},
      {"TensorTypeHuge", OneTensor({32}, 0xffffffff, 0), unsupported, "tensor type 4294967295"},
      {"RowNotBlocks", OneTensor({128, 2}, kQ4_K, 0), malformed, "rows of 128 weights"},
      {"OffsetMisaligned", OneTensor({16}, kF32, 16), malformed, "not a multiple of the alignment"},
      {"OffsetPastEnd", OneTensor({16}, kF32, 8192), truncated, "passes the end of the file"},
      {"OffsetWraps", OneTensor({16}, kF32, ~31ull), truncated, "passes the end of the file"},
      {"DataPastEnd", OneTensor({1032}, kF32, 0), truncated, "passes the end of the file"},
      {"Overlap", TwoTensors("v", 32), malformed, "tensors \"w\" and \"v\" overlap"},
      {"OverlapWhole", TwoTensors("v", 0), malformed, "overlap"},
      {"NameNotText", TwoTensors("w\x01\xff\"", 32), malformed, R"("w\001\377\"")"},
  };
}

INSTANTIATE_TEST_SUITE_P(GgufHeaderTest, BadFileTest, ::testing::ValuesIn(BadFiles()),
                         [](const auto& info) { return std::string(info.param.name); });

std::string SmallFile() {
  GgufWriter writer;
  writer.SetString("general.architecture", "qwen2");
  writer.SetU32("n", 3);
  writer.SetStrings("tokenizer.ggml.tokens", std::vector<std::string>{"a", "bc"});
  writer.SetF32s("tokenizer.ggml.scores", std::vector<float>{1, 2});
  writer.AddTensor("a", TensorType::kF32, std::vector<uint64_t>{8});
  writer.AddTensor("b", TensorType::kQ8_0, std::vector<uint64_t>{32, 2});
  return writer.Header() + std::string(writer.data_bytes(), '\0');
}

// A file cut anywhere is refused, unless the cut is in the padding after the last tensor.
TEST(GgufHeaderTest, EveryTruncationIsRefused) {
  const std::string file = SmallFile();
  ASSERT_TRUE(Parse(file).ok());
  const size_t last_byte = file.size() - (96 - 68);  // Two rows of Q8_0 are 68 bytes.
  for (size_t size = 0; size < file.size(); ++size) {
    // A copy of exactly this size, so that a sanitizer detects a read past the end.
    const std::vector<char> cut(file.begin(), file.begin() + size);
    const auto header = Parse({cut.data(), cut.size()});
    if (size >= last_byte) {
      EXPECT_TRUE(header.ok()) << size << ": " << header.status();
    } else {
      ASSERT_FALSE(header.ok()) << size;
      EXPECT_EQ(GetErrorDetails(header.status()).reason, "GGUF_TRUNCATED") << size;
    }
  }
}

// Any one byte may have any value: an accepted file's tensors stay within the file.
TEST(GgufHeaderTest, EveryByteMayBeAnything) {
  const std::string file = SmallFile();
  int accepted = 0;
  for (size_t at = 0; at < file.size() - 128; ++at) {
    for (int value : {0x00, 0x01, 0x02, 0x7f, 0x80, 0xfe, 0xff}) {
      std::string changed = file;
      changed[at] = static_cast<char>(value);
      const auto header = Parse(changed, AllowedTensorTypes::kSized);
      if (!header.ok()) continue;
      ++accepted;
      for (const TensorView& tensor : header->tensors) {
        const auto* begin = reinterpret_cast<const std::byte*>(changed.data());
        ASSERT_GE(tensor.data.data(), begin);
        ASSERT_LE(tensor.data.data() + tensor.data.size(), begin + changed.size());
      }
    }
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace orcd
