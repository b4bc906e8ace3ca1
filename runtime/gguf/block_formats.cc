#include "runtime/gguf/block_formats.h"

#include <array>
#include <cstdlib>

#include "runtime/gguf/blocks.h"

namespace orcd {
namespace {

constexpr TensorTypeInfo Type(uint32_t id, std::string_view name, uint32_t block_weights,
                              uint32_t block_bytes) {
  return {static_cast<TensorType>(id), name, block_weights, block_bytes};
}

constexpr std::array kOnlySized = {
    Type(9, "Q8_1", 32, 36),     Type(15, "Q8_K", 256, 292),   Type(16, "IQ2_XXS", 256, 66),
    Type(17, "IQ2_XS", 256, 74), Type(18, "IQ3_XXS", 256, 98), Type(19, "IQ1_S", 256, 50),
    Type(21, "IQ3_S", 256, 110), Type(22, "IQ2_S", 256, 82),   Type(23, "IQ4_XS", 256, 136),
    Type(24, "I8", 1, 1),        Type(25, "I16", 1, 2),        Type(26, "I32", 1, 4),
    Type(27, "I64", 1, 8),       Type(28, "F64", 1, 8),        Type(29, "IQ1_M", 256, 56),
    Type(34, "TQ1_0", 256, 54),  Type(35, "TQ2_0", 256, 66),   Type(39, "MXFP4", 32, 17),
    Type(40, "NVFP4", 64, 36),   Type(41, "Q1_0", 128, 18),
};

constexpr uint32_t kIds = 42;

template <typename F>
constexpr void VisitAll(const F& f) {
  for (uint32_t id = 0; id < kIds; ++id) VisitType(static_cast<TensorType>(id), f);
}

constexpr size_t kReadCount = [] {
  size_t count = 0;
  VisitAll([&](auto) { ++count; });
  return count;
}();

constexpr auto kRead = [] {
  std::array<TensorTypeInfo, kReadCount> all = {};
  TensorTypeInfo* next = all.data();
  VisitAll([&]<TensorType kType>(Block<kType> block) {
    *next++ = {kType, block.kName, block.kWeights, block.kBytes};
  });
  return all;
}();

// Indexed by id, so that a lookup in a loop over rows is cheap; null if there is no such type.
using TypesById = std::array<const TensorTypeInfo*, kIds>;

constexpr TypesById ById(std::span<const TensorTypeInfo> first,
                         std::span<const TensorTypeInfo> second) {
  TypesById by_id = {};
  for (const TensorTypeInfo& info : first) by_id[static_cast<uint32_t>(info.type)] = &info;
  for (const TensorTypeInfo& info : second) by_id[static_cast<uint32_t>(info.type)] = &info;
  return by_id;
}

constexpr TypesById kReadById = ById(kRead, {});
constexpr TypesById kSizedById = ById(kRead, kOnlySized);

}  // namespace

std::span<const TensorTypeInfo> AllTensorTypes() { return kRead; }

const TensorTypeInfo* FindTensorType(uint32_t id) { return id < kIds ? kReadById[id] : nullptr; }

const TensorTypeInfo* FindSizedTensorType(uint32_t id) {
  return id < kIds ? kSizedById[id] : nullptr;
}

const TensorTypeInfo& GetTensorTypeInfo(TensorType type) {
  const TensorTypeInfo* info = FindSizedTensorType(static_cast<uint32_t>(type));
  if (info == nullptr) std::abort();
  return *info;
}

}  // namespace orcd
