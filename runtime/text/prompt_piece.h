// A part of a rendered prompt.
#ifndef ORCD_RUNTIME_TEXT_PROMPT_PIECE_H_
#define ORCD_RUNTIME_TEXT_PROMPT_PIECE_H_

#include <string>

namespace orcd {

// Control tokens are recognised only in the template's own text, never in text that came from a
// client.
struct PromptPiece {
  std::string text;
  bool is_template = false;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_PROMPT_PIECE_H_
