// A GGUF file taken apart so that a test can break any part of it. Knows the format on its own, and
// checks nothing: a writer for files that a reader must refuse.
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#ifndef ORCD_INTEGRATION_TESTS_GGUF_EDITOR_H_
#define ORCD_INTEGRATION_TESTS_GGUF_EDITOR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace orcd::testing {

// Ids of value types, as files have them.
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
// Length, then the bytes.
std::string StringBytes(std::string_view value);

// A value. One thread.
class GgufEditor {
 public:
  struct Entry {
    std::string key;
    uint32_t type = 0;
    // As the file has it, after the type.
    std::string value;
  };
  struct Tensor {
    std::string name;
    std::vector<uint64_t> ne;
    uint32_t type = 0;
    uint64_t offset = 0;
  };

  // Takes a well-formed file apart; aborts on another.
  explicit GgufEditor(const std::string& path);

  std::string Bytes() const;
  void Write(const std::string& path) const;

  // Where the data section begins, and all before it ends, in what Bytes gives.
  size_t DataOffset() const;

  // Abort where there is none of this name.
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
  // What the header claims; unset: the truth.
  std::optional<uint64_t> tensor_count;
  std::optional<uint64_t> entry_count;
  std::vector<Entry> entries;
  std::vector<Tensor> tensors;
  // From the first tensor on.
  std::string data;

 private:
  std::string Header() const;
};

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_GGUF_EDITOR_H_
