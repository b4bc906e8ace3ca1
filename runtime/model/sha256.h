// SHA-256, from OpenSSL.
#ifndef ORCD_RUNTIME_MODEL_SHA256_H_
#define ORCD_RUNTIME_MODEL_SHA256_H_

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace orcd {

using Sha256Sum = std::array<std::byte, 32>;

// Computes one SHA-256 sum. Owns OpenSSL's state; one thread. Move-only.
class Sha256 {
 public:
  Sha256();

  void Update(std::span<const std::byte> bytes);
  // Must be called once, after all updates.
  Sha256Sum Finish();

 private:
  struct FreeState {
    void operator()(void* state) const;
  };
  std::unique_ptr<void, FreeState> state_;
};

// 64 lower-case hexadecimal digits.
std::string ToHex(const Sha256Sum& sum);

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_SHA256_H_
