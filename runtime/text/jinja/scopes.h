// Finds the names that hide variables of the same name around them.
#ifndef ORCD_RUNTIME_TEXT_JINJA_SCOPES_H_
#define ORCD_RUNTIME_TEXT_JINJA_SCOPES_H_

#include "runtime/text/jinja/ast.h"

namespace orcd::jinja {

// Fills `hidden` of the program and of each body with a scope. Jinja decides at compile time which
// variables a scope has: a name that a scope assigns, outside of any `if`, before it reads it, is
// undefined in the scope until then, whatever value the template was given under that name; unless
// a scope around it uses the name, too. Only scopes within can tell the difference.
void FindHiddenNames(Program& program);

}  // namespace orcd::jinja

#endif  // ORCD_RUNTIME_TEXT_JINJA_SCOPES_H_
