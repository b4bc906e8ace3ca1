// The tensor types of GGUF: ids, names, and the size of their blocks. Source: ggml's block
// definitions; blocks.h and what it includes state the layout of each block, bit by bit.
#ifndef ORCD_RUNTIME_GGUF_BLOCK_FORMATS_H_
#define ORCD_RUNTIME_GGUF_BLOCK_FORMATS_H_

#include <cstdint>
#include <span>
#include <string_view>

namespace orcd {

// Values are the type ids of the file format. This enum has the types that this project reads; a
// file opened for inspection may hold others (FindSizedTensorType), whose ids have no name here.
enum class TensorType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ2_XXS = 16,
  kIQ2_XS = 17,
  kIQ3_XXS = 18,
  kIQ1_S = 19,
  kIQ4_NL = 20,
  kIQ3_S = 21,
  kIQ2_S = 22,
  kIQ4_XS = 23,
  kIQ1_M = 29,
  kBF16 = 30,
  kTQ1_0 = 34,
  kTQ2_0 = 35,
  kMXFP4 = 39,
  kNVFP4 = 40,
};

struct TensorTypeInfo {
  TensorType type;
  // The name that GGUF tools print, such as `Q4_K`.
  std::string_view name;
  // Weights in a block; 1 for the plain types.
  uint32_t block_weights;
  // Bytes in a block.
  uint32_t block_bytes;
};

// Every type this project reads, in order of id.
std::span<const TensorTypeInfo> AllTensorTypes();

// Null for an id that this project does not read.
const TensorTypeInfo* FindTensorType(uint32_t id);

// Finds any type that ggml has ever written to files and still defines, readable by this project or
// not; null for any other id.
const TensorTypeInfo* FindSizedTensorType(uint32_t id);

// Accepts every type that FindSizedTensorType knows; ends the process for any other.
const TensorTypeInfo& GetTensorTypeInfo(TensorType type);

}  // namespace orcd

#endif  // ORCD_RUNTIME_GGUF_BLOCK_FORMATS_H_
