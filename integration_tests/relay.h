// A TCP relay between two sides that a test can cut. Test equipment only.
#ifndef ORCD_INTEGRATION_TESTS_RELAY_H_
#define ORCD_INTEGRATION_TESTS_RELAY_H_

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace orcd::testing {

// Relays loopback connections. A cut drops bytes silently, as a network that loses packets does:
// neither side is told. Any thread may call; the relay's own thread does the work.
class Relay {
 public:
  // Relays nothing before SetTarget.
  Relay();
  ~Relay();

  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // The host:port that clients connect to instead of the target.
  const std::string& address() const { return address_; }
  // Sets the host:port that new connections go to.
  void SetTarget(const std::string& address);
  // Existing connections never carry anything again; new ones wait for Restore.
  void Cut();
  void Restore();

 private:
  struct Connection {
    int client;
    int server;
    bool is_silent;
  };

  void Run();
  void Accept();
  // Relays the bytes that came in at `from`; true if the connection still stands.
  static bool Pass(int from, int to);

  int listener_ = -1;
  std::string address_;
  std::atomic<bool> stop_ = false;

  // Guards the members below, up to connections_.
  std::mutex mutex_;
  int target_port_ = 0;
  bool is_cut_ = false;
  std::vector<Connection> connections_;

  std::thread thread_;
};

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_RELAY_H_
