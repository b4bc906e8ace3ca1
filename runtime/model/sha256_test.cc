#include "runtime/model/sha256.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace orcd {
namespace {

std::string SumOf(std::string_view text) {
  Sha256 sum;
  sum.Update(std::as_bytes(std::span(text)));
  return ToHex(sum.Finish());
}

// Sums from FIPS 180-2, appendix B, and the sum of the empty string.
TEST(Sha256Test, PublishedSums) {
  EXPECT_EQ(SumOf(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(SumOf("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(SumOf(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, PiecesMakeTheSameSum) {
  const std::string_view text = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Sha256 sum;
    sum.Update(std::as_bytes(std::span(text.substr(0, cut))));
    sum.Update(std::as_bytes(std::span(text.substr(cut))));
    EXPECT_EQ(ToHex(sum.Finish()),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  }
}

}  // namespace
}  // namespace orcd
