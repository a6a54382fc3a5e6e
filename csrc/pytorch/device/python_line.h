// Where in Python the calling thread is.
#pragma once

#include <string>
#include <vector>

namespace tenon {

// Whether calls note it (TENON_TRACE_CALLS): it costs more than most calls take.
void set_trace_calls(bool on);
bool traces_calls();

// Files of the target's, beside PyTorch's and this package's: their lines are nobody's who writes a
// program. With the interpreter's lock.
void set_target_files(std::vector<std::string> files);

// The innermost line outside of PyTorch, of this package and of the target's files, as
// "file.py:12"; empty where there is none.
std::string python_line();

}  // namespace tenon
