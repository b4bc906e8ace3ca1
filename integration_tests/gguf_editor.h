// Takes a GGUF file apart so that a test can break any part of it. Implements the format
// independently of the reader, and checks nothing: it writes files that a reader must refuse.
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#ifndef ORCD_INTEGRATION_TESTS_GGUF_EDITOR_H_
#define ORCD_INTEGRATION_TESTS_GGUF_EDITOR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace orcd::testing {

// Ids of value types in GGUF files.
inline constexpr uint32_t kGgufU32 = 4;
inline constexpr uint32_t kGgufI32 = 5;
inline constexpr uint32_t kGgufF32 = 6;
inline constexpr uint32_t kGgufBool = 7;
inline constexpr uint32_t kGgufString = 8;
inline constexpr uint32_t kGgufArray = 9;

// The bytes of values, little-endian.
std::string U32Bytes(uint32_t value);
std::string U64Bytes(uint64_t value);
std::string F32Bytes(float value);
// The length as a U64, then the bytes.
std::string StringBytes(std::string_view value);

// A copyable value type. One thread.
class GgufEditor {
 public:
  struct Entry {
    std::string key;
    uint32_t type = 0;
    // The value's bytes as they follow the type in the file.
    std::string value;
  };
  struct Tensor {
    std::string name;
    std::vector<uint64_t> ne;
    uint32_t type = 0;
    uint64_t offset = 0;
  };

  // Parses a well-formed file; aborts on any other.
  explicit GgufEditor(const std::string& path);

  std::string Bytes() const;
  void Write(const std::string& path) const;

  // Offset in Bytes() at which the data section begins.
  size_t DataOffset() const;

  // Abort if nothing has this name.
  Entry& Find(std::string_view key);
  Tensor& FindTensor(std::string_view name);
  void Remove(std::string_view key);
  void RemoveTensor(std::string_view name);
  void Set(std::string_view key, uint32_t type, std::string value);
  // The elements of an array of strings.
  std::vector<std::string> GetStrings(std::string_view key);
  void SetStrings(std::string_view key, const std::vector<std::string>& strings);

  std::string magic = "GGUF";
  uint32_t version = 3;
  // Counts in the header; the real ones if unset.
  std::optional<uint64_t> tensor_count;
  std::optional<uint64_t> entry_count;
  std::vector<Entry> entries;
  std::vector<Tensor> tensors;
  // The data section, from the first tensor on.
  std::string data;

 private:
  std::string Header() const;
};

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_GGUF_EDITOR_H_
