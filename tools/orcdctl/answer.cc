#include "tools/orcdctl/answer.h"

#include "tools/orcdctl/exit_codes.h"
#include "tools/orcdctl/human.h"

namespace orcd::ctl {

Answer StreamAnswer(Session& session, const v1::GenerateRequest& request, bool stats) {
  Console& console = session.console;
  Call call(session, absl::InfiniteDuration());
  auto reader = session.worker->Generate(call.context(), request);
  Answer answer;
  v1::GenerateStarted started;
  v1::GenerateFinished finished;
  bool has_finished = false;
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (session.json) console.out << JsonLine(response) << std::flush;
    if (response.has_started()) started = response.started();
    if (response.has_delta()) {
      const std::string& text = response.delta().text();
      answer.text += text;
      if (!session.json) WriteModelText(console, text);
    }
    if (response.has_finished()) {
      finished = response.finished();
      has_finished = true;
    }
  }
  const grpc::Status status = reader->Finish();
  const bool summarises = stats && has_finished;
  // Output with a form ends by itself; whatever else ended it may have cut it. JSON says what did.
  const bool is_cut = has_finished && request.has_constraint() && !session.json &&
                      finished.reason() != v1::FINISH_REASON_EOG;
  // The shell's prompt, a summary or an error starts on a new line. Output to a pipe or a file
  // contains only the text; the summary ends the line on stderr, which may be the same pipe.
  if (!session.json && !answer.text.empty() && answer.text.back() != '\n') {
    if (console.out_is_terminal) {
      console.out << '\n' << std::flush;
    } else if (summarises || is_cut) {
      console.err << '\n';
    }
  }
  if (summarises) {
    console.err << '[' << DescribeStats(started, finished) << "]\n" << std::flush;
  }
  if (is_cut) {
    console.err << "cut: " << DescribeFinish(finished)
                << "; the form of the answer may not be complete\n"
                << std::flush;
  }
  answer.exit_code = call.Finish(status, "cancelled");
  if (answer.exit_code == kExitOk && !has_finished) {
    console.err << "the worker ended the stream without saying why the generation ended\n";
    answer.exit_code = kExitFailed;
  }
  return answer;
}

}  // namespace orcd::ctl
