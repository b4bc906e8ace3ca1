// GGUF metadata values.
#ifndef ORCD_RUNTIME_GGUF_GGUF_VALUE_H_
#define ORCD_RUNTIME_GGUF_GGUF_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <variant>
#include <vector>

namespace orcd {

// Values are the type ids of the file format.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// The name that GGUF tools print, such as `u32`; `unknown` for an invalid id.
std::string_view GgufTypeName(GgufType type);

struct GgufArray {
  // Type of the elements in the file.
  GgufType type = GgufType::kU8;
  // Only the vector that matches `type` has elements: unsigned and bool; signed; floats; strings.
  // Arrays of arrays are refused.
  std::vector<uint64_t> unsigned_values;
  std::vector<int64_t> signed_values;
  std::vector<double> float_values;
  std::vector<std::string_view> strings;
  size_t size() const;
};

// One metadata value. Strings and arrays of strings view the mapped file. Numbers, alone or in
// arrays, are widened to 64 bits (or double); the `type` beside the value is the type in the file.
using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string_view,
                               std::shared_ptr<const GgufArray>>;

struct GgufEntry {
  GgufType type = GgufType::kU8;
  GgufValue value;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_GGUF_GGUF_VALUE_H_
