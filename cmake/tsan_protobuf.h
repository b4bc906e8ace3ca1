// Comes before everything else under ThreadSanitizer, wherever generated messages are used.
// Protobuf's map fields have two more members in a file that is compiled with it, which the
// distribution's libprotobuf does not have: reflection over a map would read past them.
#ifndef ORCD_CMAKE_TSAN_PROTOBUF_H_
#define ORCD_CMAKE_TSAN_PROTOBUF_H_

#undef __SANITIZE_THREAD__
#include <google/protobuf/map_field.h>
#define __SANITIZE_THREAD__ 1

#endif  // ORCD_CMAKE_TSAN_PROTOBUF_H_
