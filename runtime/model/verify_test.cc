#include "runtime/model/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <ios>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "runtime/base/error.h"
#include "runtime/model/sha256.h"
#include "testing/test_model.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;

constexpr uint16_t kHalfNan = 0x7e00;
constexpr uint64_t kMiB = uint64_t{1} << 20;

// Not through an iterator: a sanitizer takes a minute for these files byte by byte.
std::string ReadFile(const std::string& path) {
  std::string bytes(std::filesystem::file_size(path), '\0');
  std::ifstream(path, std::ios::binary)
      .read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

Sha256Sum SumOf(std::string_view bytes) {
  Sha256 sum;
  sum.Update(std::as_bytes(std::span(bytes)));
  return sum.Finish();
}

// Computes the digest by its definition, chunk by chunk.
std::string TreeDigest(const std::vector<std::string>& paths) {
  Sha256 tree;
  for (const std::string& path : paths) {
    const std::string bytes = ReadFile(path);
    for (size_t i = 0; i < bytes.size(); i += 64 * kMiB) {
      tree.Update(SumOf(std::string_view(bytes).substr(i, 64 * kMiB)));
    }
  }
  return "sha256-tree:" + ToHex(tree.Finish());
}

// Calls `on_progress` with each report; the load is cancelled once that returns true.
class ScriptedObserver : public LoadObserver {
 public:
  explicit ScriptedObserver(std::function<bool(uint64_t done)> on_progress)
      : on_progress_(std::move(on_progress)) {}

  void OnProgress(LoadStage stage, uint64_t done, uint64_t total) override {
    EXPECT_EQ(stage, LoadStage::kVerify);
    EXPECT_LE(done, total);
    ++reports;
    if (done == total) last_total = total;
    if (on_progress_(done)) cancelled_ = true;
  }
  bool cancelled() const override { return cancelled_; }

  std::atomic<int> reports = 0;
  // Total in the report that completed the work.
  std::atomic<uint64_t> last_total = 0;

 private:
  std::function<bool(uint64_t)> on_progress_;
  std::atomic<bool> cancelled_ = false;
};

absl::StatusOr<std::string> Verify(const GgufReader& gguf, int threads = 1,
                                   const std::string& sha256 = "") {
  NullLoadObserver observer;
  return VerifyFiles(gguf, {.expected_sha256 = sha256, .threads = threads}, observer);
}

// A file of one matrix, mostly a hole: of any size and quick to write.
std::unique_ptr<GgufReader> WriteLarge(const std::string& path, TensorType type, uint64_t rows) {
  TestModel model;
  model.keys["general.architecture"] = "qwen2";
  model.tensors["large"] = {type, {1024, rows}, {}};
  return model.WriteAndOpen(path);
}

uint64_t OffsetOf(const GgufReader& gguf, const std::string& tensor) {
  return static_cast<uint64_t>(gguf.FindTensor(tensor)->data.data() -
                               gguf.files().front().bytes().data());
}

TEST(VerifyFilesTest, DigestOfASmallFile) {
  TempDir dir;
  const std::string path = dir.File("model.gguf");
  const auto gguf = TestModel::Valid().WriteAndOpen(path);
  const auto digest = Verify(*gguf);
  ASSERT_TRUE(digest.ok()) << digest.status();
  EXPECT_EQ(*digest, TreeDigest({path}));
}

TEST(VerifyFilesTest, DigestOfManyChunksIsTheSameOnAnyNumberOfThreads) {
  TempDir dir;
  const std::string path = dir.File("model.gguf");
  const auto first = WriteLarge(path, TensorType::kQ8_0, 140 * 1024 * 1024 / 1088);
  for (uint64_t mib = 0; mib < 140; mib += 7) {
    Patch(path, OffsetOf(*first, "large") + mib * kMiB / 34 * 34 + 5, &mib, 1);
  }
  const auto gguf = GgufReader::Open(path);
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  const std::string expected = TreeDigest({path});
  for (const int threads : {1, 2, 5}) {
    const auto digest = Verify(**gguf, threads);
    ASSERT_TRUE(digest.ok()) << digest.status();
    EXPECT_EQ(*digest, expected) << threads;
  }
}

TEST(VerifyFilesTest, DigestAndFinitenessCoverEveryPartOfASplitModel) {
  TempDir dir;
  const std::string paths[] = {dir.File("m-00001-of-00002.gguf"),
                               dir.File("m-00002-of-00002.gguf")};
  for (const uint16_t no : {0, 1}) {
    TestModel part;
    part.keys["general.architecture"] = "qwen2";
    part.keys["split.no"] = no;
    part.keys["split.count"] = uint16_t{2};
    part.keys["split.tensors.count"] = int32_t{2};
    part.AddVector(no == 0 ? "first" : "second", 32);
    part.Write(paths[no]);
  }
  {
    const auto gguf = GgufReader::Open(paths[0]);
    ASSERT_TRUE(gguf.ok()) << gguf.status();
    const auto digest = Verify(**gguf, 2);
    ASSERT_TRUE(digest.ok()) << digest.status();
    EXPECT_EQ(*digest, TreeDigest({paths[0], paths[1]}));
    // The expected sum applies to the first file.
    EXPECT_TRUE(Verify(**gguf, 2, ToHex(SumOf(ReadFile(paths[0])))).ok());
  }
  const uint32_t infinity = 0x7f800000;
  Patch(paths[1], std::filesystem::file_size(paths[1]) - 4, &infinity, 4);
  const auto gguf = GgufReader::Open(paths[0]);
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  const auto digest = Verify(**gguf, 2);
  EXPECT_EQ(GetErrorDetails(digest.status()).reason, "WEIGHTS_NOT_FINITE");
  EXPECT_EQ(GetErrorDetails(digest.status()).subject, "second");
}

TEST(VerifyFilesTest, NamesTensorRowAndColumn) {
  TempDir dir;
  const std::string path = dir.File("model.gguf");
  const uint64_t offset = OffsetOf(*TestModel::Valid().WriteAndOpen(path), "blk.1.ffn_gate.weight");
  // A row of 64 weights is two blocks of 22 bytes.
  Patch(path, offset + 44 * 17 + 22, &kHalfNan, 2);
  const auto gguf = GgufReader::Open(path);
  ASSERT_TRUE(gguf.ok());
  const auto digest = Verify(**gguf);
  EXPECT_EQ(digest.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetails(digest.status()).reason, "WEIGHTS_NOT_FINITE");
  EXPECT_EQ(GetErrorDetails(digest.status()).subject, "blk.1.ffn_gate.weight");
  EXPECT_THAT(std::string(digest.status().message()),
              HasSubstr("\"blk.1.ffn_gate.weight\" (Q5_0)"));
  EXPECT_THAT(std::string(digest.status().message()), HasSubstr("row 17, column 32"));
}

// One block is bad, in one of 8 experts.
TEST(VerifyFilesTest, NamesTheExpert) {
  TempDir dir;
  const std::string path = dir.File("model.gguf");
  TestModel model;
  model.keys["general.architecture"] = "qwen3moe";
  model.tensors["blk.0.ffn_up_exps.weight"] = {TensorType::kQ8_0, {64, 48, 8}, {}};
  model.tensors["blk.1.ffn_up_exps.weight"] = {TensorType::kMXFP4, {64, 48, 8}, {}};
  const auto offset = [&](const std::string& tensor) {
    return OffsetOf(*model.WriteAndOpen(path), tensor);
  };
  const auto expect = [&](const std::string& tensor, const std::string& place) {
    const auto gguf = GgufReader::Open(path);
    ASSERT_TRUE(gguf.ok()) << gguf.status();
    const absl::Status status = Verify(**gguf).status();
    EXPECT_EQ(GetErrorDetails(status).reason, "WEIGHTS_NOT_FINITE");
    EXPECT_EQ(GetErrorDetails(status).subject, tensor);
    EXPECT_THAT(std::string(status.message()), HasSubstr(place));
  };
  // A row of 64 weights is two blocks, of 34 and of 17 bytes.
  const uint64_t q8 = offset("blk.0.ffn_up_exps.weight");
  Patch(path, q8 + 34 * 2 * (48 * 5 + 47) + 34, &kHalfNan, 2);
  expect("blk.0.ffn_up_exps.weight", "in expert 5, row 47, column 32 ");
  const uint64_t fp4 = offset("blk.1.ffn_up_exps.weight");
  const uint8_t too_large = 254;
  Patch(path, fp4 + 17 * 2 * (48 * 7), &too_large, 1);
  expect("blk.1.ffn_up_exps.weight", "in expert 7, row 0, column 0 ");
}

// Blocks span the cuts between pieces and chunks: every such block is still checked once.
TEST(VerifyFilesTest, FindsABadBlockAroundEveryCut) {
  TempDir dir;
  const std::string path = dir.File("model.gguf");
  uint64_t data = 0;
  uint64_t size = 0;
  {
    const auto gguf = WriteLarge(path, TensorType::kQ5_0, 66 * kMiB / 704);
    data = OffsetOf(*gguf, "large");
    size = gguf->FindTensor("large")->data.size();
  }
  // The first and the last block, and those around a cut between pieces and one between chunks.
  std::vector<uint64_t> blocks = {0, 1, size / 22 - 1};
  for (const uint64_t cut : {kMiB, kDigestChunk}) {
    for (uint64_t i = 0; i < 3; ++i) blocks.push_back((cut - data) / 22 - 1 + i);
  }
  for (const uint64_t block : blocks) {
    Patch(path, data + block * 22, &kHalfNan, 2);
    const auto gguf = GgufReader::Open(path);
    ASSERT_TRUE(gguf.ok());
    const auto digest = Verify(**gguf, 2);
    const std::string place =
        "row " + std::to_string(block / 32) + ", column " + std::to_string(block % 32 * 32) + " ";
    EXPECT_THAT(std::string(digest.status().message()), HasSubstr(place)) << block;
    const uint16_t zero = 0;
    Patch(path, data + block * 22, &zero, 2);
  }
  const auto gguf = GgufReader::Open(path);
  ASSERT_TRUE(gguf.ok());
  EXPECT_TRUE(Verify(**gguf, 2).ok());
}

TEST(VerifyFilesTest, OfSeveralBadBlocksTheFirstIsNamed) {
  TempDir dir;
  const std::string path = dir.File("model.gguf");
  uint64_t data = 0;
  {
    const auto gguf = WriteLarge(path, TensorType::kF16, 130 * kMiB / 2048);
    data = OffsetOf(*gguf, "large");
  }
  for (const uint64_t row : {65535, 33000, 40000, 20000}) {
    Patch(path, data + row * 2048 + 6, &kHalfNan, 2);
  }
  const auto gguf = GgufReader::Open(path);
  ASSERT_TRUE(gguf.ok());
  for (const int threads : {1, 2, 3}) {
    EXPECT_THAT(std::string(Verify(**gguf, threads).status().message()),
                HasSubstr("row 20000, column 3;"));
  }
}

TEST(VerifyFilesTest, ChecksTheExpectedSum) {
  TempDir dir;
  const std::string path = dir.File("model.gguf");
  const auto gguf = TestModel::Valid().WriteAndOpen(path);
  const std::string right = ToHex(SumOf(ReadFile(path)));
  for (const int threads : {1, 2}) {
    const auto digest = Verify(*gguf, threads, right);
    ASSERT_TRUE(digest.ok()) << digest.status();
    EXPECT_EQ(*digest, TreeDigest({path}));
    EXPECT_TRUE(Verify(*gguf, threads, absl::AsciiStrToUpper(right)).ok());
    const std::string wrong(64, 'a');
    const absl::Status status = Verify(*gguf, threads, wrong).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(GetErrorDetails(status).reason, "SHA256_MISMATCH");
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong));
    EXPECT_THAT(std::string(status.message()), HasSubstr(right));
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  }
  for (const std::string& text : {right.substr(1), right + "0", std::string(64, 'g')}) {
    const absl::Status status = Verify(*gguf, 1, text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(GetErrorDetails(status).field, "sha256");
    EXPECT_THAT(std::string(status.message()), HasSubstr("64 hexadecimal digits"));
  }
}

