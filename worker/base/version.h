#ifndef ORCD_WORKER_BASE_VERSION_H_
#define ORCD_WORKER_BASE_VERSION_H_

#include <string_view>

namespace orcd {

// Version of the software, such as `0.1.0`.
std::string_view Version();

}  // namespace orcd

#endif  // ORCD_WORKER_BASE_VERSION_H_
