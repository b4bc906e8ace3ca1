#include "tools/orcdctl/console.h"

namespace orcd::ctl {
namespace {

// Length in bytes of the control character at the start of `text`; 0 if there is none.
size_t ControlLength(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x20 || byte(0) == 0x7f) return 1;
  // U+0080 to U+009F.
  if (byte(0) == 0xc2 && text.size() > 1 && byte(1) >= 0x80 && byte(1) < 0xa0) return 2;
  return 0;
}

}  // namespace

std::string WithoutControls(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const size_t control = ControlLength(text);
    if (control == 0 || text[0] == '\n' || text[0] == '\t') result += text[0];
    text.remove_prefix(control == 0 ? 1 : control);
  }
  return result;
}

std::string AsOneLine(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const size_t control = ControlLength(text);
    result += control == 0 ? text[0] : ' ';
    text.remove_prefix(control == 0 ? 1 : control);
  }
  return result;
}

void WriteModelText(Console& console, std::string_view text) {
  if (console.out_is_terminal) {
    console.out << WithoutControls(text);
  } else {
    console.out << text;
  }
  console.out.flush();
}

void ProgressLine::Show(std::string_view line) {
  if (is_terminal_) {
    // Moves to the start of the line and clears it.
    out_ << "\r\x1b[K" << line;
  } else {
    out_ << line << '\n';
  }
  out_.flush();
  shown_ = true;
}

void ProgressLine::Clear() {
  if (is_terminal_ && shown_) out_ << "\r\x1b[K" << std::flush;
  shown_ = false;
}

}  // namespace orcd::ctl
