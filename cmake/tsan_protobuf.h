// Included before everything else under ThreadSanitizer, wherever generated messages are used.
// Protobuf's map fields have two more members in a file compiled with ThreadSanitizer than in the
// distribution's libprotobuf, so reflection over a map would read past the end of the field.
#ifndef ORCD_CMAKE_TSAN_PROTOBUF_H_
#define ORCD_CMAKE_TSAN_PROTOBUF_H_

#undef __SANITIZE_THREAD__
#include <google/protobuf/map_field.h>
#define __SANITIZE_THREAD__ 1

#endif  // ORCD_CMAKE_TSAN_PROTOBUF_H_
