// Where in Python the calling thread is.
#pragma once

#include <string>
#include <vector>

namespace tenon {

// Whether calls note it (TENON_TRACE_CALLS): it costs more than most calls take.
void set_trace_calls(bool on);
bool traces_calls();

// Files, and folders with a slash, whose lines are nobody's who writes a program: PyTorch's, this
// package's and the target's. With the interpreter's lock.
void set_skipped_files(std::vector<std::string> paths);

// The innermost line outside of these, as "file.py:12"; empty where there is none.
std::string python_line();

}  // namespace tenon
