// A stretch of network between two sides, which can be cut. Test equipment only.
#ifndef ORCD_INTEGRATION_TESTS_RELAY_H_
#define ORCD_INTEGRATION_TESTS_RELAY_H_

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace orcd::testing {

// Passes on what comes over loopback connections. A cut is as where packets vanish: nobody is told.
// Any thread may call; the relay's own does the work.
class Relay {
 public:
  // Nothing is passed on before there is a target.
  Relay();
  ~Relay();

  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // Where to connect instead of the target, as host:port.
  const std::string& address() const { return address_; }
  // Where connections from now on go, as host:port.
  void SetTarget(const std::string& address);
  // Connections that there are never carry anything again; new ones wait for Mend.
  void Cut();
  void Mend();

 private:
  struct Connection {
    int client;
    int server;
    bool is_silent;
  };

  void Run();
  void Accept();
  // Whether the connection still stands after what came in at `from` was passed on.
  static bool Pass(int from, int to);

  int listener_ = -1;
  std::string address_;
  std::atomic<bool> stop_ = false;

  // Guards what follows.
  std::mutex mutex_;
  int target_port_ = 0;
  bool is_cut_ = false;
  std::vector<Connection> connections_;

  std::thread thread_;
};

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_RELAY_H_
