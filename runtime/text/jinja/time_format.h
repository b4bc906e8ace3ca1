// datetime.strftime of Python, in English and without a time zone.
#ifndef ORCD_RUNTIME_TEXT_JINJA_TIME_FORMAT_H_
#define ORCD_RUNTIME_TEXT_JINJA_TIME_FORMAT_H_

#include <ctime>
#include <string>
#include <string_view>

namespace orcd::jinja {

// Directives that are unknown stay as they are. tm_wday and tm_yday must fit the date.
std::string FormatTime(std::string_view format, const std::tm& time, int microseconds);

}  // namespace orcd::jinja

#endif  // ORCD_RUNTIME_TEXT_JINJA_TIME_FORMAT_H_
