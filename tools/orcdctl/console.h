// Where a command reads from and writes to.
#ifndef ORCD_TOOLS_ORCDCTL_CONSOLE_H_
#define ORCD_TOOLS_ORCDCTL_CONSOLE_H_

#include <istream>
#include <ostream>
#include <string>
#include <string_view>

namespace orcd::ctl {

// Does not own the streams. Control codes go to a stream only where it is a terminal.
struct Console {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
  bool in_is_terminal = false;
  bool out_is_terminal = false;
  bool err_is_terminal = false;
};

// `text`, which is UTF-8, without what could steer a terminal: control characters of C0 and C1
// other than newline and tab, and DEL. Whole characters in, so that pieces of a stream can be
// treated one by one.
std::string WithoutControls(std::string_view text);

// `text` as part of one line: what WithoutControls would drop, newlines and tabs become spaces.
std::string AsOneLine(std::string_view text);

// Writes text of a model: as it is, or made safe where `out` is a terminal; and flushes.
void WriteModelText(Console& console, std::string_view text);

// A line of progress. On a terminal each one replaces the one before; elsewhere each stands on a
// line of its own.
class ProgressLine {
 public:
  // `out` outlives this.
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
