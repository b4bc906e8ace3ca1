#include "runtime/model/sha256.h"

#include <openssl/evp.h>

#include <cstdlib>
#include <string_view>

#include "absl/strings/escaping.h"

namespace orcd {
namespace {

EVP_MD_CTX* Context(void* state) { return static_cast<EVP_MD_CTX*>(state); }

// OpenSSL's SHA-256 functions fail only if there is no memory for their state or the library was
// configured without the algorithm. Neither can be recovered from.
void CheckSucceeded(int result) {
  if (result != 1) std::abort();
}

}  // namespace

void Sha256::FreeState::operator()(void* state) const { EVP_MD_CTX_free(Context(state)); }

Sha256::Sha256() : state_(EVP_MD_CTX_new()) {
  CheckSucceeded(state_ != nullptr);
  CheckSucceeded(EVP_DigestInit_ex(Context(state_.get()), EVP_sha256(), nullptr));
}

void Sha256::Update(std::span<const std::byte> bytes) {
  CheckSucceeded(EVP_DigestUpdate(Context(state_.get()), bytes.data(), bytes.size()));
}

Sha256Sum Sha256::Finish() {
  Sha256Sum sum;
  CheckSucceeded(EVP_DigestFinal_ex(Context(state_.get()),
                                    reinterpret_cast<unsigned char*>(sum.data()), nullptr));
  return sum;
}

std::string ToHex(const Sha256Sum& sum) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(sum.data()), sum.size()});
}

}  // namespace orcd
