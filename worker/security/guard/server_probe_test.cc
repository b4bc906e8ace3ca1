#include "worker/security/guard/server_probe.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>

#include "worker/security/guard/frames_for_test.h"

namespace orcd::guard {
namespace {

void Answer(int fd, uint32_t stream) {
  const std::string end = MakeFrame(frame_type::kHeaders,
                                    frame_flag::kEndHeaders | frame_flag::kEndStream, stream, "x");
  ASSERT_EQ(send(fd, end.data(), end.size(), MSG_NOSIGNAL), static_cast<ssize_t>(end.size()));
}

TEST(ServerProbeTest, AConnectionThatEndedIsMadeAnew) {
  ServerProgress progress;
  ServerProbe probe(progress);
  Descriptor server = probe.Connect();
  probe.Send();
  Answer(server.get(), 1);
  probe.Receive();
  EXPECT_EQ(progress.answered, 1u);
  probe.Send();
  EXPECT_EQ(progress.sent, 2u);
  // The server ends the connection while a call is under way, as it does with a connection that is
  // too old.
  server.Close();
  probe.Receive();
  EXPECT_TRUE(progress.unknown);
  EXPECT_LT(probe.fd(), 0);
  const uint64_t fence = progress.Fence();
  progress.unknown = false;
  server = probe.Connect();
  for (uint32_t stream = 1; stream < 5; stream += 2) {
    probe.Send();
    Answer(server.get(), stream);
    probe.Receive();
  }
  EXPECT_GE(progress.answered, fence);
  EXPECT_FALSE(progress.unknown);
}

}  // namespace
}  // namespace orcd::guard
