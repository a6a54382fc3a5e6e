// Where in Python the calling thread is.
#pragma once

#include <string>

namespace tenon {

// Whether calls note it (TENON_TRACE_CALLS): it costs more than most calls take.
void set_trace_calls(bool on);
bool traces_calls();

// The innermost line outside of PyTorch and of this package, as "file.py:12"; empty where there is
// none.
std::string python_line();

}  // namespace tenon
