// Turns drawn tokens into the text a caller sees: whole characters, and no part of a stop string.
#ifndef ORCD_RUNTIME_ENGINE_OUTPUT_TEXT_H_
#define ORCD_RUNTIME_ENGINE_OUTPUT_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/tokenizer.h"
#include "runtime/text/utf8_stream.h"

namespace orcd {

// The bytes that `token` contributes to the text. Tokens without any, such as control tokens,
// contribute their spelling if `show_special`. The result views the tokenizer.
std::string_view ShownBytes(const Tokenizer& tokenizer, int32_t token, bool show_special);

// Holds back text that may still become part of a stop string. One thread.
class OutputText {
 public:
  // A stop string counts if its last character comes with a token after the first `min_tokens`; its
  // beginning may lie before.
  explicit OutputText(std::vector<std::string> stop_strings, int min_tokens = 0);

  // Takes the bytes of the next token and returns the text that is now certain. Once a stop string
  // has appeared, all text before it has been returned, stopped() names it, and Append must not be
  // called again.
  std::string Append(std::string_view bytes);
  // Returns the text held back, at the end of a generation that no stop string ended.
  std::string Finish();

  const std::optional<std::string>& stopped() const { return stopped_; }

 private:
  std::string TakeReleasable();

  const std::vector<std::string> stop_strings_;
  const int min_tokens_;
  int tokens_ = 0;
  Utf8Stream utf8_;
  std::string held_;
  // A stop string that ends within the first `exempt_` bytes of held_ does not count.
  size_t exempt_ = 0;
  std::optional<std::string> stopped_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_OUTPUT_TEXT_H_
