// Zeroed memory straight from the operating system: pages that are never touched cost nothing.
#ifndef ORCD_RUNTIME_CPU_MAPPED_MEMORY_H_
#define ORCD_RUNTIME_CPU_MAPPED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"

namespace orcd::cpu {

// Owns an anonymous mapping. Move-only.
class MappedMemory {
 public:
  // kResourceExhausted, naming `purpose`, if the system refuses.
  static absl::StatusOr<MappedMemory> Create(uint64_t bytes, std::string_view purpose);

  MappedMemory() = default;
  MappedMemory(MappedMemory&& other) noexcept;
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  ~MappedMemory();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

}  // namespace orcd::cpu

#endif  // ORCD_RUNTIME_CPU_MAPPED_MEMORY_H_
