// Formats a worker's messages for people. Every function returns whole lines, safe for a terminal.
#ifndef ORCD_TOOLS_ORCDCTL_HUMAN_H_
#define ORCD_TOOLS_ORCDCTL_HUMAN_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "orcd/v1/worker.pb.h"

namespace orcd::ctl {

absl::Duration FromProto(const google::protobuf::Duration& duration);

// `512 B`, `1.5 KiB`, `468.2 MiB`: three to four significant digits.
std::string HumanBytes(uint64_t bytes);
// A number of parameters: `494 M`, `1.54 B`.
std::string HumanCount(uint64_t count);
// `0 ms`, `850 ms`, `1.5 s`, `2 min 5 s`, `3 h 20 min`, `4 d 2 h`.
std::string HumanDuration(absl::Duration duration);
// The name of an enum value without its type: `READY`, `EOG`.
std::string StateName(v1::WorkerState state);
std::string StageName(v1::LoadStage stage);

// One fact per line, aligned; ends with a newline.
std::string DescribeStatus(const v1::WorkerStatus& status);
std::string DescribeModel(const v1::ModelDescription& model);

// One line without a newline, which includes a bar of `bar_width` characters; 0: no bar.
std::string DescribeProgress(const v1::LoadProgress& progress, int bar_width);
std::string DescribeDrain(const v1::DrainResponse& drain);
// The cost of a generation and the reason it ended; both messages are of one stream.
std::string DescribeStats(const v1::GenerateStarted& started, const v1::GenerateFinished& finished);
// The reason a generation ended, such as `stop string "\n\n"`.
std::string DescribeFinish(const v1::GenerateFinished& finished);

// `message` as JSON on one line, with the field names of the proto file; ends with a newline.
std::string JsonLine(const google::protobuf::Message& message);

}  // namespace orcd::ctl

#endif  // ORCD_TOOLS_ORCDCTL_HUMAN_H_
