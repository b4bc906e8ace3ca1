#include "runtime/gguf/gguf_reader.h"

#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/gguf/gguf_writer.h"
#include "runtime/gguf/split_path.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A separate folder for each test.
std::string Folder() {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string folder = ::testing::TempDir() + "/gguf_reader_test." + std::to_string(getpid()) +
                       "." + test->test_suite_name() + "." + test->name() + "/";
  std::filesystem::create_directories(folder);
  return folder;
}

// Writes a file whose data is zeros.
std::string Write(const GgufWriter& writer, const std::string& path) {
  auto file = writer.CreateFile(path);
  EXPECT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->Finish().ok());
  return path;
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(GgufReaderTest, TypedAccess) {
  GgufWriter writer;
  writer.SetU16("u16", 7);
  writer.SetU32("u32", 4'000'000'000);
  writer.SetI32("i32", -1);
  writer.SetF32("f32", 0.1f);
  writer.SetBool("bool", true);
  writer.SetString("string", "text");
  writer.SetStrings("strings", std::vector<std::string>{"a", "", "c"});
  writer.SetI32s("i32s", std::vector<int32_t>{-1, 2});
  writer.SetF32s("f32s", std::vector<float>{0.5f});
  GgufEntry big = {GgufType::kU64, uint64_t{1} << 32};
  writer.Set("big", big);
  auto bytes = std::make_shared<GgufArray>();
  bytes->type = GgufType::kU8;
  bytes->unsigned_values = {0, 255};
  writer.Set("u8s", {GgufType::kArray, bytes});
  auto wide = std::make_shared<GgufArray>();
  wide->type = GgufType::kI64;
  wide->signed_values = {1, int64_t{1} << 40};
  writer.Set("i64s", {GgufType::kArray, wide});
  const auto gguf = GgufReader::Open(Write(writer, Folder() + "a.gguf"));
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  const GgufReader& reader = **gguf;

  EXPECT_EQ(reader.version(), 3u);
  EXPECT_EQ(reader.keys().size(), 12u);
  EXPECT_EQ(*reader.GetU32("u16"), 7u);
  EXPECT_EQ(*reader.GetU32("u32"), 4'000'000'000u);
  EXPECT_EQ(*reader.GetF32("f32"), 0.1f);
  EXPECT_TRUE(*reader.GetBool("bool"));
  EXPECT_EQ(*reader.GetString("string"), "text");
  EXPECT_THAT(*reader.GetStrings("strings"), ElementsAre("a", "", "c"));
  EXPECT_THAT(*reader.GetI32s("i32s"), ElementsAre(-1, 2));
  EXPECT_THAT(*reader.GetI32s("u8s"), ElementsAre(0, 255));
  EXPECT_THAT(*reader.GetF32s("f32s"), ElementsAre(0.5f));

  const auto missing = reader.GetU32("missing");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(GetErrorDetails(missing.status()).reason, "GGUF_KEY_MISSING");
  EXPECT_EQ(GetErrorDetails(missing.status()).subject, "missing");

  const auto expect_error = [](const absl::Status& status, std::string_view reason,
                               const std::string& message) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(GetErrorDetails(status).reason, reason);
    EXPECT_THAT(Message(status), HasSubstr(message));
  };
  expect_error(reader.GetU32("i32").status(), "GGUF_KEY_RANGE", "is -1");
  expect_error(reader.GetU32("big").status(), "GGUF_KEY_RANGE", "is 4294967296");
  expect_error(reader.GetU32("bool").status(), "GGUF_KEY_TYPE", "is bool and has to be an integer");
  expect_error(reader.GetF32("u32").status(), "GGUF_KEY_TYPE", "is u32 and has to be f32");
  expect_error(reader.GetBool("u16").status(), "GGUF_KEY_TYPE", "is u16 and has to be bool");
  expect_error(reader.GetString("strings").status(), "GGUF_KEY_TYPE", "is an array of string");
  expect_error(reader.GetStrings("string").status(), "GGUF_KEY_TYPE", "has to be an array of str");
  expect_error(reader.GetStrings("i32s").status(), "GGUF_KEY_TYPE", "is an array of i32");
  expect_error(reader.GetI32s("f32s").status(), "GGUF_KEY_TYPE", "is an array of f32");
  expect_error(reader.GetI32s("strings").status(), "GGUF_KEY_TYPE", "is an array of string");
  expect_error(reader.GetF32s("i32s").status(), "GGUF_KEY_TYPE", "is an array of i32");
  expect_error(reader.GetI32s("u32").status(), "GGUF_KEY_TYPE", "is u32");
  expect_error(reader.GetI32s("i64s").status(), "GGUF_KEY_RANGE", "1099511627776 at index 1");
}

TEST(GgufReaderTest, TensorsHoldWhatWasWritten) {
  GgufWriter writer;
  const size_t a = writer.AddTensor("a", TensorType::kF32, std::vector<uint64_t>{3});
  const size_t b = writer.AddTensor("b", TensorType::kQ8_0, std::vector<uint64_t>{32, 4});
  const std::string path = Folder() + "a.gguf";
  {
    auto file = writer.CreateFile(path);
    ASSERT_TRUE(file.ok());
    const std::vector<float> values = {1, 2, 3};
    ASSERT_TRUE(file->Write(a, 0, std::as_bytes(std::span(values))).ok());
    // Writes row by row, from several threads, in any order.
    std::vector<std::thread> threads;
    for (int row = 3; row >= 0; --row) {
      threads.emplace_back([&file, b, row] {
        const std::vector<std::byte> bytes(34, static_cast<std::byte>(row + 1));
        EXPECT_TRUE(file->Write(b, row * 34, bytes).ok());
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(file->Write(b, 4 * 34, std::vector<std::byte>(1)).code(),
              absl::StatusCode::kOutOfRange);
    EXPECT_FALSE(std::filesystem::exists(path));
    ASSERT_TRUE(file->Finish().ok());
  }
  const auto gguf = GgufReader::Open(path);
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  EXPECT_EQ((*gguf)->total_bytes(), std::filesystem::file_size(path));
  ASSERT_EQ((*gguf)->tensors().size(), 2u);
  const TensorView* tensor = (*gguf)->FindTensor("a");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(reinterpret_cast<const float*>(tensor->data.data())[2], 3.0f);
  tensor = (*gguf)->FindTensor("b");
  ASSERT_NE(tensor, nullptr);
  ASSERT_EQ(tensor->data.size(), 4u * 34u);
  for (size_t i = 0; i < tensor->data.size(); ++i) {
    ASSERT_EQ(static_cast<size_t>(tensor->data[i]), i / 34 + 1);
  }
  EXPECT_EQ((*gguf)->FindTensor("c"), nullptr);
}

TEST(GgufWriterTest, LeavesNothingWhereItDoesNotFinish) {
  const std::string folder = Folder();
  { const auto file = GgufWriter().CreateFile(folder + "a.gguf"); }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  const auto nowhere = GgufWriter().CreateFile(folder + "no_such_folder/a.gguf");
  EXPECT_EQ(nowhere.status().code(), absl::StatusCode::kNotFound);
}

TEST(GgufReaderTest, ErrorsNameTheFile) {
  const std::string path = Folder() + "bad.gguf";
  std::ofstream(path) << "not a model";
  const auto gguf = GgufReader::Open(path);
  EXPECT_EQ(GetErrorDetails(gguf.status()).reason, "GGUF_MALFORMED");
  EXPECT_THAT(Message(gguf.status()), HasSubstr(path + ": "));
}

TEST(GgufReaderTest, NoticesThatItsFileChanged) {
  const std::string path = Folder() + "a.gguf";
  GgufWriter writer;
  writer.AddTensor("a", TensorType::kF32, std::vector<uint64_t>{100'000});
  const auto gguf = GgufReader::Open(Write(writer, path));
  ASSERT_TRUE(gguf.ok());
  EXPECT_TRUE((*gguf)->CheckIntact().ok());
  std::filesystem::resize_file(path, 4096);
  const auto data = (*gguf)->FindTensor("a")->data;
  EXPECT_EQ(std::accumulate(data.begin(), data.end(), 0,
                            [](int sum, std::byte b) { return sum + static_cast<int>(b); }),
            0);
  EXPECT_EQ((*gguf)->CheckIntact().code(), absl::StatusCode::kDataLoss);
}

// A split model of three parts with one tensor each. The arguments give the metadata of a part.
class SplitTest : public ::testing::Test {
 protected:
  void WritePart(int no, uint16_t said_no, uint16_t said_count, std::string_view tensor,
                 int32_t said_tensors = 3) {
    GgufWriter writer(no == 1 ? 128 : 32);
    if (no == 0) writer.SetString("general.name", "split");
    writer.SetU16("split.no", said_no);
    writer.SetU16("split.count", said_count);
    writer.SetI32("split.tensors.count", said_tensors);
    writer.AddTensor(tensor, TensorType::kF32, std::vector<uint64_t>{4});
    Write(writer, Path(no));
  }
  void WriteAll() {
    WritePart(0, 0, 3, "a");
    WritePart(1, 1, 3, "b");
    WritePart(2, 2, 3, "c");
  }
  std::string Path(int no) { return SplitPath(Folder() + "model", no, 3); }

  void ExpectMalformed(const std::string& path, const std::string& message) {
    const auto gguf = GgufReader::Open(path);
    ASSERT_FALSE(gguf.ok());
    EXPECT_EQ(gguf.status().code(), absl::StatusCode::kInvalidArgument) << gguf.status();
    EXPECT_EQ(GetErrorDetails(gguf.status()).reason, "GGUF_MALFORMED");
    EXPECT_THAT(Message(gguf.status()), HasSubstr(message));
  }
};

TEST_F(SplitTest, AllPartsAreOneModel) {
  WriteAll();
  const auto gguf = GgufReader::Open(Path(0));
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  EXPECT_EQ((*gguf)->files().size(), 3u);
  EXPECT_EQ((*gguf)->files()[2].path(), Path(2));
  ASSERT_EQ((*gguf)->tensors().size(), 3u);
  EXPECT_EQ((*gguf)->tensors()[1].name, "b");
  EXPECT_NE((*gguf)->FindTensor("c"), nullptr);
  EXPECT_EQ(*(*gguf)->GetString("general.name"), "split");
  EXPECT_EQ((*gguf)->total_bytes(), std::filesystem::file_size(Path(0)) +
                                        std::filesystem::file_size(Path(1)) +
                                        std::filesystem::file_size(Path(2)));
  std::filesystem::resize_file(Path(1), 10);
  EXPECT_EQ((*gguf)->CheckIntact().code(), absl::StatusCode::kDataLoss);
}

TEST_F(SplitTest, NamesMayEndInCapitals) {
  WriteAll();
  const auto capital = [&](int no) { return SplitPath(Folder() + "model", no, 3, ".GGUF"); };
  for (int no = 0; no < 3; ++no) std::filesystem::rename(Path(no), capital(no));
  const auto gguf = GgufReader::Open(capital(0));
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  EXPECT_EQ((*gguf)->files()[2].path(), capital(2));
}

TEST_F(SplitTest, APartIsMissing) {
  WriteAll();
  std::filesystem::remove(Path(2));
  const auto gguf = GgufReader::Open(Path(0));
  EXPECT_EQ(gguf.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(GetErrorDetails(gguf.status()).reason, "FILE_NOT_FOUND");
  EXPECT_THAT(Message(gguf.status()), HasSubstr("part 3 of 3: " + Path(2)));
}

TEST_F(SplitTest, APartThatIsNotTheFirst) {
  WriteAll();
  ExpectMalformed(Path(1), "is part 2 of 3; name the first part, model-00001-of-00003.gguf");
}

TEST_F(SplitTest, APartThatWasRenamed) {
  WriteAll();
  std::filesystem::rename(Path(0), Folder() + "model.gguf");
  ExpectMalformed(Folder() + "model.gguf", "name has to end in -00001-of-00003.gguf");
}

TEST_F(SplitTest, PartsInTheWrongOrder) {
  WriteAll();
  WritePart(1, 2, 3, "b");
  ExpectMalformed(Path(0), "says that it is part 3 of 3 and should be part 2 of 3");
}

TEST_F(SplitTest, APartOfAnotherSplit) {
  WriteAll();
  WritePart(1, 1, 4, "b");
  ExpectMalformed(Path(0), "says that it is part 2 of 4 and should be part 2 of 3");
}

TEST_F(SplitTest, ANumberPastTheCount) {
  WritePart(0, 5, 3, "a");
  ExpectMalformed(Path(0), "says that it is part 6 of 3");
}

TEST_F(SplitTest, ATensorInTwoParts) {
  WriteAll();
  WritePart(2, 2, 3, "a");
  ExpectMalformed(Path(0), "tensor \"a\" stands in two parts");
}

TEST_F(SplitTest, TheWrongNumberOfTensors) {
  WriteAll();
  WritePart(0, 0, 3, "a", 4);
  ExpectMalformed(Path(0), "the 3 parts hold 3 tensors, and the first says 4");
}

TEST_F(SplitTest, ABadPartIsNamed) {
  WriteAll();
  std::filesystem::resize_file(Path(1), std::filesystem::file_size(Path(1)) - 120);
  const auto gguf = GgufReader::Open(Path(0));
  EXPECT_EQ(GetErrorDetails(gguf.status()).reason, "GGUF_TRUNCATED");
  EXPECT_THAT(Message(gguf.status()), HasSubstr(Path(1)));
}

TEST(SplitPathTest, NamesAndPrefixes) {
  EXPECT_EQ(SplitPath("/m/a", 0, 3), "/m/a-00001-of-00003.gguf");
  EXPECT_EQ(SplitPrefix("/m/a-00001-of-00003.gguf", 0, 3), "/m/a");
  EXPECT_EQ(SplitPrefix("/m/a-00001-of-00003.gguf", 1, 3), std::nullopt);
  EXPECT_EQ(SplitPrefix("-00001-of-00003.gguf", 0, 3), std::nullopt);
}

// A vocabulary of realistic size opens quickly.
TEST(GgufReaderTest, OpensALargeVocabularyQuickly) {
  GgufWriter writer;
  std::vector<std::string> tokens(151'936);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = "token " + std::to_string(i);
  writer.SetStrings("tokenizer.ggml.tokens", tokens);
  writer.SetStrings("tokenizer.ggml.merges", tokens);
  writer.SetI32s("tokenizer.ggml.token_type", std::vector<int32_t>(tokens.size(), 1));
  const std::string path = Write(writer, Folder() + "a.gguf");
  const std::clock_t start = std::clock();
  const auto gguf = GgufReader::Open(path);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  ASSERT_TRUE(gguf.ok());
  EXPECT_EQ((*gguf)->GetStrings("tokenizer.ggml.tokens")->back(), "token 151935");
  // Takes about 10 ms of processor time; the bound leaves room for sanitizers.
  EXPECT_LT(seconds, 1);
}

TEST(GgufReaderTest, ReadsFilesOfOtherTools) {
  const char* oracle = std::getenv("ORCD_ORACLE_DIR");
  if (oracle == nullptr) GTEST_SKIP() << "ORCD_ORACLE_DIR is not set";
  const std::string folder(oracle);
  const auto vocabulary = GgufReader::Open(folder + "/tokenizer/qwen2.5-vocab.gguf");
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  EXPECT_TRUE((*vocabulary)->tensors().empty());
  EXPECT_EQ((*vocabulary)->GetStrings("tokenizer.ggml.tokens")->size(), 151'936u);
  EXPECT_EQ((*vocabulary)->GetStrings("tokenizer.ggml.merges")->size(), 151'387u);
  EXPECT_EQ(*(*vocabulary)->GetU32("tokenizer.ggml.eos_token_id"), 151'645u);
  for (const char* type : {"BF16", "F16", "Q2_K", "Q3_K_M", "Q4_0", "Q4_1", "Q4_K_M", "Q5_0",
                           "Q5_1", "Q5_K_M", "Q6_K", "Q8_0"}) {
    const auto gguf = GgufReader::Open(folder + "/logits/nano-" + type + ".gguf");
    ASSERT_TRUE(gguf.ok()) << gguf.status();
    EXPECT_EQ((*gguf)->tensors().size(), 27u);
    EXPECT_EQ((*gguf)->FindTensor("blk.1.ffn_down.weight")->row_length(), 768u);
  }
}

}  // namespace
}  // namespace orcd
