#include "tools/orcdctl/chat.h"

#include <functional>
#include <utility>

#include "tools/orcdctl/answer.h"
#include "tools/orcdctl/exit_codes.h"
#include "tools/orcdctl/generate_options.h"

namespace orcd::ctl {
namespace {

constexpr char kPrompt[] = "> ";

// While this object lives, Ctrl-C between answers drops the typed line, as shells do, instead of
// ending the program.
class StayAtPrompt {
 public:
  explicit StayAtPrompt(Session& session)
      : interrupt_(session.interrupt), before_(interrupt_.SetOnIdle([&err = session.console.err] {
          err << "\n(Ctrl-D ends the chat)\n" << kPrompt << std::flush;
        })) {}
  ~StayAtPrompt() { interrupt_.SetOnIdle(std::move(before_)); }
  StayAtPrompt(const StayAtPrompt&) = delete;
  StayAtPrompt& operator=(const StayAtPrompt&) = delete;

 private:
  Interrupt& interrupt_;
  std::function<void()> before_;
};

// Answers the last message of `chat` and appends the answer. Removes the message on an error, or if
// Ctrl-C leaves no text.
int AnswerMessage(Session& session, v1::GenerateRequest request, v1::ChatPrompt& chat, bool stats) {
  *request.mutable_chat() = chat;
  Answer answer = StreamAnswer(session, request, stats);
  const bool keep =
      answer.exit_code == kExitOk || (answer.exit_code == kExitInterrupted && !answer.text.empty());
  if (keep) {
    AddMessage(chat, v1::CHAT_ROLE_ASSISTANT, std::move(answer.text));
  } else {
    chat.mutable_messages()->RemoveLast();
  }
  return answer.exit_code;
}

}  // namespace

int RunChat(Session& session, const v1::GenerateRequest& request, v1::ChatPrompt chat,
            const std::string& first, bool stats) {
  Console& console = session.console;
  const bool by_hand = console.in_is_terminal && console.err_is_terminal;
  std::optional<StayAtPrompt> stay;
  if (console.in_is_terminal) stay.emplace(session);

  int exit_code = kExitOk;
  std::string message = first;
  for (;;) {
    if (!message.empty()) {
      if (const absl::Status utf8 = CheckUtf8("message", message); !utf8.ok()) {
        console.err << utf8.message() << '\n';
        exit_code = kExitFailed;
      } else {
        AddMessage(chat, v1::CHAT_ROLE_USER, message);
        const int answered = AnswerMessage(session, request, chat, stats);
        if (answered == kExitUnreachable) return answered;
        if (answered == kExitFailed) exit_code = answered;
        // On a pipe, only this newline separates two answers.
        if (!session.json && !console.out_is_terminal) console.out << '\n' << std::flush;
      }
    }
    if (by_hand) console.err << kPrompt << std::flush;
    if (!std::getline(console.in, message)) break;
  }
  if (by_hand) console.err << '\n';
  return exit_code;
}

}  // namespace orcd::ctl
