#include "tools/orcdctl/console.h"

#include <sstream>

#include "gtest/gtest.h"

namespace orcd::ctl {
namespace {

TEST(ConsoleTest, ControlsThatCouldSteerATerminalAreDropped) {
  EXPECT_EQ(WithoutControls("a\x1b[31mred\x07\r\b\x7f"), "a[31mred");
  EXPECT_EQ(WithoutControls("line\n\ttab"), "line\n\ttab");
  EXPECT_EQ(WithoutControls(std::string("nul\0end", 7)), "nulend");
  // U+009B is a control sequence introducer; its neighbour U+00A0 is text.
  EXPECT_EQ(WithoutControls("x\xc2\x9b"
                            "2Jy\xc2\xa0z"),
            "x2Jy\xc2\xa0z");
  EXPECT_EQ(WithoutControls("héllo 日本 🙂"), "héllo 日本 🙂");
  EXPECT_EQ(WithoutControls(""), "");
}

TEST(ConsoleTest, OneLineStaysOneLine) {
  EXPECT_EQ(AsOneLine("a\nb\tc\x1b[2J\xc2\x85"
                      "d"),
            "a b c [2J d");
  EXPECT_EQ(AsOneLine("zwölf"), "zwölf");
}

TEST(ConsoleTest, ModelTextIsMadeSafeOnATerminalOnly) {
  std::istringstream in;
  std::ostringstream out;
  std::ostringstream err;
  Console console{in, out, err};
  WriteModelText(console, "a\x1b[0m\n");
  console.out_is_terminal = true;
  WriteModelText(console, "b\x1b[0m\n");
  EXPECT_EQ(out.str(), "a\x1b[0m\nb[0m\n");
}

TEST(ConsoleTest, ProgressReplacesItselfOnATerminalOnly) {
  std::ostringstream pipe;
  {
    ProgressLine progress(pipe, false);
    progress.Show("one");
    progress.Show("two");
  }
  EXPECT_EQ(pipe.str(), "one\ntwo\n");

  std::ostringstream terminal;
  {
    ProgressLine progress(terminal, true);
    progress.Show("one");
    progress.Show("two");
  }
  EXPECT_EQ(terminal.str(), "\r\x1b[Kone\r\x1b[Ktwo\r\x1b[K");
}

}  // namespace
}  // namespace orcd::ctl
