// The name of the engine thread. Debuggers and `top -H` show it; tests use it to check that code
// does not run on that thread.
#ifndef ORCD_RUNTIME_ENGINE_ENGINE_THREAD_H_
#define ORCD_RUNTIME_ENGINE_ENGINE_THREAD_H_

#include <pthread.h>

#include <string>

namespace orcd {

// 15 characters at most.
inline constexpr char kEngineThreadName[] = "orcd-engine";

inline void NameEngineThread() { pthread_setname_np(pthread_self(), kEngineThreadName); }

inline bool OnEngineThread() {
  char name[16] = {};
  return pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 &&
         std::string(name) == kEngineThreadName;
}

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_ENGINE_THREAD_H_
