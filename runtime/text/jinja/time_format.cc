#include "runtime/text/jinja/time_format.h"

namespace orcd::jinja {
namespace {

constexpr std::string_view kDays[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                      "Thursday", "Friday", "Saturday"};
constexpr std::string_view kMonths[] = {"January",   "February", "March",    "April",
                                        "May",       "June",     "July",     "August",
                                        "September", "October",  "November", "December"};

std::string Padded(int number, size_t width, char fill = '0') {
  std::string digits = std::to_string(number);
  if (digits.size() < width) digits.insert(0, width - digits.size(), fill);
  return digits;
}

// The year and the week that ISO 8601 counts the day in.
struct IsoWeek {
  int year;
  int week;
};

IsoWeek IsoWeekOf(const std::tm& time) {
  const int weekday = (time.tm_wday + 6) % 7;
  const auto weeks_of = [](int year) {
    const auto last_weekday = [](int y) { return (y + y / 4 - y / 100 + y / 400) % 7; };
    return last_weekday(year) == 4 || last_weekday(year - 1) == 3 ? 53 : 52;
  };
  const int year = time.tm_year + 1900;
  const int week = (time.tm_yday - weekday + 10) / 7;
  if (week < 1) return {year - 1, weeks_of(year - 1)};
  if (week > weeks_of(year)) return {year + 1, 1};
  return {year, week};
}

std::string Directive(char name, const std::tm& time, int microseconds) {
  const std::string_view day = kDays[((time.tm_wday % 7) + 7) % 7];
  const std::string_view month = kMonths[((time.tm_mon % 12) + 12) % 12];
  const int hour12 = time.tm_hour % 12 == 0 ? 12 : time.tm_hour % 12;
  const int year = time.tm_year + 1900;
  const auto nested = [&](std::string_view format) {
    return FormatTime(format, time, microseconds);
  };
  switch (name) {
    case 'a':
      return std::string(day.substr(0, 3));
    case 'A':
      return std::string(day);
    case 'b':
    case 'h':
      return std::string(month.substr(0, 3));
    case 'B':
      return std::string(month);
    case 'c':
      return nested("%a %b %e %H:%M:%S %Y");
    case 'C':
      return Padded(year / 100, 2);
    case 'd':
      return Padded(time.tm_mday, 2);
    case 'D':
    case 'x':
      return nested("%m/%d/%y");
    case 'e':
      return Padded(time.tm_mday, 2, ' ');
    case 'f':
      return Padded(microseconds, 6);
    case 'F':
      return nested("%Y-%m-%d");
    case 'g':
      return Padded(IsoWeekOf(time).year % 100, 2);
    case 'G':
      return std::to_string(IsoWeekOf(time).year);
    case 'H':
      return Padded(time.tm_hour, 2);
    case 'I':
      return Padded(hour12, 2);
    case 'j':
      return Padded(time.tm_yday + 1, 3);
    case 'k':
      return Padded(time.tm_hour, 2, ' ');
    case 'l':
      return Padded(hour12, 2, ' ');
    case 'm':
      return Padded(time.tm_mon + 1, 2);
    case 'M':
      return Padded(time.tm_min, 2);
    case 'n':
      return "\n";
    case 'p':
      return time.tm_hour < 12 ? "AM" : "PM";
    case 'P':
      return time.tm_hour < 12 ? "am" : "pm";
    case 'r':
      return nested("%I:%M:%S %p");
    case 'R':
      return nested("%H:%M");
    case 'S':
      return Padded(time.tm_sec, 2);
    case 't':
      return "\t";
    case 'T':
    case 'X':
      return nested("%H:%M:%S");
    case 'u':
      return std::to_string(time.tm_wday == 0 ? 7 : time.tm_wday);
    case 'U':
      return Padded((time.tm_yday + 7 - time.tm_wday) / 7, 2);
    case 'V':
      return Padded(IsoWeekOf(time).week, 2);
    case 'w':
      return std::to_string(time.tm_wday);
    case 'W':
      return Padded((time.tm_yday + 7 - (time.tm_wday + 6) % 7) / 7, 2);
    case 'y':
      return Padded(year % 100, 2);
    case 'Y':
      return std::to_string(year);
    case 'z':
    case 'Z':
      // The time has no zone, as Python's datetime.now() has none.
      return {};
    case '%':
      return "%";
    default:
      return std::string("%") + name;
  }
}

}  // namespace

std::string FormatTime(std::string_view format, const std::tm& time, int microseconds) {
  std::string text;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      text.push_back(format[i]);
      continue;
    }
    // A sign leaves out the padding of the number that follows, as in glibc.
    const bool unpadded = format[i + 1] == '-' && i + 2 < format.size();
    i += unpadded ? 2 : 1;
    std::string part = Directive(format[i], time, microseconds);
    if (unpadded) {
      const size_t digits = part.find_first_not_of("0 ");
      part.erase(0, digits == std::string::npos ? part.size() - 1 : digits);
    }
    text += part;
  }
  return text;
}

}  // namespace orcd::jinja
