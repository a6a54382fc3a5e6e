// What a kernel's check that failed raises.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

namespace tenon {

// What PyTorch raises where the check failed that left this status (`kStatusWords` of them), in the
// kernel of that name.
std::exception_ptr failed_check(const int64_t* status, const std::string& step);

}  // namespace tenon