// For a damaged file, a wrong sum is more informative than the NaN that the damage caused.
TEST(VerifyFilesTest, AWrongSumComesBeforeABadBlock) {
  TempDir dir;
  const std::string path = dir.File("model.gguf");
  TestModel model = TestModel::Valid();
  const auto offset = OffsetOf(*model.WriteAndOpen(path), "token_embd.weight");
  const std::string right = ToHex(SumOf(ReadFile(path)));
  Patch(path, offset, &kHalfNan, 2);
  const auto gguf = GgufReader::Open(path);
  ASSERT_TRUE(gguf.ok());
  EXPECT_EQ(GetErrorDetails(Verify(**gguf, 1, right).status()).reason, "SHA256_MISMATCH");
  EXPECT_EQ(GetErrorDetails(Verify(**gguf, 1).status()).reason, "WEIGHTS_NOT_FINITE");
}

TEST(VerifyFilesTest, ReportsProgressToTheLastByte) {
  TempDir dir;
  const std::string path = dir.File("model.gguf");
  const auto gguf = WriteLarge(path, TensorType::kQ8_0, 100 * kMiB / 1088);
  for (const std::string& sha256 : {std::string(), ToHex(SumOf(ReadFile(path)))}) {
    ScriptedObserver observer([](uint64_t) { return false; });
    ASSERT_TRUE(VerifyFiles(*gguf, {.expected_sha256 = sha256, .threads = 2}, observer).ok());
    const uint64_t readings = sha256.empty() ? 1 : 2;
    EXPECT_EQ(observer.last_total, gguf->total_bytes() * readings);
    EXPECT_GE(observer.reports * 16 * kMiB, observer.last_total);
  }
}

