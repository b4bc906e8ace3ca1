// From drawn tokens to the text a caller sees: whole characters, and nothing of a stop string.
#ifndef ORCD_RUNTIME_ENGINE_OUTPUT_TEXT_H_
#define ORCD_RUNTIME_ENGINE_OUTPUT_TEXT_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/utf8_stream.h"

namespace orcd {

// Holds back text that may still become a stop string. One thread.
class OutputText {
 public:
  // A stop string counts where its last character comes with a token after the first `min_tokens`;
  // it may begin before.
  explicit OutputText(std::vector<std::string> stop_strings, int min_tokens = 0);

  // Takes the bytes of the next token and returns the text that is now certain. Once a stop string
  // has appeared, the text before it has been returned, stopped() names it, and no more may be
  // appended.
  std::string Append(std::string_view bytes);
  // What was held back, at the end of a generation that no stop string ended.
  std::string Finish();

  const std::optional<std::string>& stopped() const { return stopped_; }

 private:
  std::string TakeCertain();

  const std::vector<std::string> stop_strings_;
  const int min_tokens_;
  int tokens_ = 0;
  Utf8Stream utf8_;
  std::string held_;
  // A stop string within the first so many bytes of held_ does not count.
  size_t exempt_ = 0;
  std::optional<std::string> stopped_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_OUTPUT_TEXT_H_
