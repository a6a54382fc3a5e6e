// What earlier processes have learned of calls, in a file: docs/plan-file.md has the format. A call
// that is known is recorded the first time that this process makes it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "record/op_cache.h"

namespace tenon {

// Asked once, before the first call is recorded: where files are kept is to be told by then.
void set_before_recording(std::function<void()> tell);
// Reads the file, unless that is done: a call that may be known does it otherwise.
void read_known_calls();
// The file, and what all of it depends on.
void set_known_calls(std::string path, std::string identity);

// Whether the op's numbers were seen to change.
bool were_open(const OpInfo& op);
// The entry of a call that is known; nothing for another one.
std::unique_ptr<OpEntry> recall(
    OpInfo& op, const OpKey& key, bool open_scalars, c10::ArrayRef<c10::IValue> arguments);
// The rule of a pattern that is known; nothing for another one. `without`: its key.
std::unique_ptr<CallPattern> recall_pattern(const OpInfo& op, const OpKey& without);
// A call that this process has learned, or recalled: it stays in the file. Under `record_mutex`.
void note_known(const OpEntry& entry);
// One that the op cache lets go of: it does not. Under `record_mutex`.
void forget_known(const OpEntry& entry);

// Writes the file, if there is something new: what this process used comes first, and the rest as
// far as there is room. False where that is not possible.
bool keep_known_calls();

}  // namespace tenon
