#include "runtime/cpu/mapped_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace orcd::cpu {

absl::StatusOr<MappedMemory> MappedMemory::Create(uint64_t bytes, std::string_view purpose) {
  MappedMemory memory;
  if (bytes == 0) return memory;
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    return MakeError(absl::StatusCode::kResourceExhausted,
                     absl::StrCat("the system gave no ", bytes, " bytes of memory for the ",
                                  std::string(purpose), ": ", std::strerror(errno)),
                     {.reason = "INSUFFICIENT_MEMORY", .subject = std::string(purpose)});
  }
  memory.bytes_ = {static_cast<std::byte*>(address), bytes};
  return memory;
}

MappedMemory::MappedMemory(MappedMemory&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})) {}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedMemory::~MappedMemory() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

}  // namespace orcd::cpu
