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
    Type(9, "Q8_1", 32, 36), Type(15, "Q8_K", 256, 292), Type(24, "I8", 1, 1),
    Type(25, "I16", 1, 2),   Type(26, "I32", 1, 4),      Type(27, "I64", 1, 8),
    Type(28, "F64", 1, 8),   Type(41, "Q1_0", 128, 18),  Type(42, "Q2_0", 64, 18),
};

constexpr uint32_t kIds = 43;

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
