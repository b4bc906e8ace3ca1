// The streams that a command reads from and writes to.
#ifndef ORCD_TOOLS_ORCDCTL_CONSOLE_H_
#define ORCD_TOOLS_ORCDCTL_CONSOLE_H_

#include <istream>
#include <ostream>
#include <string>
#include <string_view>

namespace orcd::ctl {

// Does not own the streams. Control codes are written only to a terminal.
struct Console {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
  bool in_is_terminal = false;
  bool out_is_terminal = false;
  bool err_is_terminal = false;
};

// Returns `text` (UTF-8) without characters that could steer a terminal: C0 and C1 controls other
// than newline and tab, and DEL. Takes whole characters, so that the chunks of a stream can be
// treated one by one.
std::string WithoutControls(std::string_view text);

// Returns `text` as one line: newlines, tabs and all that WithoutControls drops become spaces.
std::string AsOneLine(std::string_view text);

// Writes and flushes text of a model, unchanged, or without controls if `out` is a terminal.
void WriteModelText(Console& console, std::string_view text);

// A line of progress. On a terminal each line replaces the one before; elsewhere each is a line of
// its own.
class ProgressLine {
 public:
  // `out` must outlive this object.
  ProgressLine(std::ostream& out, bool is_terminal) : out_(out), is_terminal_(is_terminal) {}
  // Ends the line.
  ~ProgressLine() { Clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void Show(std::string_view line);
  // Leaves an empty line on a terminal.
  void Clear();

 private:
  std::ostream& out_;
  const bool is_terminal_;
  bool shown_ = false;
};

}  // namespace orcd::ctl

#endif  // ORCD_TOOLS_ORCDCTL_CONSOLE_H_
