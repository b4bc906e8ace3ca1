// Turns a stream of token bytes into text of whole UTF-8 characters.
#ifndef ORCD_RUNTIME_TEXT_UTF8_STREAM_H_
#define ORCD_RUNTIME_TEXT_UTF8_STREAM_H_

#include <string>
#include <string_view>

namespace orcd {

// Holds back at most the three bytes of an unfinished character. The output depends only on the
// bytes, not on how they were divided between calls. One thread.
class Utf8Stream {
 public:
  // Returns the text that `bytes` completes. A byte that cannot be part of a character becomes
  // U+FFFD; a character that is cut off by the following byte becomes one U+FFFD (the "maximal
  // subpart" practice of The Unicode Standard, chapter 3.9).
  std::string Append(std::string_view bytes);

  // Ends the stream: returns U+FFFD if a character is unfinished, else nothing. The stream can then
  // be reused.
  std::string Finish();

 private:
  std::string pending_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_UTF8_STREAM_H_
