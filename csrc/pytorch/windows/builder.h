// The builder process as the program's own process sees it: windows go to it, and files of plans
// come back (windows/plan_file.h). Nobody waits for it, and it may end at any time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "windows/plan_store.h"

namespace tenon {

// Where it listens, and the command that starts it. It is started when it is first needed and
// nobody listens. `patience`: the seconds without a sign of life after which it is taken for
// stopped, and asked no more.
void set_builder(std::string socket, std::vector<std::string> command, double patience);

// The socket of a process that stands by: it becomes the first builder, and the command starts
// those that come after it. The socket is this module's from now on.
void set_standby(int fd);

// Ends that process, where it has not become the builder.
void end_standby();

// Starts it before it is needed, since it takes a while to load the compiler.
void start_builder();

// Asks it for the plan of a window, whose runs by reference have taken so many seconds; false:
// there is no builder, and there will be none, or it has refused that one.
bool ask_builder(const std::shared_ptr<WindowPlan>& window, double seconds);
// What they have taken by now, of one that is waited for.
void tell_builder(const WindowPlan& window, double seconds);
// Takes in what it has answered. With `wait` comes back once that window is no longer waited for;
// `interrupted` is asked meanwhile.
void hear_builder(const WindowPlan* wait = nullptr, bool (*interrupted)() = nullptr);
// Whether one is there, which is not started for that.
bool builder_runs();
// What a plan of so many calls costs it on this machine.
double seconds_for_plan(size_t calls);
// How often it was started, and how many answers are owed.
std::pair<int, size_t> builder_state();

}  // namespace tenon
