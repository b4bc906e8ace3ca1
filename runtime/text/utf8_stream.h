// Turns a stream of token bytes into text that is always whole UTF-8 characters.
#ifndef ORCD_RUNTIME_TEXT_UTF8_STREAM_H_
#define ORCD_RUNTIME_TEXT_UTF8_STREAM_H_

#include <string>
#include <string_view>

namespace orcd {

// Holds at most the three bytes of an unfinished character. What comes out depends on the bytes
// alone, not on how they were cut into pieces. One thread.
class Utf8Stream {
 public:
  // The text that `bytes` completes. A byte that can be no part of a character comes out as U+FFFD;
  // so does, as one, a character that is cut off by what follows it (the "maximal subpart" practice
  // of The Unicode Standard, chapter 3.9).
  std::string Append(std::string_view bytes);

  // What an unfinished character at the end of the stream comes out as: U+FFFD, or nothing. The
  // stream is as new then.
  std::string Finish();

 private:
  std::string pending_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_UTF8_STREAM_H_
