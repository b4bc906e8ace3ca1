#include "runtime/engine/prefix_hash.h"

#include <cstring>

#include "runtime/model/sha256.h"

namespace orcd {
namespace {

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

BlockHash HalfOf(const Sha256Sum& sum) {
  BlockHash hash;
  std::memcpy(&hash.high, sum.data(), sizeof(hash.high));
  std::memcpy(&hash.low, sum.data() + sizeof(hash.high), sizeof(hash.low));
  return hash;
}

}  // namespace

BlockHash PrefixRoot(std::string_view model_digest, std::string_view salt) {
  // The length prevents the end of a digest from being read as the beginning of a salt.
  const uint64_t length = model_digest.size();
  Sha256 sha;
  sha.Update(std::as_bytes(std::span(&length, 1)));
  sha.Update(Bytes(model_digest));
  sha.Update(Bytes(salt));
  return HalfOf(sha.Finish());
}

BlockHash NextBlockHash(const BlockHash& parent, std::span<const int32_t> tokens) {
  const uint64_t words[] = {parent.high, parent.low};
  Sha256 sha;
  sha.Update(std::as_bytes(std::span(words)));
  sha.Update(std::as_bytes(tokens));
  return HalfOf(sha.Finish());
}

}  // namespace orcd
