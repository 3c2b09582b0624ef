#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "trestle/launch/descriptors.h"

// Notes of ranks to the launcher of their machine, which cannot see the ranks of other machines.
namespace trestle::launch {

// The notes of one start's ranks.
struct Notes {
  // How many times the ranks of all machines were restarted: the most of all launchers' counts.
  std::optional<int> restart = {};  // set once all ranks have met
  // Why the ranks must not be restarted: another machine's launcher has ended for good.
  std::optional<std::string> end = {};
  // The ranks of the other machines know why this start failed, or no store takes the reason.
  bool is_settled = false;
  // How long the ranks of the other machines wait for one of this machine.
  std::optional<std::chrono::milliseconds> deadline = {};
};

// The launcher's side: a pipe, which the ranks open by the path in their variable.
class NoteReader {
 public:
  static constexpr const char* variable = "TRESTLE_LAUNCH_NOTES";

  NoteReader();
  // The value of the variable.
  std::string path() const;
  // Returns the notes since the last call, without waiting.
  Notes read();

 private:
  Pipe pipe_;
};

// The ranks' side: do nothing unless a launcher reads notes.
void note_restart(int restart);
void note_end(const std::string& reason);
void note_settled();
void note_deadline(std::chrono::milliseconds deadline);

}  // namespace trestle::launch
