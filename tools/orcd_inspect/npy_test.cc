#include "tools/orcd_inspect/npy.h"

#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "testing/files.h"

namespace orcd {
namespace {

TEST(NpyWriter, WritesWhatNumPyReads) {
  const std::string path = ::testing::TempDir() + "npy_test.npy";
  auto writer = NpyWriter::Create(path, 2, 3);
  ASSERT_TRUE(writer.ok()) << writer.status();
  writer->Append(std::vector<float>{1, 2, 3, 4});
  writer->Append(std::vector<float>{5, 6.5f});
  ASSERT_TRUE(writer->Finish().ok());

  const std::string bytes = ReadFile(path);
  // Version 1.0, then the header's length; the data begins at a multiple of 64.
  EXPECT_EQ(bytes.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const size_t header = static_cast<uint8_t>(bytes[8]) + 256 * static_cast<uint8_t>(bytes[9]);
  const size_t data = 10 + header;
  EXPECT_EQ(data % 64, 0u);
  EXPECT_EQ(bytes[data - 1], '\n');
  const std::string dictionary = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  EXPECT_EQ(bytes.substr(10, dictionary.size()), dictionary);
  ASSERT_EQ(bytes.size(), data + 6 * sizeof(float));
  float values[6];
  std::memcpy(values, bytes.data() + data, sizeof(values));
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[5], 6.5f);
}

TEST(NpyWriter, SaysWhatIsMissing) {
  auto writer = NpyWriter::Create(::testing::TempDir() + "npy_short.npy", 2, 3);
  ASSERT_TRUE(writer.ok());
  writer->Append(std::vector<float>{1, 2});
  const absl::Status status = writer->Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(status.message()).find("4 values"), std::string::npos) << status;
}

TEST(NpyWriter, AFolderThatIsNotThere) {
  EXPECT_EQ(NpyWriter::Create("/nowhere/at/all.npy", 1, 1).status().code(),
            absl::StatusCode::kPermissionDenied);
}

TEST(NpyWriter, AFullDiskIsNoticed) {
  auto writer = NpyWriter::Create("/dev/full", 1, 1 << 20);
  ASSERT_TRUE(writer.ok());
  writer->Append(std::vector<float>(1 << 20));
  EXPECT_EQ(writer->Finish().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace orcd
