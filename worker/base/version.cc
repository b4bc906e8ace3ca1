#include "worker/base/version.h"

namespace orcd {

std::string_view Version() { return ORCD_VERSION; }

}  // namespace orcd