TEST(VerifyFilesTest, StopsWhenCancelled) {
  TempDir dir;
  const auto gguf = WriteLarge(dir.File("model.gguf"), TensorType::kQ8_0, 200 * kMiB / 1088);
  for (const std::string& sha256 : {std::string(), std::string(64, '0')}) {
    ScriptedObserver observer([](uint64_t done) { return done >= 5 * kMiB; });
    const auto digest = VerifyFiles(*gguf, {.expected_sha256 = sha256, .threads = 3}, observer);
    EXPECT_EQ(digest.status().code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(GetErrorDetails(digest.status()).reason, "LOAD_CANCELLED");
    EXPECT_LT(observer.reports, 20);
  }
}

TEST(VerifyFilesTest, RefusesAFileThatIsCutShortMeanwhile) {
  TempDir dir;
  const std::string path = dir.File("model.gguf");
  const auto gguf = WriteLarge(path, TensorType::kF16, 130 * kMiB / 2048);
  std::atomic<bool> cut = false;
  ScriptedObserver observer([&](uint64_t) {
    if (!cut.exchange(true)) std::filesystem::resize_file(path, 10 * kMiB);
    return false;
  });
  const auto digest = VerifyFiles(*gguf, {.expected_sha256 = "", .threads = 2}, observer);
  EXPECT_EQ(digest.status().code(), absl::StatusCode::kDataLoss) << digest.status();
  EXPECT_EQ(GetErrorDetails(digest.status()).reason, "FILE_CHANGED");
}

TEST(VerifyFilesTest, RefusesAFileThatIsWrittenToMeanwhile) {
  TempDir dir;
  const std::string path = dir.File("model.gguf");
  const auto gguf = TestModel::Valid().WriteAndOpen(path);
  const uint64_t offset = OffsetOf(*gguf, "token_embd.weight");
  ScriptedObserver observer([&](uint64_t) {
    Patch(path, offset, &kHalfNan, 2);
    return false;
  });
  const auto digest = VerifyFiles(*gguf, {.expected_sha256 = "", .threads = 1}, observer);
  EXPECT_EQ(GetErrorDetails(digest.status()).reason, "FILE_CHANGED") << digest.status();
}

}  // namespace
}  // namespace orcd
